"""Read files that may be anything: regular files, of bounded size, without waiting.

Opening a pipe waits for a writer, a device may be endless, and a file may be cut short or rewritten
while it is read. All of these are an ``OSError`` here, or the error that the caller names.
"""

import errno
import json
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from ggsched.errors import GgschedError, UsageError
from ggsched.units import nbytes_text

MAX_NBYTES: Final = 1 << 31
MAX_TEXT_NBYTES: Final = 1 << 28
"""Of a prompt, a text to measure or a model's JSON; a thousand times what contexts hold."""
_BLOCK: Final = 1 << 20
_PATIENCE_S: Final = 2.0
_PAUSE_S: Final = 0.02

AnyPath = str | os.PathLike[str]


@contextmanager
def open_regular(path: AnyPath, *, fifo: bool = False) -> Iterator[int]:
    """Give an open descriptor of a regular file.

    Args:
        fifo: Whether a FIFO, as a shell makes for ``<(...)``, is allowed too.

    Raises:
        OSError: the file cannot be opened, whatever its name holds, or is of another kind.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except ValueError as error:  # a zero byte or half a character in the name
        raise OSError(errno.EINVAL, "its name is not that of a file") from error
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise OSError(errno.EISDIR, "it is a directory")
        if not (stat.S_ISREG(mode) or (fifo and stat.S_ISFIFO(mode))):
            raise OSError(errno.EINVAL, "it is not a regular file")
        yield descriptor
    finally:
        os.close(descriptor)


def read_some(descriptor: int, nbytes: int) -> bytes:
    """Return the next bytes of an open file. All content that is not mapped comes from here."""
    return os.read(descriptor, nbytes)


def contents(path: AnyPath, limit: int = MAX_NBYTES, *, fifo: bool = False) -> bytes:
    """Return what a file contains.

    Raises:
        OSError: as ``open_regular``; the file has more bytes than the limit, or was written to
            meanwhile; nobody writes to the FIFO.
    """
    with open_regular(path, fifo=fifo) as descriptor:
        before = os.fstat(descriptor)
        if stat.S_ISFIFO(before.st_mode):
            start = _start_of_fifo(descriptor)
            os.set_blocking(descriptor, True)
            return _all(partial(read_some, descriptor), limit, start)
        if before.st_size > limit:
            raise _too_long(limit)
        found = _all(partial(read_some, descriptor), limit)
        after = os.fstat(descriptor)
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise OSError(errno.EBUSY, "it was written to while it was read")
    return found


def _all(read: Callable[[int], bytes | None], limit: int, start: bytes = b"") -> bytes:
    parts = bytearray(start)
    while block := read(min(_BLOCK, limit + 1 - len(parts))):
        parts += block
        if len(parts) > limit:
            raise _too_long(limit)
    return bytes(parts)


def _too_long(limit: int) -> OSError:
    return OSError(errno.EFBIG, f"it is too long: more than {nbytes_text(limit)}")


def _start_of_fifo(descriptor: int) -> bytes:
    """Return what is in a FIFO once somebody writes to it."""
    end = time.monotonic() + _PATIENCE_S
    while time.monotonic() < end:
        try:
            start = read_some(descriptor, _BLOCK)
        except BlockingIOError:  # somebody is going to
            return b""
        if start:
            return start
        time.sleep(_PAUSE_S)
    raise OSError(errno.EPIPE, "it is a FIFO, and nobody writes to it")


def reason(error: OSError) -> str:
    """Return why a file cannot be read, for ``GgschedError.why``."""
    return error.strerror or str(error)


def read_bytes(
    path: AnyPath, limit: int = MAX_NBYTES, *, error: type[GgschedError] = UsageError
) -> bytes:
    """Return what a file contains.

    Args:
        limit: Most bytes that it may have.
        error: What is raised.

    Raises:
        GgschedError: of that class, where ``contents`` raises.
    """
    try:
        return contents(path, limit)
    except OSError as found:
        raise error("cannot read the file", where=os.fspath(path), why=reason(found)) from found


def read_text(
    path: AnyPath, limit: int = MAX_TEXT_NBYTES, *, error: type[GgschedError] = UsageError
) -> str:
    """Return the text in a file; see ``read_bytes``.

    Raises:
        GgschedError: of that class, where ``contents`` raises or the file is not UTF-8.
    """
    return as_text(read_bytes(path, limit, error=error), os.fspath(path), error=error)


def as_text(data: bytes, path: str, *, error: type[GgschedError] = UsageError) -> str:
    """Return the text that a file contains.

    Raises:
        GgschedError: of the given class: it is not UTF-8.
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as found:
        line = data[: found.start].count(b"\n") + 1
        raise error("not a text in UTF-8", where=f"{path}:{line}") from found


def json_object(text: str, path: str, *, error: type[GgschedError] = UsageError) -> dict[str, Any]:
    """Return the object that the text of a JSON file is.

    Raises:
        GgschedError: of the given class: it is damaged, too deep, or not an object.
    """
    try:
        content = json.loads(text)
    except RecursionError as found:
        raise error("cannot read the file", where=path, why="it is too deep") from found
    except ValueError as found:
        raise error("cannot read the file", where=path, why=str(found)) from found
    if not isinstance(content, dict):
        raise error("it is not an object", where=path)
    return content


def read_json(path: AnyPath, *, error: type[GgschedError] = UsageError) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        GgschedError: of the given class, as for ``read_text`` and ``json_object``.
    """
    return json_object(read_text(path, error=error), os.fspath(path), error=error)


def package_text(package: str, path: str) -> str:
    """Return a text file that is installed with a package.

    Args:
        path: Of the file in it, with ``/``.
    """
    from importlib.resources import files

    return files(package).joinpath(*path.split("/")).read_text("utf-8")


def read_argument(path: str, limit: int = MAX_NBYTES) -> bytes:
    """Return the content of a file of the command line: ``-`` is stdin, FIFOs are allowed.

    Raises:
        UsageError: it cannot be read: it is a device or a folder, nobody writes to the FIFO, or it
            has more bytes than the limit.
    """
    try:
        if path != "-":
            return contents(path, limit, fifo=True)
        if sys.stdin is None:
            raise OSError(errno.EBADF, "stdin is closed")
        return _all(sys.stdin.buffer.read, limit)
    except (OSError, ValueError) as error:  # ValueError: stdin was closed by the process
        why = reason(error) if isinstance(error, OSError) else str(error)
        raise UsageError("cannot read the file", where=path, why=why) from error


def read_text_argument(path: str, limit: int = MAX_NBYTES) -> str:
    """Return the text in a file of the command line; see ``read_argument``.

    Raises:
        UsageError: the file cannot be read, is not UTF-8, or has more bytes than the limit.
    """
    return as_text(read_argument(path, limit), path)


def read_prose(path: str) -> str:
    """Return a text for a model, with lines that end as Python's do; see ``read_argument``.

    Raises:
        UsageError: as for ``read_text_argument``.
    """
    text = read_text_argument(path, MAX_TEXT_NBYTES)
    return text.replace("\r\n", "\n").replace("\r", "\n")
