"""A file of results, so that a long piece of work which was cut short goes on where it was.

    journal = Journal(path, work="kit on cpu:0, seed 0", keys=names, type=CaseOutcome)

The first line says what the work is, each other one has a key and a result (JSON). Lines are
written at once, and one that was cut off in the middle does not count.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import msgspec

from ggsched.errors import UsageError
from ggsched.files.reading import contents, reason

FORMAT: Final = "ggsched-journal/1"

R = TypeVar("R")


class Journal(Generic[R]):
    """Results of items by their keys.

    Args:
        path: The file, which is made if it is not there.
        work: What results depend on beside the item: another text is other work.
        keys: Of each item; all different.
        type: Of the results, as msgspec converts them.

    Raises:
        UsageError: the file is of other work, or none of this kind, or cannot be written.
    """

    def __init__(self, path: Path, *, work: str, keys: Sequence[str], type: Any) -> None:
        self._path, self._keys, self._type = path, tuple(keys), type
        self._known: dict[str, R] = {}
        head = {"format": FORMAT, "work": work}
        try:
            lines = contents(path).splitlines() if os.path.lexists(path) else []
        except OSError as error:
            raise self._unusable(reason(error)) from error
        if lines and _plain(lines[0]) != head:
            raise self._unusable("it is of other work, or of another version")
        for line in lines[1:]:
            entry = _plain(line)
            if isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str):
                # Of another type: the result is not known, and is made again.
                with suppress(msgspec.ValidationError, RecursionError):
                    self._known[entry[0]] = msgspec.convert(entry[1], type)
        self._write([head, *([k, r] for k, r in self._known.items())], is_new=True)

    def results(self, count: int) -> dict[int, R]:
        """Return the results that are known, by the number of the item; there are ``count``."""
        assert count == len(self._keys)
        return {n: self._known[k] for n, k in enumerate(self._keys) if k in self._known}

    def add(self, number: int, result: R) -> None:
        """Keep the result of an item."""
        self._write([[self._keys[number], result]])

    def _write(self, entries: Sequence[Any], *, is_new: bool = False) -> None:
        try:
            with open(self._path, "wb" if is_new else "ab") as file:
                file.write(b"".join(msgspec.json.encode(e) + b"\n" for e in entries))
        except OSError as error:
            raise self._unusable(reason(error)) from error

    def _unusable(self, why: str) -> UsageError:
        hint = "name another file, or remove this one"
        return UsageError("cannot keep results there", where=str(self._path), why=why, hint=hint)


def _plain(line: bytes) -> Any:
    try:
        return msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
