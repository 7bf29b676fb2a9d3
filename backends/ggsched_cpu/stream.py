"""A stream as a worker thread, which leaves to the caller's thread what is brief."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from ggsched.backend.base_worker import ThreadStream
from ggsched.backend.program_body import Command
from ggsched.backend.protocols import Program
from ggsched_cpu.program import Segment

if TYPE_CHECKING:
    from ggsched.backend.base import BaseDevice
    from ggsched_cpu.runner import Runner

BRIEF_S: Final = 0.02
"""What lasts longer is left to the worker: the caller can be interrupted meanwhile, and what a
hand-over takes, some 0.1 ms, does not count."""


class WorkerStream(ThreadStream):
    """Truly asynchronous: kernels run without the GIL (STR-1..6)."""

    def __init__(self, device: "BaseDevice", name: str) -> None:
        super().__init__(device, name)
        self.runner: Runner | None = None
        self._is_here = False

    def __run_here__(self, enqueue: Callable[[], None], programs: Sequence[Program]) -> None:
        """Call ``enqueue``; run what it enqueues on this thread, if that cannot take long.

        That is so if nothing is before it, and each program ran in ``BRIEF_S`` the last time. See
        ``ggsched.run.waiting_host``.

        Args:
            enqueue: Enqueues a command.
            programs: What is launched with it or behind it.
        """
        progress = self.progress
        self._is_here = progress.done == progress.enqueued and _are_brief(programs)
        try:
            enqueue()
        finally:
            self._is_here = False

    def _submit(self, command: Command, work: Callable[[], None]) -> None:
        if self._is_here:
            self._run_here(command, work)
        else:
            super()._submit(command, work)

    def _run_here(self, command: Command, work: Callable[[], None]) -> None:
        """Run a command; what is interrupted and can be begun again is left to the worker."""
        progress = self.progress
        try:
            work()
        except BaseException as error:
            is_interrupt = not isinstance(error, Exception)
            if is_interrupt and isinstance(command, str):
                self._is_here = False
                self._submit(command, work)
                raise
            progress.enqueued += 1
            progress.fail(command, error)
            progress.finish_one()
            if is_interrupt:
                raise
            return
        progress.enqueued += 1
        progress.finish_one()

    def close(self) -> None:
        """Let the worker finish what is enqueued, and end it; legal twice (ERR-3)."""
        if self.is_closed:
            return
        try:
            super().close()
        finally:
            if self.runner is not None:
                self.runner.close()


def _are_brief(programs: Sequence[Program]) -> bool:
    for program in programs:
        body = getattr(program, "body", None)
        if not isinstance(body, Segment) or body.seconds >= BRIEF_S:
            return False
    return True
