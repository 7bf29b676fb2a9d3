"""Sockets, threads and the clock of a link: those of this process, or simulated ones.

``ggsched_testing.sim.transport`` runs the same links, workers and drivers in simulated time.
"""

import threading
import time
from collections.abc import Callable, Sequence
from selectors import DefaultSelector
from socket import AF_INET, AF_INET6, IPPROTO_TCP, TCP_NODELAY, AddressFamily, create_server, socket
from typing import Any, Final, Protocol


class Thread(Protocol):
    """A thread that has been started."""

    def is_alive(self) -> bool:
        """Whether it runs."""

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end."""


class Event(Protocol):
    """What one thread waits for and another one sets."""

    def set(self) -> None:
        """Wake whoever waits."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for a time; return whether it was set."""


class Selector(Protocol):
    """Waits for sockets; see ``selectors``."""

    def register(self, fileobj: Any, events: int, data: Any = None) -> Any:
        """Watch a socket."""

    def unregister(self, fileobj: Any) -> Any:
        """Watch a socket no longer."""

    def select(self, timeout: float | None = None) -> Sequence[tuple[Any, int]]:
        """Return the sockets that are ready, after a time at most."""

    def close(self) -> None:
        """Watch nothing."""


class Transport(Protocol):
    """What a link needs of its process.

    Attributes:
        spin_s: How long a message is looked for without sleeping.
    """

    spin_s: float

    def listen(self, host: str) -> Any:
        """Return a socket that listens on a free port. Raises ``OSError``."""

    def connect(self, host: str, port: int) -> Any:
        """Return a socket that connects, without waiting. Raises ``OSError``."""

    def selector(self) -> Selector:
        """Return what waits for sockets."""

    def now(self) -> float:
        """Return seconds of a clock that never goes back."""

    def event(self) -> Event:
        """Return an event."""

    def thread(self, target: Callable[[], None], name: str) -> Thread:
        """Start a thread, which does not keep the process alive."""


class SystemTransport:
    """TCP sockets and threads of this process."""

    spin_s = 1e-4

    def listen(self, host: str) -> socket:
        """See ``Transport``."""
        door = create_server((host, 0), family=_family(host))
        door.setblocking(False)
        return door

    def connect(self, host: str, port: int) -> socket:
        """See ``Transport``."""
        target = socket(_family(host))
        try:
            target.setblocking(False)  # nobody waits for a machine that is not there
            target.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
            target.connect((host, port))
        except BlockingIOError:
            pass
        except BaseException:
            target.close()
            raise
        target.setblocking(True)
        return target

    def selector(self) -> DefaultSelector:
        """See ``Transport``."""
        return DefaultSelector()

    def now(self) -> float:
        """See ``Transport``."""
        return time.monotonic()

    def event(self) -> threading.Event:
        """See ``Transport``."""
        return threading.Event()

    def thread(self, target: Callable[[], None], name: str) -> threading.Thread:
        """See ``Transport``."""
        thread = threading.Thread(target=target, name=name, daemon=True)
        thread.start()
        return thread


def _family(host: str) -> AddressFamily:
    return AF_INET6 if ":" in host else AF_INET


SYSTEM: Final = SystemTransport()
