"""The objects of a run: a table with a slot for each input and each task.

Workers find a run by the generation in the handles that they read, so a task that is late never
touches the objects of another run. An object is released when its last reader has run.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from ggsched.errors import InternalError
from ggsched.ops.tasks import SLOT_BITS
from ggsched_task.graph import Task, TaskGraph, Value

MASK: Final = (1 << SLOT_BITS) - 1
_EMPTY: Final = object()


class Run:
    """One run of a task graph.

    Attributes:
        is_stopped: Whether tasks that have not begun are left out.
        failure: The first task that raised, and what.
    """

    def __init__(
        self, graph: TaskGraph, generation: int, nodes: Sequence[int], kept: Sequence[int]
    ) -> None:
        """Prepare the table.

        Args:
            generation: Number of the run.
            nodes: Slots of the tasks that will run.
            kept: Slots whose objects the caller takes.
        """
        self.generation = generation
        self.is_stopped = False
        self.failure: tuple[Task, BaseException] | None = None
        self._tasks = graph.tasks
        self._objects: list[Any] = [_EMPTY] * len(graph)
        # Tokens instead of counts: taking one from a list is atomic.
        self._readers: dict[int, list[None]] = {slot: [None] for slot in kept}
        for slot in nodes:
            for read in graph.tasks[slot].reads:
                self._readers.setdefault(read, []).append(None)
        self._lock = threading.Lock()

    def put(self, slot: int, value: Any) -> None:
        """Store an object."""
        self._objects[slot] = value

    def take(self, handle: int) -> Any:
        """Return the object of a handle that was read.

        Raises:
            InternalError: the handle is not of this run, or its object is not there: the order of
                tasks was broken.
        """
        found = self._objects[handle & MASK] if handle >> SLOT_BITS == self.generation else _EMPTY
        if found is _EMPTY:
            raise InternalError(f"a task read a handle of run {handle >> SLOT_BITS} too early")
        return found

    def execute(self, slot: int, handles: Sequence[int]) -> None:
        """Run a task, unless the run is stopped; an exception stops it."""
        task = self._tasks[slot]
        if not self.is_stopped:
            try:
                objects = [self.take(h) for h in handles] if task.reads else []
                self._objects[slot] = _call(task, objects)
                del objects
            except InternalError:
                raise
            except BaseException as error:  # there is no caller to raise it to
                self._fail(task, error)
        for read in task.reads:
            self.release(read)
        if slot not in self._readers:
            self._objects[slot] = _EMPTY

    def release(self, slot: int) -> None:
        """Note that a reader of an object is done; the last one lets it go."""
        readers = self._readers[slot]
        readers.pop()
        if not readers:
            self._objects[slot] = _EMPTY

    def stop(self) -> None:
        """Leave out the tasks that have not begun."""
        self.is_stopped = True

    def clear(self) -> None:
        """Release all objects."""
        self._objects = []

    def _fail(self, task: Task, error: BaseException) -> None:
        with self._lock:
            if self.failure is None:
                self.failure = task, error
        self.is_stopped = True


def _call(task: Task, objects: Sequence[Any]) -> Any:
    """Call a task's function with objects in the order of ``task.reads``."""
    if not task.kwargs and len(objects) == len(task.args):
        return task.function(*objects)
    of = dict(zip(task.reads, objects, strict=True))
    args = [of[a.slot] if isinstance(a, Value) else a for a in task.args]
    named = {k: of[a.slot] if isinstance(a, Value) else a for k, a in task.kwargs.items()}
    return task.function(*args, **named)


class Board:
    """The runs whose tasks may be under way, by generation."""

    def __init__(self) -> None:
        self.runs: dict[int, Run] = {}

    def step(
        self, slot: int, operands: Sequence[memoryview], out: memoryview
    ) -> Callable[[], None]:
        """Return the call that runs a task.

        Args:
            slot: Of the task.
            operands: Handles that it reads, as 64-bit integers.
            out: Where its handle is written.
        """
        runs = self.runs

        def step() -> None:
            handles = [memory[0] for memory in operands]
            generation = handles[0] >> SLOT_BITS
            run = runs.get(generation)
            if run is None:
                raise InternalError(f"a task read a handle of run {generation}, which is over")
            run.execute(slot, handles)
            out[0] = generation << SLOT_BITS | slot

        return step
