"""Names of things and the list of calls: the program that a failing case shows."""

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ggsched.errors import GgschedError

T = TypeVar("T")
Bytes = npt.NDArray[np.uint8]
_SHOWN = 4


class CallTrace:
    """Gives things short names and writes down what was called.

    Args:
        echo: Called with each line before the call is made.

    Attributes:
        lines: The calls so far, for people.
        count: How many lines were written, those that were dropped again included.
    """

    def __init__(self, echo: Callable[[str], None] | None = None) -> None:
        self._echo = echo
        self.lines: list[str] = []
        self.count = 0
        self._names: dict[int, str] = {}
        self._kept: list[object] = []  # so that an id stays one thing's
        self._made: dict[str, int] = {}

    def next_name(self, letter: str) -> str:
        """Return the name that the next thing of a sort gets."""
        return f"{letter}{self._made.get(letter, 0)}"

    def add(self, thing: object, letter: str, text: str = "") -> None:
        """Name a thing; with a text, write down what it is."""
        name = self.next_name(letter)
        self._made[letter] = self._made.get(letter, 0) + 1
        self._names[id(thing)] = name
        self._kept.append(thing)
        if text:
            self.note(f"{name} = {text}")

    def add_host(self, array: Any) -> None:
        """Name host memory, unless it has a name."""
        if id(array) not in self._names:
            raw = flat(array)
            start = raw[:_SHOWN].tobytes().hex(" ")
            more = " ..." if raw.size > _SHOWN else ""
            self.add(array, "h", f"host bytes ({raw.size}: {start}{more})")

    def name(self, thing: object) -> str:
        """Return the short name of a thing."""
        return self._names.get(id(thing), type(thing).__name__)

    def forget(self, thing: object) -> None:
        """Drop the reference to a thing."""
        self._kept = [k for k in self._kept if k is not thing]
        self._names.pop(id(thing), None)

    def note(self, line: str) -> None:
        """Write something down."""
        self.lines.append(line)
        self.count += 1
        if self._echo is not None:
            self._echo(line)

    def run(self, line: str, call: Callable[[], T]) -> T:
        """Write a call down, make it, and write down what it raises."""
        self.note(line)
        try:
            return call()
        except GgschedError as error:
            self.note(f"    raises {type(error).__name__}: {error.what}")
            raise

    def last(self) -> str:
        """Return the last call."""
        calls = [line for line in self.lines if not line.startswith(" ")]
        return calls[-1] if calls else "the call"


def flat(array: Any) -> Bytes:
    """Return the bytes of an array, the same ones if it is contiguous."""
    raw: Bytes = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return raw
