"""Read a file that the command line names."""

import errno
import os
import stat
import sys
import time
from typing import IO, Final

from ggsched.errors import UsageError
from ggsched.units import nbytes_text

MAX_NBYTES: Final = 1 << 31
MAX_PROSE_NBYTES: Final = 1 << 28
"""Of a prompt or a text to measure; a thousand times what contexts hold."""
_BLOCK: Final = 1 << 20
_PATIENCE_S: Final = 2.0
_PAUSE_S: Final = 0.02


def read_bytes(path: str, limit: int = MAX_NBYTES) -> bytes:
    """Return a file's content; ``-`` is stdin.

    Raises:
        UsageError: the file cannot be read: it is a device or a folder, nobody writes to the FIFO,
            or it has more bytes than the limit.
    """
    try:
        if path == "-":
            if sys.stdin is None:
                raise OSError(errno.EBADF, "stdin is closed")
            return _all(sys.stdin.buffer, path, limit)
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            mode = os.fstat(descriptor).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
                raise OSError(errno.EINVAL, "it is not a regular file")
            start = _from_fifo(descriptor) if stat.S_ISFIFO(mode) else b""
            os.set_blocking(descriptor, True)
            return _all(file, path, limit, start)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError("cannot read the file", where=path, why=why) from error


def _from_fifo(descriptor: int) -> bytes:
    """Return what is in a FIFO, as a shell makes for ``<(...)``, once somebody writes to it."""
    end = time.monotonic() + _PATIENCE_S
    while time.monotonic() < end:
        try:
            start = os.read(descriptor, _BLOCK)
        except BlockingIOError:  # somebody is going to
            return b""
        if start:
            return start
        time.sleep(_PAUSE_S)
    raise OSError(errno.EPIPE, "it is a FIFO, and nobody writes to it")


def _all(file: IO[bytes], path: str, limit: int, start: bytes = b"") -> bytes:
    parts = bytearray(start)
    while block := file.read(min(_BLOCK, limit + 1 - len(parts))):
        parts += block
        if len(parts) > limit:
            raise UsageError("is too long", where=path, why=f"more than {nbytes_text(limit)}")
    return bytes(parts)


def read_text(path: str, limit: int = MAX_NBYTES) -> str:
    """Return a text file's content; ``-`` is stdin.

    Raises:
        UsageError: the file cannot be read, is not UTF-8, or has more bytes than the limit.
    """
    return as_text(read_bytes(path, limit), path)


def read_prose(path: str) -> str:
    """Return a text for a model, with lines that end as Python's do; ``-`` is stdin.

    Raises:
        UsageError: as for ``read_text``.
    """
    return read_text(path, MAX_PROSE_NBYTES).replace("\r\n", "\n").replace("\r", "\n")


def as_text(data: bytes, path: str) -> str:
    """Return the text that a file contains.

    Raises:
        UsageError: it is not UTF-8.
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise UsageError("not a text in UTF-8", where=f"{path}:{line}") from error
