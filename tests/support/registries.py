"""What this process has registered beyond what ggsched itself brings, and how to undo it."""

import sys
from dataclasses import dataclass
from typing import Any

from ggsched.ir.ops import define, undefine
from ggsched.ir.user_ops import user_ops

CONVERTERS = ("ggsched_import.onnx.call", "ggsched_import.torch.call")
"""Modules with a table of converters. One that is not imported has registered nothing."""


@dataclass(frozen=True)
class Registries:
    """The user-defined ops, and the tables of converters by module, at some time."""

    ops: dict[str, Any]
    converters: dict[str, dict[str, Any]]

    @classmethod
    def now(cls) -> "Registries":
        """Return what is registered."""
        tables = {name: dict(table) for name, table in _tables().items()}
        return cls({op.name: op for op in user_ops()}, tables)

    def restore(self) -> list[str]:
        """Bring back this state; return the names that differed.

        Converters of ggsched's own modules, which an import registers, are kept.
        """
        differed = []
        ops = {op.name: op for op in user_ops()}
        for name in ops.keys() | self.ops.keys():
            if ops.get(name) is self.ops.get(name):
                continue
            differed.append(f"op {name}")
            if name in ops:
                undefine(name)
            if name in self.ops:
                define(self.ops[name])
        for module, table in _tables().items():
            before = self.converters.get(module, {})
            for name in table.keys() | before.keys():
                new, old = table.get(name), before.get(name)
                if new is old or (old is None and new.__module__.startswith("ggsched")):
                    continue
                differed.append(f"converter {name} of {module}")
                if old is None:
                    del table[name]
                else:
                    table[name] = old
        return sorted(differed)


def _tables() -> dict[str, dict[str, Any]]:
    return {name: sys.modules[name].CONVERTERS for name in CONVERTERS if name in sys.modules}
