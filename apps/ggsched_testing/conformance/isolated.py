"""Cases in processes of their own: a backend that ends the process costs one case.

The process goes on from case to case, and another one takes its place when it ends or loses the
device. It writes the calls of a case down before it makes them, so the case that ended it has a
program like any other.
"""

import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import lru_cache
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from pathlib import Path
from time import perf_counter
from typing import Any, Final, NamedTuple

from ggsched.cli.user_ops import named_op
from ggsched.errors import GgschedError, UsageError
from ggsched.files.reading import contents
from ggsched_testing.conformance.c_program import program, recorded
from ggsched_testing.conformance.case import Case
from ggsched_testing.conformance.cases_user_op import user_op_cases
from ggsched_testing.conformance.harness import Harness
from ggsched_testing.conformance.report import DEVICE_LOST, CaseOutcome, CaseResult
from ggsched_testing.conformance.runner import ConformanceRunner
from ggsched_testing.conformance.suite import all_cases

GIVEN_UP_S: Final = 600.0
"""A case that has not ended by then, in spite of its watchdog, ends with its process."""
ABORTS: Final = "aborts the process"
_WORDS: Final = 30


class KitRun(NamedTuple):
    """What a process needs in order to run cases of the kit.

    Attributes:
        name: Of the device.
        backends: Those that may be used; None for all.
        seed: Of all random choices.
        max_examples: Random programs to try.
        op: Name of the user-defined op whose cases run.
        emit_c: Folder for a program in C of each case that fails, or "".
    """

    name: str
    backends: tuple[str, ...] | None
    seed: int
    max_examples: int
    op: str | None
    emit_c: str = ""

    def harness(self) -> Harness:
        """Return the harness of the device.

        Raises:
            UsageError: programs in C are requested, and the backend writes none.
        """
        found = Harness.named(self.name, allow=self.backends)
        if self.emit_c and found.c_library is None:
            raise UsageError("the backend writes no programs in C", where=self.name)
        return found


def outcome(kit: KitRun, case: str) -> CaseOutcome:
    """Run a case in this process."""
    runner, cases = _runner(kit)
    return _outcome_of(runner.run(cases[case]))


def isolated_outcome(kit: KitRun, case: str) -> CaseOutcome:
    """Run a case in a process that this one keeps for it."""
    return _child(kit).run(case)


def isolated(kit: KitRun, cases: Sequence[Case]) -> Iterator[CaseResult]:
    """Run cases in a process of their own, and in another one whenever it or the device is lost."""
    child = Child(kit)
    try:
        for case in cases:
            yield CaseResult(case, *child.run(case.name))
    finally:
        child.close()


def _outcome_of(found: CaseResult) -> CaseOutcome:
    return CaseOutcome(found.verdict, found.reason, found.program, found.seed, found.seconds)


@lru_cache(maxsize=1)
def _runner(kit: KitRun) -> tuple[ConformanceRunner, dict[str, Case]]:
    cases = all_cases() if kit.op is None else user_op_cases(named_op(kit.op))
    runner = ConformanceRunner(kit.harness(), kit.seed, kit.max_examples)
    return runner, {case.name: case for case in cases}


@lru_cache(maxsize=1)
def _child(kit: KitRun) -> "Child":
    child = Child(kit)
    Finalize(None, child.close, exitpriority=1)  # also in a process of a pool
    return child


class Child:
    """A process that runs cases, and the next one when it has ended."""

    def __init__(self, kit: KitRun) -> None:
        self._kit = kit
        self._process: Any = None
        self._folder = tempfile.TemporaryDirectory(prefix="ggsched-conform-")
        self._path = Path(self._folder.name)
        self._gone = ""

    def run(self, case: str) -> CaseOutcome:
        """Run a case; one that ends the process has failed."""
        if self._gone:
            return CaseOutcome("skip", self._gone, (), self._kit.seed, 0.0)
        start = perf_counter()
        self._start()
        self._pipe.send(case)
        try:
            if not self._pipe.poll(GIVEN_UP_S):
                self._process.kill()
            answer = self._pipe.recv()
        except (EOFError, ConnectionResetError):
            return self._ended(case, perf_counter() - start)
        if isinstance(answer, str):  # the device cannot be opened
            self._gone = f"{DEVICE_LOST}, and no new process can open it: {answer}"
            return self.run(case)
        found: CaseOutcome = answer
        if found.reason.startswith(DEVICE_LOST):
            self._end()
        return found

    def _start(self) -> None:
        if self._process is not None:
            return
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(self._kit, str(self._path), theirs), daemon=True
        )
        self._process.start()
        theirs.close()

    def _ended(self, case: str, seconds: float) -> CaseOutcome:
        code = self._end()
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        said = " ".join(_text(self._path / "stderr").split()[-_WORDS:])
        reason = f"{ABORTS} ({how})" + (f": {said}" if said else "")
        program = tuple(_text(self._path / "program").splitlines())
        if self._kit.emit_c:
            with contextlib.suppress(OSError):
                _write_c(self._kit, self._kit.harness(), case, reason)
        return CaseOutcome("fail", reason, program, self._kit.seed, seconds)

    def _end(self) -> int:
        """End the process, which ends when the pipe is closed; return its exit code."""
        process, self._process = self._process, None
        self._pipe.close()
        process.join()
        return int(process.exitcode)

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._end()
        self._folder.cleanup()


def _text(path: Path) -> str:
    try:
        return contents(path).decode("utf-8", errors="replace")
    except OSError:
        return ""


def _serve(kit: KitRun, folder: str, pipe: Connection) -> None:
    """Run the cases that come through a pipe, until it is closed."""
    said = os.open(Path(folder, "stderr"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    sys.stderr.flush()
    os.dup2(said, 2)
    try:
        runner, cases = _runner(kit)
    except GgschedError as error:
        pipe.recv()
        pipe.send(error.one_line())
        return
    with contextlib.suppress(EOFError):
        while True:
            case = pipe.recv()
            os.ftruncate(said, 0)
            try:
                pipe.send(_run_written(kit, runner, cases[case], Path(folder)))
            except GgschedError as error:
                pipe.send(error.one_line())


def _run_written(kit: KitRun, runner: ConformanceRunner, case: Case, folder: Path) -> CaseOutcome:
    """Run a case whose calls are written to a file, and kept as a program in C if it fails."""
    with Path(folder, "program").open("w", encoding="utf-8") as file:

        def echo(line: str) -> None:
            file.write(f"{line}\n")
            file.flush()

        runner.echo = echo
        harness = runner.harness
        if not kit.emit_c or harness.c_library is None:
            return _outcome_of(runner.run(case))
        calls = _calls_of(kit, case.name)
        with recorded(harness.c_library, calls):
            found = _outcome_of(runner.run(case))
        if found.verdict == "fail":
            _write_c(kit, harness, case.name, found.reason)
        else:
            calls.unlink()
    return found


def _calls_of(kit: KitRun, case: str) -> Path:
    return Path(kit.emit_c, f"{case}.calls")


def _write_c(kit: KitRun, harness: Harness, case: str, reason: str) -> None:
    assert harness.c_library is not None
    calls = _calls_of(kit, case)
    text = program(harness.c_library, calls, f"{kit.name}, {case}: {reason}")
    Path(kit.emit_c, f"{case}.c").write_text(text, encoding="utf-8")
    calls.unlink()
