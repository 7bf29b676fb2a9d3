"""Members of a session: workers, as seen by the process that started them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from ggsched_cluster.transport import SYSTEM, Transport

START_S: Final = 60.0
"""How long a worker may take until it listens."""


class Member(Protocol):
    """A worker, as seen by the process that started it."""

    @property
    def name(self) -> str:
        """Name of the machine, as in ``ray://name/cpu:0``."""

    @property
    def address(self) -> str:
        """Address of the worker's link."""

    def why_gone(self) -> str:
        """Return why the worker does not run any more; "" while it does. Never blocks."""

    def end(self, timeout_s: float) -> None:
        """Wait for the worker to end, and end it by force after a time; legal twice."""


@dataclass(frozen=True, slots=True)
class Start:
    """What starts the workers of a session.

    Attributes:
        scheme: In front of the names of devices, e.g. ``ray``.
        members: Starts them with a token; they listen when it returns.
        host: Address by which they reach this process.
        transport: Sockets, threads and the clock of this process.
    """

    scheme: str
    members: Callable[[bytes], Sequence[Member]]
    host: str
    transport: Transport = SYSTEM
