"""Task graphs: callables, and the values that flow between them."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ggsched.errors import GraphError
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.graph import Graph
from ggsched.ops.tasks import ANY_KIND

KIND: Final = re.compile(r"[a-z][a-z0-9_]{0,39}")
DEFAULT_COST: Final = 1e-4
RUN: Final = "run"
"""Name of the input that tasks without operands read: the generation of the run."""


@dataclass(frozen=True, slots=True)
class Value:
    """An input of a task graph, or the result of a task.

    Attributes:
        slot: Number in the graph; inputs and tasks count together.
        name: Of the input or the task.

    Examples:
        >>> from ggsched_task import TaskGraph
        >>> TaskGraph().input("x")
        Value(slot=0, name='x')
    """

    slot: int
    name: str


@dataclass(frozen=True, slots=True)
class Task:
    """A callable and its arguments.

    Attributes:
        slot: Of its result.
        name: Unique in the graph.
        function: What is called.
        args: Positional arguments; a ``Value`` stands for its object.
        kwargs: Arguments by name, likewise.
        cost: Seconds on a device of speed 1.
        kind: Kind of the devices that can run it, or ``any``.
        reads: Slots of its arguments, each once.
    """

    slot: int
    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    cost: float
    kind: str
    reads: tuple[int, ...]


class TaskGraph:
    """Collects inputs and tasks, in an order in which they can run.

    Examples:
        >>> from ggsched_task import TaskGraph, TaskRunner
        >>> g = TaskGraph("report")
        >>> text = g.input("text")
        >>> words = g.add(str.split, text, name="words")
        >>> count = g.add(len, words, name="count")
        >>> with TaskRunner() as runner:
        ...     runner.run(g, {"text": "a b c"}, [count])
        [3]
    """

    def __init__(self, name: str = "tasks") -> None:
        self.name = name
        self.inputs: dict[str, Value] = {}
        self.tasks: dict[int, Task] = {}
        self._values: list[Value] = []
        self._names: set[str] = {RUN}
        self._lowered: dict[tuple[int, ...], Graph] = {}

    def input(self, name: str) -> Value:
        """Add an object that the caller gives to each run.

        Args:
            name: By which runs are given it.

        Raises:
            GraphError: the name is taken.

        Examples:
            >>> g.input("limit").name
            'limit'
        """
        value = self._value(name)
        self.inputs[name] = value
        return value

    def add(
        self,
        function: Callable[..., Any],
        /,
        *args: Any,
        cost: float = DEFAULT_COST,
        kind: str = ANY_KIND,
        name: str = "",
        kwargs: Mapping[str, Any] | None = None,
    ) -> Value:
        """Add a call and return its result.

        Args:
            function: Called on a worker thread, or on the caller's if there is one device. Tasks
                that read one object must not change it, unless all but one are done by then.
            args: Values of this graph, and any other objects, which are passed as they are.
            cost: Seconds that it is expected to take on a device of speed 1. It decides where the
                task runs, and nothing else.
            kind: Kind of the devices that can run it; any by default.
            name: Unique in the graph. Default: the function's name and a number.
            kwargs: Arguments by name, as ``args``.

        Raises:
            GraphError: a value of another graph, a name that is taken, a cost or kind that makes
                no sense, or something that cannot be called.

        Examples:
            >>> g.add(sorted, words, kwargs={"reverse": True}, cost=1e-5, name="sorted").name
            'sorted'
        """
        slot = len(self._values)
        label = name or f"{getattr(function, '__name__', 'task')}.{slot}"
        if not callable(function):
            raise GraphError(f"{function!r} cannot be called", where=label)
        if not (math.isfinite(cost) and cost >= 0):
            raise GraphError(f"a cost of {cost!r} seconds", where=label, hint="0 or more")
        if not KIND.fullmatch(kind):
            raise GraphError(f"invalid kind {kind!r}", where=label, hint="such as 'cpu' or 'gpu'")
        named = dict(kwargs or {})
        reads = tuple(dict.fromkeys(self._slot(v) for v in (*args, *named.values()) if _is(v)))
        value = self._value(label)
        self.tasks[slot] = Task(slot, label, function, args, named, cost, kind, reads)
        return value

    def __len__(self) -> int:
        """How many slots there are: inputs and tasks."""
        return len(self._values)

    def lowered(self, outputs: Sequence[Value]) -> Graph:
        """Return the graph of handles whose outputs are those of some values.

        Args:
            outputs: Results of tasks.

        Raises:
            GraphError: no outputs, or one that is an input or of another graph.

        Examples:
            >>> [node.op for node in g.lowered([count]).nodes]
            ['task.any', 'task.any']
        """
        slots = tuple(dict.fromkeys(self._slot(v) for v in outputs))
        if not slots:
            raise GraphError("a run needs at least one output", where=self.name)
        for slot in slots:
            if slot not in self.tasks:
                raise GraphError(
                    "an input cannot be an output of a run", where=self._values[slot].name
                )
        known = self._lowered.get(slots)
        if known is not None:
            return known
        graph = self._lowered[slots] = self._lower(slots)
        return graph

    def _lower(self, slots: tuple[int, ...]) -> Graph:
        g = GraphBuilder(self.name)
        run = None
        needed = self._needed(slots)
        made = {
            v.slot: g.input(v.name, (1,), "i64") for v in self.inputs.values() if v.slot in needed
        }
        for slot, task in self.tasks.items():
            if slot not in needed:
                continue
            operands = [made[s] for s in task.reads]
            if not operands:
                run = run or g.input(RUN, (1,), "i64")
                operands = [run]
            op = f"task.{task.kind}"
            made[slot] = g.op(op, *operands, name=task.name, slot=slot, cost=float(task.cost))
        return g.build(*(made[s] for s in slots))

    def _needed(self, slots: Sequence[int]) -> set[int]:
        """Return the slots that some slots depend on, themselves included."""
        found: set[int] = set()
        left = list(slots)
        while left:
            slot = left.pop()
            if slot not in found:
                found.add(slot)
                if slot in self.tasks:
                    left += self.tasks[slot].reads
        return found

    def _value(self, name: str) -> Value:
        if name in self._names:
            raise GraphError(f"the name {name!r} is taken", where=self.name)
        self._names.add(name)
        value = Value(len(self._values), name)
        self._values.append(value)
        self._lowered.clear()
        return value

    def _slot(self, value: Value) -> int:
        if not _is(value):
            raise GraphError(f"{value!r} is not a value of a task graph", where=self.name)
        if value.slot >= len(self._values) or self._values[value.slot] is not value:
            raise GraphError(f"{value.name!r} belongs to another graph", where=self.name)
        return value.slot


def _is(value: Any) -> bool:
    return isinstance(value, Value)
