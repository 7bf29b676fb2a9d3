"""A worker for tasks, as a device: its memory holds handles."""

import threading
import weakref
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

from ggsched.backend import checks
from ggsched.backend.base import BaseDevice, BaseProgram, BaseStream, host_facts
from ggsched.backend.base_buffer import writable_memory
from ggsched.backend.program import BoundNode, Operand
from ggsched.backend.program_body import Command, Steps
from ggsched.backend.progress import Progress
from ggsched.backend.protocols import Stream
from ggsched.errors import DeviceFault
from ggsched.ops.tasks import ANY_KIND
from ggsched_task.board import Board

Item = tuple[Command, Callable[[], None]] | None
"""A command; None ends the worker."""


class TaskDevice(BaseDevice):
    """Runs tasks one after the other: on a thread of its own, or on the caller's.

    Args:
        kind: Tasks of this kind, and of any, can run here.
        index: Number among the devices of its kind.
        board: Where tasks find their objects.
        is_async: Whether it has a thread.
    """

    def __init__(self, kind: str, index: int, board: Board, *, is_async: bool) -> None:
        facts = host_facts(
            "task",
            {f"task.{ANY_KIND}:i64", f"task.{kind}:i64"},
            name=f"{kind}:{index}",
            description=f"worker {index} for tasks of kind {kind}",
            max_streams=1,
            is_async=is_async,
            snapshots_uploads=not is_async,
            is_deterministic=False,
        )
        super().__init__(facts, {})
        self._board = board

    def make_stream(self, name: str) -> BaseStream:
        """Return the worker."""
        return _Worker(self, name) if self.facts.is_async else BaseStream(self, name)

    def compile(self, nodes: Sequence[BoundNode], stream: Stream) -> BaseProgram:
        """Bind tasks to the handles that they read and write (LCH-3)."""
        self._require_open()
        checks.check_compile(self, nodes, stream)
        steps = []
        for node in nodes:
            writable_memory(node.output.buffer)
            slot = node.params["slot"]
            assert isinstance(slot, int)
            operands = [_handle(operand) for operand in node.inputs]
            steps.append((node.label, self._board.step(slot, operands, _handle(node.output))))
        return BaseProgram(stream, Steps(steps))


def _handle(operand: Operand) -> memoryview:
    memory = operand.buffer.host_view()[operand.offset : operand.offset + operand.nbytes]
    return memory.cast("B").cast("q")


class _Worker(BaseStream):
    """Runs commands on a thread, in the order of enqueueing (STR-1, STR-2)."""

    def __init__(self, device: BaseDevice, name: str) -> None:
        super().__init__(device, name)
        self._queue: SimpleQueue[Item] = SimpleQueue()
        self._thread = threading.Thread(
            target=_work, args=(self._queue, self.progress), name=f"ggsched {name}", daemon=True
        )
        self._thread.start()
        # The worker does not know the stream, so one that nobody closes can still be collected.
        weakref.finalize(self, self._queue.put, None).atexit = False

    def _submit(self, command: Command, work: Callable[[], None]) -> None:
        self.progress.enqueued += 1
        self._queue.put((command, work))

    def close(self) -> None:
        """Let the worker finish what is enqueued, and end it; legal twice (ERR-3)."""
        if self.is_closed:
            return
        super().close()
        self._queue.put(None)
        if self._thread is threading.current_thread():
            return
        self._thread.join(self.device.event_timeout_s)
        if self._thread.is_alive():  # whoever waits for its events has to learn of it (EVT-6)
            self.progress.fail("close", DeviceFault("closed with unfinished tasks"))


def _work(queue: "SimpleQueue[Item]", progress: Progress) -> None:
    """Run commands until None comes; after a fault only count them (ERR-2)."""
    item: Any
    while (item := queue.get()) is not None:
        command, work = item
        if progress.fault is None:
            progress.running = command
            try:
                work()
            except BaseException as error:  # there is no caller to raise it to
                progress.fail(command, error)
            progress.running = None
        del item, command, work  # nothing stays borrowed once it counts as complete (CPY-4)
        progress.finish_one()
