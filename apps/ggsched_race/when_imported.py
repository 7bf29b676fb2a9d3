"""Patch a module as soon as the program imports it: nothing is imported for a program's sake."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec
from types import ModuleType

Actions = Mapping[str, Callable[[ModuleType], None]]
"""What to do with modules, by their names."""


@contextmanager
def when_imported(
    actions: Actions, failed: Callable[[str, Exception], None] | None = None
) -> Iterator[None]:
    """Call an action with its module: now if it is loaded, else behind its import inside.

    Args:
        failed: Called with the name of a module whose action has raised, so that the import
            succeeds; without it the error is the program's.
    """
    finder = _Finder(actions, failed)
    sys.meta_path.insert(0, finder)
    try:
        for name in actions:
            if name in sys.modules:
                finder.loaded(name, sys.modules[name])
        yield
    finally:
        finder.waiting.clear()
        sys.meta_path.remove(finder)


class _Finder:
    """Finds a module as the other finders do, and adds the action to its loader.

    Attributes:
        waiting: The actions of modules that are not loaded.
    """

    def __init__(self, actions: Actions, failed: Callable[[str, Exception], None] | None) -> None:
        self.waiting, self._failed = dict(actions), failed

    def loaded(self, name: str, module: ModuleType) -> None:
        """Call the action of a module, if it is still waiting."""
        action = self.waiting.pop(name, None)
        try:
            if action is not None:
                action(module)
        except Exception as error:
            if self._failed is None:
                raise
            self._failed(name, error)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module whose action waits; None of others."""
        if name not in self.waiting:
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        loader = spec.loader if spec is not None else None
        if loader is None:
            return spec

        def exec_module(module: ModuleType) -> None:
            vars(loader).pop("exec_module", None)  # whoever only asks for a spec leaves it there
            loader.exec_module(module)
            if module.__name__ == name:  # the loader of an archive is that of others too
                self.loaded(name, module)

        with suppress(AttributeError):  # of a loader that cannot be changed: not followed
            loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
