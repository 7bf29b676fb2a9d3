"""Release things in a stated order, all of them, whatever fails on the way."""

from collections.abc import Callable, Iterable
from typing import Protocol

from ggsched.backend.interrupts import is_interrupt
from ggsched.backend.plugin_calls import broken_by, name_of
from ggsched.errors import GgschedError


class _Closable(Protocol):
    def close(self) -> None: ...


def close_all(things: Iterable[_Closable], forget: Callable[[], object] | None = None) -> None:
    """Close each thing in order; raise the first failure at the end, the others as its notes.

    Args:
        things: To be closed; legal twice for each.
        forget: Called once all were closed, or failed to be: an interrupt leaves the rest for the
            next call.
    """
    first: BaseException | None = None
    for thing in things:
        try:
            thing.close()
        except BaseException as failure:  # the others must be closed all the same
            if is_interrupt(failure):
                raise
            error = as_fault(thing, failure)
            if first is None:
                first = error
            else:
                first.add_note(f"then, closing {thing!r}: {error}")
    if forget is not None:
        forget()
    if first is not None:
        raise first


def as_fault(thing: object, failure: BaseException) -> BaseException:
    """Return a failure to close something; of a plug-in's object, as its fault."""
    device = getattr(thing, "device", thing)
    if isinstance(failure, GgschedError) or not hasattr(device, "facts"):
        return failure
    error = broken_by(name_of(device), f"closing {type(thing).__name__}", failure)
    error.__cause__ = failure
    return error


def close_after(error: BaseException | None, thing: _Closable) -> None:
    """Close a thing at the end of a block; what led out of the block is not covered up.

    Args:
        error: What led out of the block; a failure to close becomes its note.
        thing: What is closed.
    """
    try:
        thing.close()
    except BaseException as failure:
        if error is None or is_interrupt(failure):
            raise
        error.add_note(f"then, closing: {failure}")
