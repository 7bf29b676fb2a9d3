"""Attributes of modules and classes that are replaced for a while."""

from contextlib import AbstractContextManager, ExitStack
from typing import Any, Self


class Patches:
    """Replaces attributes; leaving the context puts back what was there, last first."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, bool, Any]] = []
        self._contexts = ExitStack()

    def set(self, owner: Any, name: str, value: Any) -> Any:
        """Replace an attribute; return what it was, inherited or not."""
        is_own = name in vars(owner)
        self._undo.append((owner, name, is_own, vars(owner).get(name)))
        before = getattr(owner, name, None)
        setattr(owner, name, value)
        return before

    def enter(self, context: AbstractContextManager[Any]) -> None:
        """Enter a context that is left with this one."""
        self._contexts.enter_context(context)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._contexts.close()
        while self._undo:
            owner, name, is_own, value = self._undo.pop()
            if is_own:
                setattr(owner, name, value)
            else:
                delattr(owner, name)
