"""What was called, in short: the recent story of each object, for errors."""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, TypeVar

from ggsched.errors import GgschedError, UsageError

E = TypeVar("E", bound=GgschedError)

LENGTH: Final = 8
"""How many calls a story has."""


class Call(NamedTuple):
    """One call on an object of the checked layer.

    Attributes:
        number: Of the call, over all devices that were wrapped together.
        thing: Name of the object, e.g. ``"cpu:0 q1"``.
        verb: Name of the method.
        operands: Names and numbers, in the order of the arguments.
    """

    number: int
    thing: str
    verb: str
    operands: tuple[object, ...]

    def __str__(self) -> str:
        """Return the call as one would write it."""
        return f"{self.number}: {self.thing}.{self.verb}({', '.join(map(str, self.operands))})"


OnCall = Callable[[Call], None]
"""Told about every call that is about to be made."""

Story = deque[Call]


def new_story() -> Story:
    """Return an empty story."""
    return deque(maxlen=LENGTH)


def misuse(
    rule: str, what: str, *, where: str, why: str = "", hint: str = "", story: Iterable[Call] = ()
) -> UsageError:
    """Return the error for a call that breaks a rule, with the story of the object."""
    reason = f"{why} ({rule})" if why else rule
    return with_story(UsageError(what, where=where, why=reason, hint=hint), where, story)


def with_story(error: E, name: str, story: Iterable[Call]) -> E:
    """Give an error the story of an object, unless it has one."""
    lines = tuple(map(str, story))
    if lines and not error.story:
        error.story = lines
        error.add_note("\n".join((f"story of {name}:", *(f"  {line}" for line in lines))))
    return error
