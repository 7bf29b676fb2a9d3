"""What was called, in short: the recent calls of each object, for errors."""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, TypeVar

from ggsched.errors import GgschedError, UsageError

E = TypeVar("E", bound=GgschedError)

LENGTH: Final = 8
"""How many calls a call log has."""


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
"""Called before every call."""

CallLog = deque[Call]


def new_call_log() -> CallLog:
    """Return an empty call log."""
    return deque(maxlen=LENGTH)


def misuse(
    rule: str,
    what: str,
    *,
    where: str,
    why: str = "",
    hint: str = "",
    call_log: Iterable[Call] = (),
) -> UsageError:
    """Return the error for a call that breaks a rule, with the call log of the object."""
    reason = f"{why} ({rule})" if why else rule
    return with_call_log(UsageError(what, where=where, why=reason, hint=hint), where, call_log)


def with_call_log(error: E, name: str, call_log: Iterable[Call]) -> E:
    """Give an error the call log of an object, unless it has one."""
    lines = tuple(map(str, call_log))
    if lines and not error.details:
        error.details = lines
        error.add_note("\n".join((f"calls of {name}:", *(f"  {line}" for line in lines))))
    return error
