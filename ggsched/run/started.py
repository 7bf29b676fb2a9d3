"""A run that was started and may still be under way."""

from collections.abc import Callable

from ggsched.errors import GgschedError, UsageError
from ggsched.run.call_guard import CallGuard, guarded
from ggsched.run.outputs import Outputs


class StartedRun:
    """A run of ``Scheduler.start``; whoever started it takes its outputs when they are needed.

    Other calls of the scheduler that cannot go on before it has come to an end wait for it. What it
    returned, or the error that it ended in, is kept until ``outputs`` is called.

    Attributes:
        guard: The scheduler's.
    """

    def __init__(
        self, guard: CallGuard, finish: Callable[[], Outputs], is_done: Callable[[], bool]
    ) -> None:
        """Take what ends the run: waits for it, and returns its outputs."""
        self.guard = guard
        self._finish: Callable[[], Outputs] | None = finish
        self._is_done = is_done
        self._found: Outputs | None = None
        self._error: GgschedError | None = None

    @classmethod
    def ended(cls, guard: CallGuard, found: Outputs) -> "StartedRun":
        """Return a run that is over."""
        run = cls(guard, lambda: found, lambda: True)
        run.settle()
        return run

    @property
    def is_done(self) -> bool:
        """Whether ``outputs`` would not wait."""
        return self._finish is None or self._is_done()

    @guarded()
    def outputs(self) -> Outputs:
        """Wait for the run, and return its outputs; legal again.

        Raises:
            DeviceFault: a command failed.
            ModelError: a file whose mapping was read was truncated or written to.
            SyncTimeout: a device did not answer within ``settings.timeout_s``.
        """
        self.settle()
        if self._found is None:
            raise self._error or UsageError(
                "the wait for the run was interrupted", hint="run it again"
            )
        return self._found

    def settle(self) -> None:
        """Wait for the run, inside a call of the scheduler; its error is for ``outputs``."""
        if self._finish is None:
            return
        finish, self._finish, self._is_done = self._finish, None, lambda: True
        try:
            self._found = finish()
        except GgschedError as error:
            self._error = error

    def fail(self, error: GgschedError) -> None:
        """Take note that the run failed, which showed when all streams were drained."""
        self._finish, self._is_done, self._error = None, lambda: True, error
