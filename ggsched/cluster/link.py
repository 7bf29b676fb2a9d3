"""Messages over TCP: one connection to each peer to write to, one from each to read from.

A token that only the members of a session know stands in front of each message. It keeps apart
sessions and mistakes; it is no protection against those who read the network (docs: the trust that
a cluster needs).

The thread that waits for a message reads it itself, and looks a few times before it sleeps: waking
a thread takes longer than 16 KiB are under way.
"""

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from selectors import EVENT_READ, DefaultSelector
from socket import create_server
from time import perf_counter
from typing import Any, Final

import msgspec

from ggsched.cluster.messages import Any_, decode, encode
from ggsched.cluster.outbox import Outbox
from ggsched.cluster.stream import TOKEN_NBYTES, Ended, Reader, packed
from ggsched.errors import BackendUnavailable, UsageError

SPIN_S: Final = 1e-4
"""How long a message is looked for without sleeping."""


class Link:
    """The end of one process. For the thread that made it.

    Args:
        host: Address that others reach this process by.
        token: Of the session.
    """

    def __init__(self, host: str, token: bytes) -> None:
        if len(token) != TOKEN_NBYTES:
            raise UsageError(f"a token of {len(token)} bytes", hint=f"take {TOKEN_NBYTES}")
        self._token = token
        try:
            self._door = create_server((host, 0))
        except OSError as error:
            raise BackendUnavailable(
                "cannot listen", where=host, why=str(error), hint="name an address of this host"
            ) from error
        self._door.setblocking(False)
        self.address = f"tcp://{host}:{self._door.getsockname()[1]}"
        self._outboxes: dict[str, Outbox] = {}
        self._found: deque[tuple[Any_, Sequence[memoryview]]] = deque()
        self._readers: set[Reader] = set()
        self._selector = DefaultSelector()
        self._selector.register(self._door, EVENT_READ, self._accept)

    def send(self, address: str, message: Any_, *frames: Any) -> None:
        """Send a message; what is in the frames may change when this returns (NET-1, NET-3).

        If the other side is gone, it is dropped: whoever watches the members finds that out.
        """
        self._write(address, encode(message), *frames)

    def poll(self, timeout_s: float) -> tuple[Any_, Sequence[memoryview]] | None:
        """Return the next message of the session, or None after a time."""
        now = perf_counter()
        until, sleeps_at = now + timeout_s, now + SPIN_S
        while not self._found:
            for key, _ in self._selector.select(0.0 if now < sleeps_at else until - now):
                key.data()
            now = perf_counter()
            if now >= until:
                break
        return self._found.popleft() if self._found else None

    def beater(self, address: str) -> "Beater":
        """Return what another thread sends with to one address."""
        return Beater(self._token, address)

    def close(self, linger_s: float = 0.0) -> None:
        """Close all sockets; what was sent goes out for a time. Legal twice."""
        until = perf_counter() + linger_s
        for outbox in self._outboxes.values():
            outbox.close(max(0.0, until - perf_counter()))
        for reader in self._readers:
            reader.source.close()
        self._door.close()
        self._selector.close()

    def _write(self, address: str, *parts: Any) -> None:
        views = packed(self._token, *parts)
        if not self._outbox(address).write(views):  # lost since the last message: connect again
            self._lose(address)
            self._outbox(address).write(views)

    def _outbox(self, address: str) -> Outbox:
        outbox = self._outboxes.get(address)
        if outbox is None:
            outbox = self._outboxes[address] = Outbox(address)
            # Nothing is ever read from it but its end.
            self._selector.register(outbox.target, EVENT_READ, lambda: self._lose(address))
        return outbox

    def _lose(self, address: str) -> None:
        outbox = self._outboxes.pop(address)
        self._selector.unregister(outbox.target)
        outbox.close()

    def _accept(self) -> None:
        try:
            source, _ = self._door.accept()
        except OSError:  # it went away again
            return
        source.setblocking(False)
        reader = Reader(source, self._token, self._take)
        self._readers.add(reader)
        self._selector.register(source, EVENT_READ, lambda: self._read(reader))

    def _read(self, reader: Reader) -> None:
        try:
            reader.read()
        except BaseException as error:  # a signal, too: what follows could be misread
            self._selector.unregister(reader.source)
            self._readers.discard(reader)
            reader.source.close()
            if not isinstance(error, Ended):
                raise

    def _take(self, parts: list[memoryview]) -> None:
        """Keep a message, unless it has no header that can be read."""
        with suppress(IndexError, msgspec.MsgspecError):
            self._found.append((decode(parts[0]), parts[1:]))


class Beater:
    """Sends from a thread of its own, by a connection of its own."""

    def __init__(self, token: bytes, address: str) -> None:
        self._token, self._address = token, address
        self._outbox = Outbox(address)

    def send(self, message: Any_) -> None:
        """Send a message without frames."""
        if not self._outbox.write(packed(self._token, encode(message))):
            self.close()
            self._outbox = Outbox(self._address)

    def close(self) -> None:
        """Close the connection."""
        self._outbox.close()
