"""Threads of a case that begin together."""

import threading
from collections.abc import Callable, Sequence

from ggsched_testing.conformance.context import TestContext


class Crew:
    """Threads that begin their jobs at the same time. Jobs write nothing into the program.

    Args:
        w: The world.
        jobs: What each thread does.
    """

    def __init__(self, w: TestContext, jobs: Sequence[Callable[[], object]]) -> None:
        self._w = w
        self._errors: list[BaseException] = []
        self._start = threading.Barrier(len(jobs))
        self._threads = [
            threading.Thread(target=self._run, args=(job,), name=f"kit thread {i}", daemon=True)
            for i, job in enumerate(jobs)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, job: Callable[[], object]) -> None:
        try:
            self._start.wait(self._w.timeout_s)
            job()
        except BaseException as error:
            self._errors.append(error)

    def join(self) -> None:
        """Wait for all; raise what one has raised."""
        for thread in self._threads:
            thread.join(self._w.harness.case_timeout_s)
            self._w.require(not thread.is_alive(), "a thread does not come to an end")
        if self._errors:
            raise self._errors[0]
