"""Release things in a stated order, all of them, whatever fails on the way."""

from collections.abc import Iterable
from typing import Protocol


class _Closable(Protocol):
    def close(self) -> None: ...


def close_all(things: Iterable[_Closable]) -> None:
    """Close each thing in order; raise the first failure at the end, the others as its notes."""
    first: Exception | None = None
    for thing in things:
        try:
            thing.close()
        except Exception as error:  # the others must be closed all the same
            if first is None:
                first = error
            else:
                first.add_note(f"then, closing {thing!r}: {error}")
    if first is not None:
        raise first


def close_after(error: BaseException | None, thing: _Closable) -> None:
    """Close a thing at the end of a block; what led out of the block is not covered up.

    Args:
        error: What led out of the block; a failure to close becomes its note.
        thing: What is closed.
    """
    try:
        thing.close()
    except Exception as failure:
        if error is None:
            raise
        error.add_note(f"then, closing: {failure}")
