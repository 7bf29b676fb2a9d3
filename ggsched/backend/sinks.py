"""Where checked commands of a ``BaseStream`` go: they run, or a capture writes them down."""

from collections.abc import Callable
from typing import Final, Protocol

from ggsched.backend.events import BaseEvent, patient_wait
from ggsched.backend.program_body import Command
from ggsched.backend.progress import Progress
from ggsched.backend.protocols import Event


class RunningStream(Protocol):
    """What sinks use of a stream."""

    progress: Progress

    @property
    def event_timeout_s(self) -> float:
        """How long it waits for an event before it fails."""

    def run(self, command: Command, work: Callable[[], None]) -> None:
        """Run a command in its turn."""


class Sink(Protocol):
    """Takes the commands of streams."""

    @property
    def is_capturing(self) -> bool:
        """Whether commands are written down and do not run."""

    def add(self, stream: RunningStream, command: Command, work: Callable[[], None]) -> None:
        """Take a command."""

    def record(self, stream: RunningStream, event: BaseEvent) -> None:
        """Let an event stand for everything that came from a stream so far."""

    def wait(self, stream: RunningStream, event: Event) -> None:
        """Hold later commands of a stream until an event is done."""

    def require_eager(self, stream: RunningStream, what: str) -> None:
        """Refuse what a captured stream cannot do."""

    def abort(self) -> None:
        """Abort the capture, if there is one."""


class EagerSink:
    """Lets the stream run its commands."""

    is_capturing = False

    def add(self, stream: RunningStream, command: Command, work: Callable[[], None]) -> None:
        """Run a command in its turn."""
        stream.run(command, work)

    def record(self, stream: RunningStream, event: BaseEvent) -> None:
        """Let an event stand for everything that was enqueued so far."""
        event.mark(stream.progress)

    def wait(self, stream: RunningStream, event: Event) -> None:
        """Hold later commands until an event is done, unless it is."""
        if isinstance(event, BaseEvent):
            event.require_outside()
            if not event.is_pending:
                return
        wait = patient_wait(event, stream.event_timeout_s, stream.progress.beat)
        stream.run("wait for an event", wait)

    def require_eager(self, stream: RunningStream, what: str) -> None:
        """Refuse nothing."""

    def abort(self) -> None:
        """Do nothing: there is no capture."""


EAGER: Final = EagerSink()
"""It has no state, so that all streams share it."""
