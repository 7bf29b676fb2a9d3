"""Programs: a flat list of calls with every argument bound beforehand.

A loop over (function, arguments) costs no more than a bare call of the ufunc. A function generated
as straight-line source was measured 5 % faster on 16 floats and took 12 us per node to make; the
loop is the plainer one.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from operator import length_hint
from time import perf_counter
from typing import Any

import numpy as np

from ggsched.backend.program import BoundNode, groups_of
from ggsched.backend.timing import HostTaken
from ggsched_cpu.kernels import EMITTERS, emit_group
from ggsched_cpu.lowering_context import Call, CpuLoweringContext, Node

Flagged = tuple[Callable[..., object], tuple[Any, ...], bool]
"""A call, and whether it is the last of its node."""


class CallList:
    """Calls to run in order, the body of a program.

    Args:
        calls: Functions and arguments.
        labels: For each call the label of its node.
    """

    def __init__(self, calls: list[Call], labels: list[str]) -> None:
        self.calls = calls
        self.labels = labels
        self._failed = 0
        self._flagged: tuple[list[str], list[Flagged]] | None = None

    def run(self) -> None:
        """Run every call."""
        rest = iter(self.calls)
        try:
            for function, arguments in rest:
                function(*arguments)
        except BaseException:
            self._failed = len(self.calls) - length_hint(rest) - 1
            raise

    def run_timed(self, taken: HostTaken) -> None:
        """Run every call, and note when each node ran."""
        if self._flagged is None:
            self._flagged = _flagged(self.calls, self.labels)
        labels, flagged = self._flagged
        marks = [perf_counter()]
        note, now, rest = marks.append, perf_counter, iter(flagged)
        try:
            for function, arguments, is_last in rest:
                function(*arguments)
                if is_last:
                    note(now())
        except BaseException:
            self._failed = len(self.calls) - length_hint(rest) - 1
            raise
        finally:
            taken.tell(labels[: len(marks) - 1], marks)

    def blame(self, error: BaseException) -> str:
        """Return the label of the node whose call failed."""
        return self.labels[self._failed]


def _flagged(calls: list[Call], labels: list[str]) -> tuple[list[str], list[Flagged]]:
    """Return the label of each node, and all calls with a mark on the last one of each."""
    is_last = [a != b for a, b in pairwise([*labels, None])]
    nodes = [label for label, last in zip(labels, is_last, strict=True) if last]
    return nodes, [(*call, last) for call, last in zip(calls, is_last, strict=True)]


class QuietSegment(CallList):
    """A segment for the caller's thread, where numpy may be set to warn."""

    def run(self) -> None:
        """Run every call; infinite masks and saturating activations are no news."""
        with np.errstate(all="ignore"):
            super().run()

    def run_timed(self, taken: HostTaken) -> None:
        """Run every call, and note when each node ran."""
        with np.errstate(all="ignore"):
            super().run_timed(taken)


def compile_calls(nodes: Sequence[BoundNode]) -> tuple[list[Call], list[str]]:
    """Resolve nodes to calls, and to the label of the node of each call."""
    site = CpuLoweringContext()
    calls: list[Call] = []
    labels: list[str] = []
    for some in groups_of(nodes):
        group = [Node.bind(bound) for bound in some]
        fused = emit_group(group, site) if len(group) > 1 else None
        if fused is not None:
            calls += fused
            labels += [some[-1].label] * len(fused)
        for node in group:
            if fused is None and node.out.size:
                made = EMITTERS[node.bound.op](node, site)
                calls += made
                labels += [node.bound.label] * len(made)
            site.leave(node.bound)
    return calls, labels
