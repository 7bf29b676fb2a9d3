"""Programs: calls of numpy and tables of compiled kernels, with every argument bound beforehand.

A loop over (function, arguments) costs no more than a bare call of the ufunc. Tasks that follow
each other become one table, which one native call runs without the GIL, whatever its length.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile
from math import inf
from operator import length_hint
from time import perf_counter
from typing import TYPE_CHECKING, Final

import numpy as np

from ggsched.backend.arrays import aligned_bytes
from ggsched.backend.program import BoundNode, groups_of
from ggsched.backend.timing import HostTaken
from ggsched_cpu.kernels import emit_group, emitter_of
from ggsched_cpu.kernels.rows import no_such_row
from ggsched_cpu.lowering_context import Call, CpuLoweringContext, Node

if TYPE_CHECKING:
    from ggsched_cpu.compiled.tasks import Task
    from ggsched_cpu.native import Kernels
    from ggsched_cpu.runner import Runner

MAX_FOLLOWING: Final = 3
"""Nodes that may be computed with the one before them."""

_SLOT: Final = (1 << 64) - 1
"""Arguments have 64 bits; strides may be negative."""


@dataclass(frozen=True, slots=True)
class Step:
    """A call of numpy or a task.

    Attributes:
        label: Of its node.
        work: What it does.
    """

    label: str
    work: "Call | Task"


class Stretch:
    """Tasks that follow each other, as one table.

    Args:
        labels: For each task the label of its node.
        tasks: What to run.
        runner: Runs tables.
    """

    def __init__(self, labels: Sequence[str], tasks: "Sequence[Task]", runner: "Runner") -> None:
        from ggsched_cpu.compiled.barriers import flags_of
        from ggsched_cpu_kernels.team import Table
        from ggsched_cpu_kernels.walk import ENTRY_SLOTS

        self.labels = labels
        self.failed = labels[0]
        self._runner = runner
        self._rows = [task.rows for task in tasks]
        self._is_serial = all(task.is_serial for task in tasks)
        self._keeps = [task.keeps for task in tasks]
        arguments = [n & _SLOT for task in tasks for n in task.args]
        self._args = _slots(len(arguments))
        self._args[:] = np.array(arguments, np.uint64).view(np.int64)
        table = _slots(len(tasks) * ENTRY_SLOTS).reshape(-1, ENTRY_SLOTS)
        at = self._args.ctypes.data
        for entry, task, flags in zip(table, tasks, flags_of(tasks), strict=True):
            entry[:] = task.kernel, at, task.parts, flags
            at += 8 * len(task.args)
        self._table = Table.of(table)

    @property
    def position(self) -> object:
        """What is different as soon as the next task runs."""
        return self._runner.position

    def run(self) -> None:
        """Run every task."""
        self._run(None)

    def run_timed(self) -> tuple[Sequence[str], list[float]]:
        """Run every task; return labels of nodes, and when the first began and each ended."""
        times = _slots(2 * (len(self.labels) + 1)).reshape(-1, 2)
        times[:] = 0
        self._run(times)
        marks = (times[:, 0] + 1e-9 * times[:, 1]).tolist()
        return _by_node(self.labels, marks)

    def _run(self, times: "np.ndarray[tuple[int, ...], np.dtype[np.int64]] | None") -> None:
        fault = self._runner.run(self._table, times, is_serial=self._is_serial)
        if fault is not None:
            self.failed = self.labels[fault.entry]
            raise no_such_row(fault.row, self._rows[fault.entry])


class Calls:
    """Calls of numpy that follow each other.

    Args:
        labels: For each call the label of its node.
        calls: Functions and arguments.
    """

    def __init__(self, labels: Sequence[str], calls: Sequence[Call]) -> None:
        self.labels = labels
        self.calls = calls
        self._at = 0
        self._rest: Iterator[object] = iter(())

    @property
    def position(self) -> object:
        """What is different as soon as the next call runs."""
        return length_hint(self._rest)

    @property
    def begun(self) -> str:
        """Label of the node whose call began last."""
        return self.labels[max(0, len(self.calls) - length_hint(self._rest) - 1)]

    @property
    def failed(self) -> str:
        """Label of the node whose call raised."""
        return self.labels[self._at]

    def run(self) -> None:
        """Run every call."""
        self._rest = rest = iter(self.calls)
        try:
            for function, arguments in rest:
                function(*arguments)
        except BaseException:
            self._at = len(self.calls) - length_hint(rest) - 1
            raise

    def run_timed(self) -> tuple[Sequence[str], list[float]]:
        """Run every call; return labels of nodes, and when the first began and each ended."""
        marks = [perf_counter()]
        self._rest = rest = iter(self.calls)
        try:
            for function, arguments in rest:
                function(*arguments)
                marks.append(perf_counter())
        except BaseException:
            self._at = len(marks) - 1
            raise
        return _by_node(self.labels, marks)


def _slots(count: int) -> "np.ndarray[tuple[int, ...], np.dtype[np.int64]]":
    return aligned_bytes(8 * count, 64).view(np.int64)


def _by_node(labels: Sequence[str], marks: Sequence[float]) -> tuple[Sequence[str], list[float]]:
    """Join steps of one node: return labels, and the start followed by the end of each."""
    nodes, ends = [], [marks[0]]
    at = 0
    for label, some in groupby(labels):
        at += len(list(some))
        nodes.append(label)
        ends.append(marks[at])
    return nodes, ends


class Segment:
    """The body of a program.

    Args:
        pieces: To run in order.
        is_quiet: Whether numpy must be kept from warning: infinite masks and saturating
            activations are expected, but a caller's thread may be set to raise.

    Attributes:
        seconds: What the last run took; at first infinite.
        is_native: Whether numpy computes nothing of it.
    """

    def __init__(self, pieces: "Sequence[Calls | Stretch]", *, is_quiet: bool) -> None:
        self.pieces = pieces
        self.seconds = inf
        self._at = 0
        self.is_native = not any(isinstance(piece, Calls) for piece in pieces)
        self._is_quiet = is_quiet and not self.is_native

    @property
    def position(self) -> object:
        """What is different as soon as the next node runs."""
        return (self._at, self.pieces[self._at].position) if self.pieces else None

    def at(self) -> tuple[object, str]:
        """Return the position, and the label of the node that runs, or of the first of a table."""
        if not self.pieces:
            return None, ""
        piece = self.pieces[self._at]
        return self.position, piece.begun if isinstance(piece, Calls) else piece.labels[0]

    def run(self) -> None:
        """Run every piece."""
        began = perf_counter()
        if self._is_quiet:
            with np.errstate(all="ignore"):
                self._run()
        else:
            self._run()
        self.seconds = perf_counter() - began

    def _run(self) -> None:
        for at, piece in enumerate(self.pieces):
            self._at = at
            piece.run()

    def run_timed(self, taken: HostTaken) -> None:
        """Run every piece, and note when each node ran."""
        labels: list[str] = []
        marks: list[float] = [perf_counter()]
        try:
            with np.errstate(all="ignore"):
                for at, piece in enumerate(self.pieces):
                    self._at = at
                    nodes, ends = piece.run_timed()
                    labels += nodes
                    marks += ends[1:]
        finally:
            taken.note(labels, marks)

    def failed_node(self, error: BaseException) -> str:
        """Return the label of the node that failed."""
        return self.pieces[self._at].failed


def segment(steps: Sequence[Step], runner: "Runner | None", *, is_quiet: bool) -> Segment:
    """Return the body of a program."""
    pieces: list[Calls | Stretch] = []
    for is_call, some in groupby(steps, key=lambda step: isinstance(step.work, tuple)):
        run = list(some)
        labels = [step.label for step in run]
        if is_call:
            pieces.append(Calls(labels, [s.work for s in run if isinstance(s.work, tuple)]))
        else:
            assert runner is not None
            tasks = [s.work for s in run if not isinstance(s.work, tuple)]
            pieces.append(Stretch(labels, tasks, runner))
    return Segment(pieces, is_quiet=is_quiet)


def compile_steps(nodes: Sequence[BoundNode], kernels: "Kernels | None" = None) -> list[Step]:
    """Resolve nodes to tasks where there are kernels, else to calls."""
    site = CpuLoweringContext()
    steps: list[Step] = []
    groups = [[Node.bind(bound) for bound in some] for some in groups_of(nodes)]
    at = 0
    while at < len(groups):
        group = groups[at]
        at += 1
        label = group[-1].bound.label
        fused = _fused(group, site, kernels) if len(group) > 1 else None
        if fused is None and len(group) == 1 and kernels is not None:
            following = _single(groups[at : at + MAX_FOLLOWING])
            fused, taken = _fused_behind(group[0], following, site, kernels)
            group = [*group, *following[:taken]]
            at += taken
        if fused is not None:
            steps += [Step(label, work) for work in fused]
        for node in group:
            if fused is None and node.out.size:
                steps += [Step(node.bound.label, work) for work in _works(node, site, kernels)]
            site.leave(node.bound)
    return steps


def _single(groups: Sequence[Sequence[Node]]) -> list[Node]:
    """Return the nodes of groups that have one, up to the first that has more."""
    return [group[0] for group in takewhile(lambda group: len(group) == 1, groups)]


def _fused_behind(
    node: Node, following: Sequence[Node], site: CpuLoweringContext, kernels: "Kernels"
) -> "tuple[Sequence[Call | Task] | None, int]":
    """Return the work of a node and of some behind it that go with it, and how many these are."""
    from ggsched_cpu import compiled

    found = compiled.emit_fused(node, following, site, kernels) if node.out.size else None
    return (None, 0) if found is None else found


def _fused(
    group: Sequence[Node], site: CpuLoweringContext, kernels: "Kernels | None"
) -> "Sequence[Call | Task] | None":
    if kernels is None:
        return emit_group(group, site)
    from ggsched_cpu import compiled

    return compiled.emit_group(group, site, kernels)


def _works(
    node: Node, site: CpuLoweringContext, kernels: "Kernels | None"
) -> "Sequence[Call | Task]":
    if kernels is not None:
        from ggsched_cpu import compiled

        emit = compiled.EMITTERS.get(node.bound.op)
        tasks = None if emit is None else emit(node, site, kernels)
        if tasks is not None:
            return tasks
    return emitter_of(node.bound.op)(node, site)
