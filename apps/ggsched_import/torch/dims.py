"""Extents that an exported program leaves open: symbols, expressions, ranges."""

from collections.abc import Mapping, Sequence
from typing import Any

from ggsched.errors import UsageError


class Dims:
    """The open extents of a program.

    Args:
        ranges: Of each symbol, with ``lower`` and ``upper``.
        where: Name of the model, for messages.
    """

    def __init__(self, ranges: Mapping[Any, Any], where: str) -> None:
        self._ranges = {str(s): r for s, r in ranges.items()}
        self._where = where

    def solve(self, pairs: Sequence[tuple[Any, int]], given: Mapping[str, int]) -> dict[str, int]:
        """Return the extents by symbol.

        Args:
            pairs: Symbols or expressions, as sympy has them, and what they are.
            given: Symbols that are known.

        Raises:
            UsageError: extents that contradict each other or are out of range.
        """
        known = dict(given)
        for expr, n in sorted(pairs, key=lambda p: not p[0].is_Symbol):
            free = [s for s in expr.free_symbols if str(s) not in known]
            if len(free) == 1:
                known[str(free[0])] = self._solved(expr, n, free[0], known)
            found = self.value(expr, known)
            if found is not None and found != n:
                raise UsageError(f"{expr} is {found}, not {n}", where=self._where)
        for name, n in known.items():
            limits = self._ranges.get(name)
            if limits is not None and not limits.lower <= n <= limits.upper:
                raise UsageError(
                    f"{name} is {n}, outside {limits.lower} to {limits.upper}",
                    where=self._where,
                    why="the program was exported for this range",
                    hint="give torch.export.Dim a min and a max",
                )
        return known

    def value(self, expr: Any, known: Mapping[str, int]) -> int | None:
        """Return the value of an expression, or None where a symbol is not known."""
        values = {s: known[str(s)] for s in expr.free_symbols if str(s) in known}
        found = expr.subs(values)
        return int(found) if found.is_number else None

    def _solved(self, expr: Any, n: int, symbol: Any, known: Mapping[str, int]) -> int:
        if expr.is_Symbol:
            return n
        import sympy

        values = {s: known[str(s)] for s in expr.free_symbols if str(s) in known}
        for root in sympy.solve(expr.subs(values) - n, symbol):
            if root.is_Integer and root >= 0:
                return int(root)
        raise UsageError(f"{expr} cannot be {n}", where=self._where)
