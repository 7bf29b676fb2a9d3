"""Programs: tables of compiled kernels, and calls for nodes that have none.

Tasks that follow each other become one table, which one native call runs without the GIL,
whatever its length.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile
from math import inf
from time import perf_counter
from typing import TYPE_CHECKING, Final

import numpy as np

from ggsched.backend.arrays import aligned_bytes
from ggsched.backend.program import BoundNode, groups_of
from ggsched.backend.timing import HostTaken
from ggsched.errors import UsageError

# Modules of kernels take a tenth of a second to import, which devices that only report facts save.
if TYPE_CHECKING:
    from ggsched_cpu.lowering.context import CpuLoweringContext, Node
    from ggsched_cpu.lowering.tasks import Task
    from ggsched_cpu.native import Kernels
    from ggsched_cpu.runner import Runner

Call = Callable[[], None]

MAX_FOLLOWING: Final = 3
"""Nodes that may be computed with the one before them."""

_SLOT: Final = (1 << 64) - 1
"""Arguments have 64 bits; strides may be negative."""


@dataclass(frozen=True, slots=True)
class Step:
    """A task, or a call that computes a node without a compiled kernel.

    Attributes:
        label: Of its node.
        work: What it does.
        by_reference: Whether it is the reference arithmetic of the op.
    """

    label: str
    work: "Call | Task"
    by_reference: bool = False


class Stretch:
    """Tasks that follow each other, as one table.

    Args:
        labels: For each task the label of its node.
        tasks: What to run.
        runner: Runs tables.
    """

    def __init__(self, labels: Sequence[str], tasks: "Sequence[Task]", runner: "Runner") -> None:
        from ggsched_cpu.kernels.team import Table
        from ggsched_cpu.kernels.walk import ENTRY_SLOTS
        from ggsched_cpu.lowering.barriers import flags_of

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

    @property
    def running(self) -> str:
        """Label of the node that runs."""
        team, lone = self._runner.position
        entry = lone if team is None or self._is_serial else team
        return self.labels[min(entry, len(self.labels) - 1)]

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
    """Calls that follow each other.

    Args:
        labels: For each call the label of its node.
        calls: What to run.
    """

    def __init__(self, labels: Sequence[str], calls: Sequence[Call]) -> None:
        self.labels = labels
        self.calls = calls
        self.position = 0

    @property
    def failed(self) -> str:
        """Label of the node whose call began last."""
        return self.labels[self.position]

    def run(self) -> None:
        """Run every call."""
        for at, call in enumerate(self.calls):
            self.position = at
            call()

    def run_timed(self) -> tuple[Sequence[str], list[float]]:
        """Run every call; return labels of nodes, and when the first began and each ended."""
        marks = [perf_counter()]
        for at, call in enumerate(self.calls):
            self.position = at
            call()
            marks.append(perf_counter())
        return _by_node(self.labels, marks)


def no_such_row(row: int, count: int) -> UsageError:
    """Return the error for an id out of range.

    Args:
        row: The id, modulo 2**32.
        count: Rows of the table.
    """
    return UsageError(
        f"row {row if row < 1 << 31 else row - (1 << 32)} was requested",
        why=f"there are {count} rows",
        hint="look at what computes the ids",
    )


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

    Attributes:
        seconds: What the last run took; at first infinite.
    """

    def __init__(self, pieces: Sequence[Calls | Stretch]) -> None:
        self.pieces = pieces
        self.seconds = inf
        self._at = 0

    @property
    def position(self) -> object:
        """What is different as soon as the next node runs."""
        return (self._at, self.pieces[self._at].position) if self.pieces else None

    def at(self) -> tuple[object, str]:
        """Return the position, and the label of the node that runs."""
        if not self.pieces:
            return None, ""
        piece = self.pieces[self._at]
        return self.position, piece.failed if isinstance(piece, Calls) else piece.running

    def run(self) -> None:
        """Run every piece."""
        began = perf_counter()
        for at, piece in enumerate(self.pieces):
            self._at = at
            piece.run()
        self.seconds = perf_counter() - began

    def run_timed(self, taken: HostTaken) -> None:
        """Run every piece, and note when each node ran."""
        labels: list[str] = []
        marks: list[float] = [perf_counter()]
        try:
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


def segment(steps: Sequence[Step], runner: "Runner | None") -> Segment:
    """Return the body of a program."""
    from ggsched_cpu.lowering.tasks import Task

    pieces: list[Calls | Stretch] = []
    for is_task, some in groupby(steps, key=lambda step: isinstance(step.work, Task)):
        run = list(some)
        labels = [step.label for step in run]
        if is_task:
            assert runner is not None
            tasks = [step.work for step in run if isinstance(step.work, Task)]
            pieces.append(Stretch(labels, tasks, runner))
        else:
            pieces.append(Calls(labels, [s.work for s in run if not isinstance(s.work, Task)]))
    return Segment(pieces)


def compile_steps(nodes: Sequence[BoundNode], kernels: "Kernels | None" = None) -> list[Step]:
    """Resolve nodes to tasks where there are kernels, else to calls."""
    from ggsched_cpu.lowering import emit_fused, emit_group
    from ggsched_cpu.lowering.context import CpuLoweringContext, Node

    ctx = CpuLoweringContext()
    steps: list[Step] = []
    groups = [[Node.bind(bound) for bound in some] for some in groups_of(nodes)]
    at = 0
    while at < len(groups):
        group = groups[at]
        at += 1
        label = group[-1].bound.label
        fused: Sequence[Task] | None = None
        if kernels is not None and len(group) > 1:
            fused = emit_group(group, ctx, kernels)
        elif kernels is not None and group[0].out.size:
            following = _single(groups[at : at + MAX_FOLLOWING])
            fused, taken = emit_fused(group[0], following, ctx, kernels) or (None, 0)
            group = [*group, *following[:taken]]
            at += taken
        if fused is not None:
            steps += [Step(label, work) for work in fused]
        for node in group:
            if fused is None and node.out.size:
                steps += _steps(node, ctx, kernels)
            ctx.leave(node.bound)
    return steps


def _single(groups: "Sequence[Sequence[Node]]") -> "list[Node]":
    """Return the nodes of groups that have one, up to the first that has more."""
    return [group[0] for group in takewhile(lambda group: len(group) == 1, groups)]


def _steps(node: "Node", ctx: "CpuLoweringContext", kernels: "Kernels | None") -> list[Step]:
    from ggsched_cpu.lowering import EMITTERS

    emit, label = EMITTERS.get(node.bound.op), node.bound.label
    tasks = None if emit is None or kernels is None else emit(node, ctx, kernels)
    if tasks is not None:
        return [Step(label, task) for task in tasks]
    from ggsched_cpu import reference

    return [Step(label, reference.call_of(node), reference.is_reference(node.bound.op))]
