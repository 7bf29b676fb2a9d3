"""Programs of a device of host memory that do a little more than they should."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ggsched.backend.arrays import Array, bind_host
from ggsched.backend.base import BaseDevice, BaseProgram, BaseStream
from ggsched.backend.program import BoundNode, Operand
from ggsched.backend.program_body import Body
from ggsched.backend.protocols import Stream
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


def nothing() -> None:
    """Do nothing."""


def bytes_of(operand: Operand) -> Array:
    """Return the bytes of a buffer of host memory."""
    return np.frombuffer(operand.buffer.host_view(), np.uint8)


def outputs_of(nodes: Sequence[BoundNode]) -> list[Array]:
    """Return the results of nodes that have any."""
    return [bind_host(n.output) for n in nodes if 0 not in n.output.shape]


def streams_beside(stream: BaseStream) -> list[BaseStream]:
    """Return all streams of a stream's device, the stream among them."""
    device: Any = stream.device
    return list(device._streams)
