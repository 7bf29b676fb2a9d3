"""Read a file that the command line names."""

import sys

from ggsched.errors import UsageError


def read_bytes(path: str) -> bytes:
    """Return a file's content; ``-`` is stdin.

    Raises:
        UsageError: the file cannot be read.
    """
    try:
        if path == "-":
            return sys.stdin.buffer.read()
        with open(path, "rb") as file:
            return file.read()
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError("cannot read the file", where=path, why=why) from error


def read_text(path: str) -> str:
    """Return a text file's content; ``-`` is stdin.

    Raises:
        UsageError: the file cannot be read, or is no UTF-8.
    """
    return as_text(read_bytes(path), path)


def as_text(data: bytes, path: str) -> str:
    """Return the text that a file contains.

    Raises:
        UsageError: it is no UTF-8.
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise UsageError("not a text in UTF-8", where=f"{path}:{line}") from error
