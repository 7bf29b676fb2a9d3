"""Reads the text files of a model's folder, of bounded size."""

import json
import os
import stat
from typing import Any, Final

from ggsched.errors import ModelError

MAX_JSON: Final = 1 << 28


def read_text(path: str) -> str:
    """Return the text of a file.

    Raises:
        ModelError: it cannot be read, is not a regular file, or is too long.
    """
    try:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):  # opening a pipe would wait for a writer
            raise ModelError("it is not a regular file", where=path)
        if found.st_size > MAX_JSON:
            raise ModelError(f"it has more than {MAX_JSON} bytes", where=path)
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error


def read_json(path: str) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        ModelError: as ``read_text``, or it is damaged.
    """
    return parse_json(read_text(path), path)


def parse_json(text: str, path: str) -> dict[str, Any]:
    """Return the object in the text of a JSON file.

    Raises:
        ModelError: it is damaged, or not an object.
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, error) from error
    if not isinstance(content, dict):
        raise ModelError("it is not an object", where=path)
    return content


def _unreadable(path: str, error: Exception) -> ModelError:
    why = getattr(error, "strerror", None) or str(error)
    return ModelError("cannot read the file", where=path, why=why)
