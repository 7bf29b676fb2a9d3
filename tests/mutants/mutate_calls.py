"""Programs of a device of host memory that do a little more than they should."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ggsched.backend.arrays import Array, bind_host
from ggsched.backend.base import BaseBuffer, BaseDevice, BaseEvent, BaseProgram, BaseStream
from ggsched.backend.list_capture import RecordedGraph
from ggsched.backend.program import BoundNode, Operand
from ggsched.backend.program_body import Body, Command
from ggsched.backend.protocols import Event, Stream
from ggsched.backend.timing import HostTaken

Action = Callable[[], object]


class Around:
    """The body of a program with something done before and after each run."""

    def __init__(self, body: Body, before: Action, after: Action) -> None:
        self.body = body
        self.before = before
        self.after = after

    def run(self) -> None:
        """Run what was there, and more."""
        self.before()
        self.body.run()
        self.after()

    def run_timed(self, taken: HostTaken) -> None:
        """Run it as one piece, and note when."""
        taken.run(self.run)

    def failed_node(self, error: BaseException) -> str:
        """Return the label of the node that failed."""
        return self.body.failed_node(error)


class MutatedCalls(BaseDevice):
    """Compiles programs that do a little more. ``before`` and ``after`` say what."""

    def compile(self, nodes: Sequence[BoundNode], stream: Stream) -> BaseProgram:
        """Compile, and wrap the body."""
        program = super().compile(nodes, stream)
        if program.body is not None and nodes:
            before, after = self.before(nodes, stream), self.after(nodes, stream)
            program.body = Around(program.body, before, after)
        return program

    def before(self, nodes: Sequence[BoundNode], stream: Stream) -> Action:
        """Return what is done before a run."""
        return nothing

    def after(self, nodes: Sequence[BoundNode], stream: Stream) -> Action:
        """Return what is done after a run."""
        return nothing


class ChangedWaits(BaseStream):
    """Streams that wait in another way for events of their device that are not done."""

    def wait(self, event: Event) -> None:
        """Enqueue a wait."""
        if isinstance(event, BaseEvent) and event.is_pending:
            self._require_usable()
            self._submit("wait for an event", self.waiting_for(event))
        else:
            super().wait(event)

    def waiting_for(self, event: BaseEvent) -> Callable[[], None]:
        """Return what the stream does in its turn."""
        raise NotImplementedError


def nothing() -> None:
    """Do nothing."""


def bytes_of(operand: Operand) -> Array:
    """Return the bytes of a buffer of host memory."""
    return np.frombuffer(operand.buffer.host_view(), np.uint8)


def outputs_of(nodes: Sequence[BoundNode]) -> list[Array]:
    """Return the results of nodes that have any."""
    return [bind_host(n.output) for n in nodes if 0 not in n.output.shape]


def restoring(outs: Sequence[Array]) -> Action:
    """Return what keeps the first results of a program, and writes them again."""
    kept: list[Array] = []

    def restore() -> None:
        if not kept:
            kept.extend(out.copy() for out in outs)
        for out, first in zip(outs, kept, strict=True):
            out[...] = first

    return restore


def share_queue(stream: BaseStream, first: BaseStream) -> BaseStream:
    """Let the commands of a stream run on the queue of another one."""
    progress, put = stream.progress, first._submit

    def submit(command: Command, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            finally:
                progress.finish_one()

        progress.enqueued += 1
        put(command, run)

    stream._submit = submit  # type: ignore[method-assign]
    return stream


def give_back_on_close(buffer: BaseBuffer, pool: list[Any]) -> BaseBuffer:
    """Let the memory of a buffer go to a pool when the buffer is closed."""
    memory, close = buffer.memory, buffer.close

    def give_back() -> None:
        if not buffer.is_closed:
            pool.append(memory)
        close()

    buffer.close = give_back  # type: ignore[method-assign]
    return buffer


def is_replayed(stream: BaseStream, graph: Any) -> bool:
    """Whether a stream enqueues a graph, and neither refuses nor captures it."""
    stream._require_usable()
    is_its_own = isinstance(graph, RecordedGraph) and graph.stream is stream
    return is_its_own and not stream.sink.is_capturing


def streams_beside(stream: BaseStream) -> list[BaseStream]:
    """Return all streams of a stream's device, the stream among them."""
    device: Any = stream.device
    return list(device._streams)
