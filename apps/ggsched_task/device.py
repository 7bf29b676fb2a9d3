"""A worker for tasks, as a device: its memory holds handles."""

from collections.abc import Sequence

from ggsched.backend import checks
from ggsched.backend.base import BaseDevice, BaseProgram, BaseStream, host_facts
from ggsched.backend.base_buffer import writable_memory
from ggsched.backend.base_worker import ThreadStream
from ggsched.backend.program import BoundNode, Operand
from ggsched.backend.program_body import Steps
from ggsched.backend.protocols import Stream
from ggsched.ops.tasks import ANY_KIND
from ggsched_task.board import Board


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
        return ThreadStream(self, name) if self.facts.is_async else BaseStream(self, name)

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
