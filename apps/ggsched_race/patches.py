"""Attributes of modules and classes that are replaced for a while."""

from contextlib import AbstractContextManager, ExitStack
from typing import Any, Final, Self

_MISSING: Final = object()


class Patches:
    """Replaces attributes; leaving the context puts back what was there, last first.

    All of it is put back, also where leaving one of the contexts fails.
    """

    def __init__(self) -> None:
        self._undo = ExitStack()

    def set(self, owner: Any, name: str, value: Any) -> Any:
        """Replace an attribute; return what it was, inherited or not."""
        before, own = getattr(owner, name, None), vars(owner).get(name, _MISSING)
        setattr(owner, name, value)
        undo = (delattr, owner, name) if own is _MISSING else (setattr, owner, name, own)
        self._undo.callback(*undo)
        return before

    def enter(self, context: AbstractContextManager[Any]) -> None:
        """Enter a context that is left with this one."""
        self._undo.enter_context(context)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._undo.close()
