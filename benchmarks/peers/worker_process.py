"""A worker of ``bench_models`` as seen from outside; whoever does not answer in time is ended."""

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).resolve().parents[2]
BLAS = ("OPENBLAS", "OMP", "MKL", "BLIS", "NUMEXPR")


class WorkerError(Exception):
    """A worker ended, or did not answer in time."""


class WorkerProcess:
    """A process that answers each line with a line of JSON.

    Args:
        module: What to run.
        arguments: Its arguments.
        threads: Of each library for linear algebra.
        timeout_s: For each answer.
    """

    def __init__(
        self, module: str, arguments: Sequence[str], threads: int, timeout_s: float
    ) -> None:
        self.name = " ".join([module, *arguments])
        self._timeout_s = timeout_s
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed by close()
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=ROOT,
            env={**os.environ, **{f"{blas}_NUM_THREADS": str(threads) for blas in BLAS}},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, name="peers-reader", daemon=True)
        self._reader.start()

    def answer(self) -> Any:
        """Return the next answer.

        Raises:
            WorkerError: there is none within the timeout.
        """
        try:
            line = self._lines.get(timeout=self._timeout_s)
        except queue.Empty:
            raise WorkerError(f"{self.name}: no answer within {self._timeout_s} s") from None
        if line is None:
            self._errors.seek(0)
            last = self._errors.read().strip().splitlines()[-1:]
            raise WorkerError(f"{self.name}: ended: {' '.join(last) or 'without a message'}")
        return json.loads(line)

    def ask(self, line: str) -> Any:
        """Send a line and return the answer.

        Raises:
            WorkerError: there is none within the timeout.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # then it has ended, and the answer says how
        return self.answer()

    def close(self) -> None:
        """End it, by force if it does not go by itself; legal twice."""
        process = self._process
        if self._errors.closed:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write("quit\n")
            process.stdin.close()
            process.wait(10)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            process.kill()
            process.wait(10)
        self._reader.join(10)
        process.stdout.close()
        self._errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)
