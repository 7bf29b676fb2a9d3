"""Messages as bytes of a stream: a token, the number of parts, their lengths, the parts.

Nothing is believed of a message, its lengths included, before its token was compared.
"""

import hmac
import struct
from collections.abc import Callable, Iterator
from socket import socket
from typing import Any, Final

import numpy as np

TOKEN_NBYTES: Final = 32

MAX_PARTS: Final = 1 << 16
"""Parts of a message: a header and its frames."""

MAX_HEADER_NBYTES: Final = 1 << 26
MAX_MESSAGE_NBYTES: Final = 1 << 40

_PREFIX: Final = struct.Struct(f"<{TOKEN_NBYTES}sI")
_AHEAD_NBYTES: Final = 1 << 16


class Ended(Exception):
    """A stream has ended, or does not belong to the session."""


def packed(token: bytes, *parts: Any) -> list[memoryview]:
    """Return what to write for a message; views of the parts, which are not copied."""
    views = [memoryview(part) for part in parts]
    lengths = struct.pack(f"<{len(views)}Q", *(view.nbytes for view in views))
    head = memoryview(_PREFIX.pack(token, len(views)) + lengths)
    return [head, *(view.cast("B") for view in views if view.nbytes)]


class Reader:
    """Reads the messages of one connection, whatever pieces they arrive in.

    Args:
        source: The connection; reads do not block.
        token: Of the session.
        found: Called with the parts of each message.

    Attributes:
        is_member: Whether a token of the session has been read.
        read_nbytes: Bytes that were read since.
    """

    def __init__(
        self, source: socket, token: bytes, found: Callable[[list[memoryview]], None]
    ) -> None:
        self.source, self._token, self._found = source, token, found
        self.is_member, self.read_nbytes = False, 0
        self._ahead = memoryview(bytearray(_AHEAD_NBYTES))
        self._places = self._parse()
        self._place = next(self._places)

    def read(self) -> None:
        """Read what has arrived: the part that is under way to its place, the rest ahead.

        Raises:
            Ended: nothing more will come.
        """
        try:
            count = self.source.recvmsg_into([self._place, self._ahead])[0]
        except BlockingIOError:
            return
        except OSError as error:
            raise Ended from error
        if count == 0:
            raise Ended
        if self.is_member:  # a stranger's bytes are no progress
            self.read_nbytes += count
        direct = min(count, len(self._place))
        self._filled(direct)
        ahead = self._ahead[: count - direct]
        while ahead:
            some = min(len(ahead), len(self._place))
            self._place[:some] = ahead[:some]
            ahead = ahead[some:]
            self._filled(some)

    def _filled(self, count: int) -> None:
        self._place = self._place[count:] if count < len(self._place) else next(self._places)

    def _parse(self) -> Iterator[memoryview]:
        """Yield the place of what comes next, and go on when it is full."""
        while True:
            prefix = bytearray(_PREFIX.size)
            yield memoryview(prefix)
            token, count = _PREFIX.unpack(prefix)
            if not hmac.compare_digest(token, self._token):
                raise Ended
            self.is_member = True
            if count > MAX_PARTS:
                raise Ended(f"a message of {count} parts")
            lengths = bytearray(8 * count)
            if count:
                yield memoryview(lengths)
            parts = _places(struct.unpack(f"<{count}Q", lengths))
            yield from filter(None, parts)
            self._found(parts)


def _places(lengths: tuple[int, ...]) -> list[memoryview]:
    """Return a place for each part, without writing zeros first.

    Raises:
        Ended: no member sends parts of these lengths, or this host has no memory for them.
    """
    if lengths and (lengths[0] > MAX_HEADER_NBYTES or sum(lengths) > MAX_MESSAGE_NBYTES):
        raise Ended(f"a message of {sum(lengths)} bytes, {lengths[0]} of them in its header")
    try:
        return [np.empty(nbytes, np.uint8).data for nbytes in lengths]
    except MemoryError as error:
        raise Ended(f"no memory for a message of {sum(lengths)} bytes") from error
