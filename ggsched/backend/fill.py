"""Fill: set a byte range of a buffer to a repeated pattern, in the order of a stream (FIL-1..3).

The operation joined the contract in version 1.1. A stream of a plug-in that was written against 1.0
and does not derive from ``ggsched.backend.base`` has none; for it ``fill`` uploads the pattern.
"""

from collections.abc import Iterator
from typing import Final

from ggsched.backend.protocols import Buffer, HostMemory, Stream
from ggsched.errors import UsageError

Pattern = bytes

PATTERN_NBYTES: Final = (1, 2, 4)
"""Lengths that a pattern can have: those that every device library fills memory with."""

BLOCK_NBYTES: Final = 1 << 20


def fill(stream: Stream, buffer: Buffer, offset: int, nbytes: int, pattern: bytes) -> None:
    """Fill on a stream: by the stream's own operation, else by uploads of the pattern."""
    if hasattr(stream, "fill"):
        stream.fill(buffer, offset, nbytes, pattern)
        return
    check_pattern(offset, nbytes, pattern)
    if not nbytes:  # refuses what a fill refuses: a closed, foreign or read-only buffer, an offset
        stream.upload(memoryview(b""), buffer, offset)
    for start, block in blocks(nbytes, pattern):
        stream.upload(block, buffer, offset + start)


def blocks(nbytes: int, pattern: bytes) -> Iterator[tuple[int, HostMemory]]:
    """Yield the content of a filled range as (first byte, host bytes), in blocks of bounded size.

    All blocks share one piece of memory: a range may be larger than the memory of the host.
    """
    block = memoryview(pattern * max(1, min(nbytes, BLOCK_NBYTES) // len(pattern)))
    for start in range(0, nbytes, len(block)):
        yield start, block[: nbytes - start]


def check_pattern(offset: int, nbytes: int, pattern: bytes) -> None:
    """Refuse patterns of other lengths, and ranges that are not whole patterns (FIL-3)."""
    length = len(pattern)
    if length not in PATTERN_NBYTES:
        what = f"a pattern of {length} bytes"
        raise UsageError(what, where="fill", why="patterns have 1, 2 or 4 bytes (FIL-3)")
    if offset % length or nbytes % length:
        raise UsageError(
            f"bytes [{offset}, {offset + nbytes}) filled with a pattern of {length} bytes",
            where="fill",
            why="offset and length must be multiples of the pattern's length (FIL-3)",
        )
