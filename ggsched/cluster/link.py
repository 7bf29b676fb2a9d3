"""Messages over TCP by ZeroMQ: one socket to read from, one to each peer to write to.

A token that only the members of a session know stands in front of each message. It keeps apart
sessions and mistakes; it is no protection against those who read the network (docs: the trust that
a cluster needs).
"""

import hmac
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ggsched.cluster.messages import Any_, decode, encode
from ggsched.errors import BackendUnavailable, UsageError

TOKEN_NBYTES: Final = 32


class Link:
    """The end of one process. For the thread that made it.

    Args:
        host: Address that others reach this process by.
        token: Of the session.
    """

    def __init__(self, host: str, token: bytes) -> None:
        if len(token) != TOKEN_NBYTES:
            raise UsageError(f"a token of {len(token)} bytes", hint=f"take {TOKEN_NBYTES}")
        self._zmq = _zmq()
        self._token = token
        self._context = self._zmq.Context()
        self._inbox = self._context.socket(self._zmq.PULL)
        self._inbox.set(self._zmq.LINGER, 0)
        self._inbox.set(self._zmq.RCVHWM, 0)
        try:
            port = self._inbox.bind_to_random_port(f"tcp://{host}")
        except self._zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise BackendUnavailable(
                "cannot listen", where=host, why=str(error), hint="name an address of this host"
            ) from error
        self.address = f"tcp://{host}:{port}"
        self._outboxes: dict[str, Any] = {}
        self._patience_s = -1.0

    def send(self, address: str, message: Any_, *frames: Any) -> None:
        """Send a message; what is in the frames may change when this returns (NET-1, NET-3)."""
        self._outbox(address).send_multipart([self._token, encode(message), *frames], copy=True)

    def poll(self, timeout_s: float) -> tuple[Any_, Sequence[memoryview]] | None:
        """Return the next message of the session, or None after a time."""
        inbox = self._inbox
        if timeout_s != self._patience_s:
            inbox.set(self._zmq.RCVTIMEO, int(timeout_s * 1e3))
            self._patience_s = timeout_s
        try:
            token = inbox.recv()
        except self._zmq.Again:
            return None
        header = inbox.recv() if inbox.get(self._zmq.RCVMORE) else b""
        # Frames of arrays are not copied here, which takes longer for the short ones before.
        frames = inbox.recv_multipart(copy=False) if inbox.get(self._zmq.RCVMORE) else []
        if not hmac.compare_digest(token, self._token):
            return None
        try:
            return decode(header), [frame.buffer for frame in frames]
        except msgspec.MsgspecError:
            return None

    def beater(self, address: str) -> "Beater":
        """Return what another thread sends with to one address."""
        return Beater(self._zmq, self._context, self._token, address)

    def close(self, linger_s: float = 0.0) -> None:
        """Close all sockets; what was sent goes out for a time. Legal twice."""
        self._context.destroy(linger=int(linger_s * 1e3))

    def _outbox(self, address: str) -> Any:
        if address not in self._outboxes:
            self._outboxes[address] = _push(self._zmq, self._context, address)
        return self._outboxes[address]


class Beater:
    """Sends from a thread of its own, which makes it there: sockets belong to their thread."""

    def __init__(self, zmq: Any, context: Any, token: bytes, address: str) -> None:
        self._token = token
        self._socket = _push(zmq, context, address)

    def send(self, message: Any_) -> None:
        """Send a message without frames."""
        self._socket.send_multipart([self._token, encode(message)])

    def close(self) -> None:
        """Close the socket."""
        self._socket.close(0)


def _push(zmq: Any, context: Any, address: str) -> Any:
    socket = context.socket(zmq.PUSH)
    socket.set(zmq.LINGER, 0)
    socket.set(zmq.SNDHWM, 0)  # never waits for the other side
    socket.connect(address)
    return socket


def _zmq() -> Any:
    try:
        import zmq
    except ImportError as error:
        raise BackendUnavailable(
            "several machines need pyzmq",
            why=str(error),
            hint="pip install 'ggsched[ray]'",
        ) from error
    return zmq
