"""Patch a module as soon as the program imports it: nothing is imported for a program's sake."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType


@contextmanager
def when_imported(actions: Mapping[str, Callable[[ModuleType], None]]) -> Iterator[None]:
    """Call an action with its module: now if it is loaded, else behind its import inside.

    Args:
        actions: By the name of the module.
    """
    finder = _Finder(actions)
    sys.meta_path.insert(0, finder)
    try:
        for name, action in actions.items():
            module = sys.modules.get(name)
            if module is not None:
                action(module)
        yield
    finally:
        sys.meta_path.remove(finder)


class _Finder:
    """Finds a module as others do, and adds the action to its loader."""

    def __init__(self, actions: Mapping[str, Callable[[ModuleType], None]]) -> None:
        self._actions = dict(actions)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module that has an action; None of others."""
        del path, target
        action = self._actions.pop(name, None)  # so that the search below is left to others
        spec = find_spec(name) if action is not None else None
        loader = spec.loader if spec is not None else None
        if spec is None or action is None or loader is None:
            return None
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            action(module)

        with suppress(AttributeError):  # of a loader that cannot be changed: not followed
            loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
