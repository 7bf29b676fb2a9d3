"""Groups that run as one, as unkindly as LCH-6 allows.

First what the last node reads by itself is read, and every result of the group becomes poison; at
the end everything else is read, and only the last result is written. So whoever overwrites an
operand of a group too early, with a result of the same group, or reads what only the group may
read, finds poison.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ggsched.backend.program import BoundNode, Operand
from ggsched_testing.sim.kernels import Ahead, Array, NodeWork, buffer_of, load_from
from ggsched_testing.sim.memory import POISON, Bytes, SimBuffer

Step = Callable[[], None]


class GroupWork:
    """The nodes of a group, bound.

    Args:
        nodes: In order.
        is_deterministic: See ``NodeWork``.
    """

    def __init__(self, nodes: Sequence[BoundNode], *, is_deterministic: bool) -> None:
        self._works = [NodeWork(node, is_deterministic=is_deterministic) for node in nodes]
        self.node = nodes[-1]
        self._early: dict[int, Array] = {}
        self._window: Bytes = np.empty(0, np.uint8)

    @property
    def read(self) -> list[Operand]:
        """What its nodes read, their own results among it."""
        return [o for work in self._works for o in work.read]

    @property
    def buffers(self) -> list[SimBuffer]:
        """The buffers that it uses."""
        return [b for work in self._works for b in work.buffers]

    def steps(self, ahead: Ahead | None = None) -> tuple[Step, Step]:
        """Return the two steps of one run, for which some operands may be read ahead."""
        found = ahead or Ahead()
        return partial(self._begin, found), partial(self._end, found)

    def _begin(self, ahead: Ahead) -> None:
        last = self._works[-1]
        self._window = last.window()
        inside = [w.node.output for w in self._works[:-1]]
        self._early = {
            k: ahead.load(o)
            for k, o in enumerate(last.read)
            if not any(_is_within(o, made) for made in inside)
        }
        for work in self._works:
            out = work.node.output
            buffer_of(out).write(out.offset, out.nbytes).fill(POISON)

    def _end(self, ahead: Ahead) -> None:
        made: list[tuple[Operand, Bytes]] = []
        for work in self._works[:-1]:
            window = work.window()
            with np.errstate(all="ignore"):
                work.compute([_load(o, made, ahead) for o in work.read], window)
            made.append((work.node.output, window))
        last = self._works[-1]
        loaded = [
            self._early[k] if k in self._early else _load(o, made, ahead)
            for k, o in enumerate(last.read)
        ]
        with np.errstate(all="ignore"):
            last.compute(loaded, self._window)
        out = last.node.output
        buffer_of(out).write(out.offset, out.nbytes)[:] = self._window


def _is_within(operand: Operand, made: Operand) -> bool:
    return (
        operand.buffer is made.buffer
        and made.offset <= operand.offset
        and operand.offset + operand.nbytes <= made.offset + made.nbytes
    )


def _load(operand: Operand, made: Sequence[tuple[Operand, Bytes]], ahead: Ahead) -> Array:
    """Return an operand, from what the group has computed, or from memory, now or before."""
    for out, window in made:
        if _is_within(operand, out):
            start = operand.offset - out.offset
            return load_from(window[start : start + operand.nbytes], operand)
    return ahead.load(operand)
