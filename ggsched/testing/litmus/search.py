"""All interleavings of a litmus program.

Two steps that can both run next, touch the same bytes, and of which one writes, are a race: they
stand next to each other in either order. Where no such pair can be reached, every order of the
steps leaves the same content, and a read that needs another one is wrong in all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from ggsched.testing.litmus.program import Block, Kind, Variant
from ggsched.testing.litmus.steps import Machine, machine

MAX_STATES: Final = 200_000


@dataclass(frozen=True, slots=True)
class Explored:
    """What the interleavings show.

    Attributes:
        verdict: The gravest of what was seen, or None if there are too many to look at.
        what: In words.
        schedule: Operations in the order in which they ran until then, by index.
        states: How many states were visited.
    """

    verdict: Kind | None
    what: str
    schedule: tuple[int, ...]
    states: int


def explore_block(block: Block, variant: Variant, *, max_states: int = MAX_STATES) -> Explored:
    """Run all interleavings of a variant."""
    start = machine(block, variant)
    if start.illegal:
        first, reason = min(start.illegal.items())
        what = f"line {start.ops[first].line} '{start.ops[first].text}' during capture: {reason}"
        return Explored("capture", what, tuple(range(first + 1)), 1)
    return _Search(start, max_states).run()


class _Search:
    def __init__(self, start: Machine, max_states: int) -> None:
        self._start = start
        self._max = max_states
        self._wrong: Explored | None = None

    def run(self) -> Explored:
        seen: set[frozenset[int]] = set()
        stack: list[tuple[Machine, tuple[int, ...]]] = [(self._start, ())]
        while stack:
            state, path = stack.pop()
            key = frozenset(state.done)
            if key in seen:
                continue
            seen.add(key)
            if len(seen) > self._max:
                return Explored(None, f"more than {self._max} states", (), len(seen))
            enabled = state.enabled()
            race = _race(state, enabled, path, len(seen))
            if race is not None:
                return race
            for i in reversed(enabled):
                following = state.copy()
                wrong = following.run(i)
                if wrong and self._wrong is None:
                    op = state.ops[i]
                    what = f"line {op.line} '{op.text}': {wrong}"
                    self._wrong = Explored("value", what, (*path, i), len(seen))
                stack.append((following, (*path, i)))
        return self._wrong or Explored("clean", "", (), len(seen))


def _race(
    state: Machine, enabled: Sequence[int], path: tuple[int, ...], states: int
) -> Explored | None:
    for i, j in combinations(enabled, 2):
        shared = state.clash(i, j)
        if shared:
            a, b = state.ops[i], state.ops[j]
            what = (
                f"line {a.line} '{a.text}' and line {b.line} '{b.text}' can run in either order "
                f"on {shared}"
            )
            return Explored("race", what, (*path, i, j), states)
    return None
