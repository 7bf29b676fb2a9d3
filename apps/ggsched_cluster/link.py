"""Messages over TCP: one connection to each peer to write to, one from each to read from.

A token that only the members of a session know stands in front of each message. It keeps apart
sessions and mistakes; it is no protection against those who read the network (docs: the trust that
a cluster needs). A connection that has not sent the token is a stranger: strangers have a time
limit and a number, and one is closed where the process has no descriptor left.

The thread that waits for a message reads it itself, and looks a few times before it sleeps: waking
a thread takes longer than 16 KiB are under way.
"""

import errno
import logging
from collections import deque
from collections.abc import Sequence
from selectors import EVENT_READ
from typing import Any, Final

import msgspec

from ggsched.errors import BackendUnavailable, UsageError
from ggsched_cluster.messages import Any_, decode, encode
from ggsched_cluster.outbox import Outbox
from ggsched_cluster.stream import TOKEN_NBYTES, Ended, Reader, packed
from ggsched_cluster.transport import SYSTEM, Event, Thread, Transport

MAX_STRANGERS: Final = 16
"""Connections without the token that are open at a time; the oldest is closed for another one."""

STRANGER_S: Final = 10.0
"""How long a connection may stay open without the token."""

PAUSE_S: Final = 0.5
"""How long no connection is accepted where the process has no descriptor left."""

_LOG: Final = logging.getLogger("ggsched")
_NONE_LEFT: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Link:
    """The end of one process. For the thread that made it.

    Args:
        host: Address that others reach this process by.
        token: Of the session.
        transport: Of the process.
    """

    def __init__(self, host: str, token: bytes, transport: Transport = SYSTEM) -> None:
        if len(token) != TOKEN_NBYTES:
            raise UsageError(f"a token of {len(token)} bytes", hint=f"take {TOKEN_NBYTES}")
        self._token, self._transport = token, transport
        self.now = transport.now
        try:
            self._door = transport.listen(host)
        except (OSError, UnicodeError) as error:
            raise BackendUnavailable(
                "cannot listen", where=host, why=str(error), hint="name an address of this host"
            ) from error
        port = self._door.getsockname()[1]
        self.address = f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"
        self._outboxes: dict[str, Outbox] = {}
        self._found: deque[tuple[Any_, Sequence[memoryview]]] = deque()
        self._readers: set[Reader] = set()
        self._strangers: dict[Reader, float] = {}
        self._opens_at: float | None = None
        self._past_nbytes = 0
        self._selector = transport.selector()
        self._selector.register(self._door, EVENT_READ, self._accept)

    @property
    def moved_nbytes(self) -> int:
        """Bytes that were read and written so far: a large message that is under way is seen."""
        read = sum(reader.read_nbytes for reader in tuple(self._readers))
        written = sum(outbox.written_nbytes for outbox in tuple(self._outboxes.values()))
        return self._past_nbytes + read + written

    def send(self, address: str, message: Any_, *frames: Any) -> None:
        """Send a message; what is in the frames may change when this returns (NET-1, NET-3).

        If the other side is gone, it is dropped: whoever watches the members finds that out.
        """
        self._write(address, encode(message), *frames)

    def poll(self, timeout_s: float) -> tuple[Any_, Sequence[memoryview]] | None:
        """Return the next message of the session, or None after a time."""
        now = self.now()
        until, sleeps_at = now + timeout_s, now + self._transport.spin_s
        while not self._found:
            left_s = 0.0 if now < sleeps_at else min(until, self._tend(now)) - now
            for key, _ in self._selector.select(max(0.0, left_s)):
                key.data()
            now = self.now()
            if now >= until:
                break
        return self._found.popleft() if self._found else None

    def renew(self) -> None:
        """Send what follows by new connections: a message was lost on those that are there."""
        for address in tuple(self._outboxes):
            self._lose(address)

    def beater(self, address: str) -> "Beater":
        """Return what another thread sends with to one address."""
        return Beater(self._token, address, self._transport)

    def event(self) -> Event:
        """Return an event for a thread of the process."""
        return self._transport.event()

    def thread(self, target: Any, name: str) -> Thread:
        """Start a thread of the process."""
        return self._transport.thread(target, name)

    def close(self, linger_s: float = 0.0) -> None:
        """Close all sockets; what was sent goes out for a time. Legal twice."""
        until = self.now() + linger_s
        for outbox in self._outboxes.values():
            outbox.close(max(0.0, until - self.now()))
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
            outbox = self._outboxes[address] = Outbox(address, self._transport)
            if outbox.target is not None:
                # Nothing is ever read from it but its end.
                self._selector.register(
                    outbox.target, EVENT_READ, lambda: self._end(address, outbox)
                )
        return outbox

    def _end(self, address: str, outbox: Outbox) -> None:
        if self._outboxes.get(address) is outbox:  # else it was lost a moment ago
            self._lose(address)

    def _lose(self, address: str) -> None:
        outbox = self._outboxes.pop(address)
        if outbox.target is not None:
            self._selector.unregister(outbox.target)
        outbox.close()
        self._past_nbytes += outbox.written_nbytes

    def _accept(self) -> None:
        try:
            source, _ = self._door.accept()
        except OSError as error:
            if error.errno in _NONE_LEFT:
                self._make_room(error)
            return  # else it went away again
        if len(self._strangers) >= MAX_STRANGERS:
            self._drop(next(iter(self._strangers)))
        source.setblocking(False)
        reader = Reader(source, self._token, self._take)
        self._readers.add(reader)
        self._strangers[reader] = self.now() + STRANGER_S
        self._selector.register(source, EVENT_READ, lambda: self._read(reader))

    def _make_room(self, error: OSError) -> None:
        """Close the oldest stranger, or accept no connection for a time: the door stays ready."""
        if self._strangers:
            self._drop(next(iter(self._strangers)))
            return
        _LOG.warning("%s: accepts no connection for %g s: %s", self.address, PAUSE_S, error)
        self._selector.unregister(self._door)
        self._opens_at = self.now() + PAUSE_S

    def _tend(self, now: float) -> float:
        """Do what is due of strangers and the door; return when to look again."""
        while self._strangers:
            reader, until = next(iter(self._strangers.items()))
            if now < until:
                break
            self._drop(reader)
        if self._opens_at is not None and now >= self._opens_at:
            self._opens_at = None
            self._selector.register(self._door, EVENT_READ, self._accept)
        due = [*self._strangers.values()][:1]
        if self._opens_at is not None:
            due.append(self._opens_at)
        return min(due, default=float("inf"))

    def _read(self, reader: Reader) -> None:
        if reader not in self._readers:  # dropped a moment ago
            return
        try:
            reader.read()
        except BaseException as error:  # a signal, too: what follows could be misread
            self._drop(reader)
            if not isinstance(error, Ended):
                raise
            if str(error):
                _LOG.warning("%s: a member was disconnected: %s", self.address, error)
        if reader.is_member:
            self._strangers.pop(reader, None)

    def _drop(self, reader: Reader) -> None:
        self._selector.unregister(reader.source)
        self._readers.discard(reader)
        self._strangers.pop(reader, None)
        self._past_nbytes += reader.read_nbytes
        reader.source.close()

    def _take(self, parts: list[memoryview]) -> None:
        """Keep a message that can be read."""
        try:
            self._found.append((decode(parts), parts[1:]))
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            _LOG.warning("%s: a message cannot be read: %s", self.address, error)


class Beater:
    """Sends from a thread of its own, by a connection of its own."""

    def __init__(self, token: bytes, address: str, transport: Transport) -> None:
        self._token, self._address, self._transport = token, address, transport
        self._outbox = Outbox(address, transport)

    def send(self, message: Any_) -> None:
        """Send a message without frames."""
        if not self._outbox.write(packed(self._token, encode(message))):
            self.close()
            self._outbox = Outbox(self._address, self._transport)

    def close(self) -> None:
        """Close the connection."""
        self._outbox.close()
