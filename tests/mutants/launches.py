"""LCH-1, LCH-2: programs that write what they should not, or leave out what they should."""

from collections.abc import Sequence

import numpy as np

from ggsched.backend.arrays import Array, bind_host
from ggsched.backend.base import BaseDevice, BaseProgram
from ggsched.backend.program import BoundNode
from ggsched.backend.program_body import Body
from ggsched.backend.protocols import Stream
from tests.mutants.baselines import CPU
from tests.mutants.mutant import breaks
from tests.mutants.mutate_calls import (
    Action,
    Around,
    MutatedCalls,
    bytes_of,
    nothing,
    outputs_of,
    restoring,
)

# --- LCH-1 ------------------------------------------------------------------------------------


@breaks("LCH-1", "A launch writes the byte behind its result.", CPU)
class WritesBesideTheResult(MutatedCalls):
    """A vector store without a tail."""

    def after(self, nodes: Sequence[BoundNode], stream: Stream) -> Action:
        out = nodes[-1].output
        end, memory = out.offset + out.nbytes, bytes_of(out)

        def write() -> None:
            if end < memory.size and memory.flags.writeable:
                memory[end] ^= 0xFF

        return write


@breaks("LCH-1", "The last element of a result is not written.", CPU)
class LastElementIsMissing(MutatedCalls):
    """Off by one."""

    def compile(self, nodes: Sequence[BoundNode], stream: Stream) -> BaseProgram:
        program = super().compile(nodes, stream)
        body, outs = program.body, outputs_of(nodes)
        if body is not None and outs and outs[-1].size > 1:
            last, kept = outs[-1], [outs[-1].reshape(-1)[-1:].copy()]

            def save() -> None:
                kept[0] = last[(-1,) * last.ndim].copy()

            def put_back() -> None:
                last[(-1,) * last.ndim] = kept[0]

            program.body = Around(body, save, put_back)
        return program


@breaks("LCH-1", "A strided result is written as if it had no gaps.", CPU)
class GapsAreWritten(MutatedCalls):
    """What lies between its rows becomes zero."""

    def after(self, nodes: Sequence[BoundNode], stream: Stream) -> Action:
        out = nodes[-1].output
        view, memory = bind_host(out), bytes_of(out)[out.offset : out.offset + out.nbytes]
        if not view.size or view.flags.c_contiguous:
            return nothing

        def clear() -> None:
            content = view.copy()
            memory.fill(0)
            view[...] = content

        return clear


class _Shared:
    """A body that all programs of a stream share."""

    def __init__(self, body: Body) -> None:
        self.body = body

    def run(self) -> None:
        """Run what was put there last."""
        self.body.run()

    def failed_node(self, error: BaseException) -> str:
        """Return the label of the node that failed."""
        return self.body.failed_node(error)


@breaks("LCH-1", "Every launch has the operands of the program that was compiled last.", CPU)
class OneArgumentBlock(BaseDevice):
    """Programs of a stream share one block of arguments."""

    def compile(self, nodes: Sequence[BoundNode], stream: Stream) -> BaseProgram:
        program = super().compile(nodes, stream)
        if program.body is not None and nodes:
            shared = vars(stream).setdefault("block", _Shared(program.body))
            shared.body, program.body = program.body, shared
        return program


@breaks("LCH-1", "A launch that is enqueued does nothing once its program is closed.", CPU)
class ClosedProgramDoesNotRun(BaseProgram):
    """The launch has only a reference to the program."""

    def begin(self) -> None:
        body = self.body
        if body is not None:
            run = body.run
            setattr(body, "run", lambda: run() if self.body is not None else None)  # noqa: B010


@breaks("LCH-1", "A program that is launched again gives its first result again.", CPU)
class FirstResultAgain(MutatedCalls):
    """It keeps what it computed."""

    def after(self, nodes: Sequence[BoundNode], stream: Stream) -> Action:
        return restoring(outputs_of(nodes))


# --- LCH-2 ------------------------------------------------------------------------------------


def _inputs_apart(node: BoundNode) -> list[Array]:
    """Return the operands that share no byte with the result."""
    out = bind_host(node.output)
    arrays = [bind_host(o) for o in node.inputs if 0 not in o.shape]
    return [a for a in arrays if a.flags.writeable and not np.may_share_memory(a, out)]


@breaks("LCH-2", "A launch clears its first operand.", CPU)
class FirstOperandIsCleared(MutatedCalls):
    """It uses it as scratch."""

    def after(self, nodes: Sequence[BoundNode], stream: Stream) -> Action:
        arrays = _inputs_apart(nodes[-1])[:1]

        def clear() -> None:
            for a in arrays:
                a.fill(0)

        return clear


@breaks("LCH-2", "A launch changes the sign of its last operand and back, not quite.", CPU)
class LastOperandIsNudged(MutatedCalls):
    """A trick that loses one bit in one element."""

    def after(self, nodes: Sequence[BoundNode], stream: Stream) -> Action:
        arrays = _inputs_apart(nodes[-1])[-1:]

        def nudge() -> None:
            for a in arrays:
                first = a[(0,) * a.ndim]
                a[(0,) * a.ndim] = 1 if first == 0 else first * 0

        return nudge


@breaks("LCH-2", "A result in the place of an operand is cleared before that is read.", CPU)
class InPlaceClearsFirst(MutatedCalls):
    """It initialises its result."""

    def before(self, nodes: Sequence[BoundNode], stream: Stream) -> Action:
        node = nodes[0]
        if any(o == node.output for o in node.inputs):
            return lambda: bind_host(node.output).fill(0)
        return nothing
