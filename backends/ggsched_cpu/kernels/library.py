"""Addresses of kernels, compiled or taken from the cache when a family is first requested."""

from collections.abc import Sequence
from pathlib import Path

from ggsched_cpu.kernels.compiler import LLVM_VERSION, Linker, object_code
from ggsched_cpu.kernels.emit import Builder, module_text
from ggsched_cpu.kernels.families import family
from ggsched_cpu.kernels.object_cache import cached_code, discard, entry_name
from ggsched_cpu.kernels.target import Target


class Library:
    """The kernels of this process.

    Args:
        target: The processor.
        folder: Where object code is kept.
    """

    def __init__(self, target: Target, folder: Path) -> None:
        self.target = target
        self.folder = folder
        self._linker = Linker()
        self._known: dict[str, dict[str, int]] = {}

    def address(self, family_name: str, function: str) -> int:
        """Return the address of a function of a family.

        Raises:
            RuntimeError: LLVM failed.
        """
        known = self._known.get(family_name)
        if known is None:
            known = self._known[family_name] = self._load(family(family_name)(self.target))
        return known[function]

    def _load(self, functions: Sequence[Builder]) -> dict[str, int]:
        ir = module_text(*functions)
        symbols = [f.name for f in functions]
        name = entry_name(ir, self.target, LLVM_VERSION)
        code = cached_code(self.folder, name, lambda: object_code(ir, self.target))
        try:
            return self._linker.load(code, symbols)
        except RuntimeError:
            # Whole, but not what this LLVM loads.
            discard(self.folder, name)
            return self._linker.load(object_code(ir, self.target), symbols)
