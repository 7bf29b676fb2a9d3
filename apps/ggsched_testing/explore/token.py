"""Replay tokens: an order of execution in a short printable word.

A token says at which moments an order departs from the usual one (see ``trace``) and to whom, how
many moments there are, and a checksum of who acted when, so that it cannot be taken for the token
of another program, or of another version of the same one.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from typing import Final
from zlib import crc32

from ggsched.errors import UsageError
from ggsched_testing.explore.outcome import Observation, Run
from ggsched_testing.explore.trace import ExplorationRecorder, Moment
from ggsched_testing.schedule_policy import Option

VERSION: Final = "x1"


def token_of(moments: Sequence[Moment]) -> str:
    """Return the token of an execution."""
    numbers = [len(moments)]
    last = 0
    for i, moment in enumerate(moments):
        if moment.at != moment.usual:
            numbers += [i - last, moment.at]
            last = i
    data = b"".join(_varint(n) for n in numbers)
    return f"{VERSION}-{_word(data + _checksum(moments))}"


def replay(token: str, run: Run) -> Observation:
    """Execute a program in the order of a token.

    Raises:
        UsageError: the token is of another version or of another program, or was damaged.
    """
    policy = _Replayer(token)
    observation = run(policy)
    policy.check()
    return observation


class _Replayer(ExplorationRecorder):
    """Departs from the usual order where the token says so."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self._token = token
        self._count, self._deviations, self._sum = _decode(token)

    def pick(self, options: Sequence[Option], usual: int) -> int:
        at = self._deviations.get(len(self.moments), usual)
        if at >= len(options):
            raise self._other()
        return at

    def check(self) -> None:
        if len(self.moments) != self._count or _checksum(self.moments) != self._sum:
            raise self._other()

    def _other(self) -> UsageError:
        return UsageError(
            "the token belongs to another program",
            where=self._token,
            hint="explore again: programs, and ggsched itself, change",
        )


def _decode(token: str) -> tuple[int, dict[int, int], bytes]:
    version, dash, word = token.strip().partition("-")
    if not dash or version != VERSION:
        raise UsageError(
            f"a token of version {version!r}, not {VERSION!r}" if dash else "no token",
            where=token,
            hint="explore again",
        )
    try:
        data = urlsafe_b64decode(word + "=" * (-len(word) % 4))
        if _word(data) != word:
            raise ValueError(word)
        body, checksum = data[:-4], data[-4:]
        count, *rest = _numbers(body)
        pairs = zip(rest[::2], rest[1::2], strict=True)
    except ValueError:
        raise UsageError("a damaged token", where=token, hint="copy all of it") from None
    deviations, at = {}, 0
    for gap, index in pairs:
        at += gap
        deviations[at] = index
    return count, deviations, checksum


def _word(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")


def _checksum(moments: Sequence[Moment]) -> bytes:
    return crc32("\n".join(m.actor for m in moments).encode()).to_bytes(4, "big")


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _numbers(data: bytes) -> list[int]:
    numbers, number, shift = [], 0, 0
    for byte in data:
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            numbers.append(number)
            number = shift = 0
    if shift:
        raise ValueError("cut off")
    return numbers
