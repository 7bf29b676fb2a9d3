"""LCH: programs that write, read, or remember what they should not."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ggsched.backend.arrays import Array, bind_host
from ggsched.backend.base import BaseDevice, BaseProgram, BaseStream
from ggsched.backend.base_stream import Body
from ggsched.backend.program import BoundNode, Operand
from ggsched.backend.protocols import Program, Stream
from ggsched.errors import UsageError
from ggsched.ir.dtype import F32
from ggsched.testing.broken.mutant import breaks
from ggsched.testing.broken.twins import CPU, SIM
from ggsched.testing.sim import SimDevice, SimProgram
from ggsched.testing.sim.engine import Step

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

    def blame(self, error: BaseException) -> str:
        """Return the label of the node that failed."""
        return self.body.blame(error)


class _Spoiling(BaseDevice):
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
        return _nothing

    def after(self, nodes: Sequence[BoundNode], stream: Stream) -> Action:
        """Return what is done after a run."""
        return _nothing


def _nothing() -> None:
    """Do nothing."""


def _bytes(operand: Operand) -> Array:
    """Return the bytes of a buffer of host memory."""
    return np.frombuffer(operand.buffer.host_view(), np.uint8)


def _outputs(nodes: Sequence[BoundNode]) -> list[Array]:
    return [bind_host(n.output) for n in nodes if 0 not in n.output.shape]


# --- LCH-1 ------------------------------------------------------------------------------------


@breaks("LCH-1", "A launch writes the byte behind its result.", CPU)
class WritesBesideTheResult(_Spoiling):
    """A vector store without a tail."""

    def after(self, nodes: Sequence[BoundNode], stream: Stream) -> Action:
        """Write one byte too many, if there is room."""
        out = nodes[-1].output
        end, memory = out.offset + out.nbytes, _bytes(out)

        def write() -> None:
            if end < memory.size and memory.flags.writeable:
                memory[end] ^= 0xFF

        return write


@breaks("LCH-1", "The last element of a result is not written.", CPU)
class LastElementIsMissing(_Spoiling):
    """Off by one."""

    def compile(self, nodes: Sequence[BoundNode], stream: Stream) -> BaseProgram:
        """Put the last element back after each run."""
        program = super().compile(nodes, stream)
        body, outs = program.body, _outputs(nodes)
        if body is not None and outs and outs[-1].size > 1:
            last, kept = outs[-1], [outs[-1].reshape(-1)[-1:].copy()]

            def save() -> None:
                kept[0] = last[(-1,) * last.ndim].copy()

            def put_back() -> None:
                last[(-1,) * last.ndim] = kept[0]

            program.body = Around(body, save, put_back)
        return program


@breaks("LCH-1", "A strided result is written as if it had no gaps.", CPU)
class GapsAreWritten(_Spoiling):
    """What lies between its rows becomes zero."""

    def after(self, nodes: Sequence[BoundNode], stream: Stream) -> Action:
        """Clear the gaps."""
        out = nodes[-1].output
        view, memory = bind_host(out), _bytes(out)[out.offset : out.offset + out.nbytes]
        if not view.size or view.flags.c_contiguous:
            return _nothing

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

    def blame(self, error: BaseException) -> str:
        """Return the label of the node that failed."""
        return self.body.blame(error)


@breaks("LCH-1", "Every launch has the operands of the program that was compiled last.", CPU)
class OneArgumentBlock(BaseDevice):
    """Programs of a stream share one block of arguments."""

    def compile(self, nodes: Sequence[BoundNode], stream: Stream) -> BaseProgram:
        """Overwrite the block."""
        program = super().compile(nodes, stream)
        if program.body is not None and nodes:
            shared = vars(stream).setdefault("block", _Shared(program.body))
            shared.body, program.body = program.body, shared
        return program


@breaks("LCH-1", "A launch that is enqueued does nothing once its program is closed.", CPU)
class ClosedProgramDoesNotRun(BaseProgram):
    """The launch has only a reference to the program."""

    def begin(self) -> None:
        """Let the body look whether the program is still there."""
        body = self.body
        if body is not None:
            run = body.run
            setattr(body, "run", lambda: run() if self.body is not None else None)  # noqa: B010


@breaks("LCH-1", "A program that is launched again gives its first result again.", CPU)
class FirstResultAgain(_Spoiling):
    """It keeps what it computed."""

    def after(self, nodes: Sequence[BoundNode], stream: Stream) -> Action:
        """Keep the results of the first run, and write them in later ones."""
        kept: list[Array] = []
        outs = _outputs(nodes)

        def restore() -> None:
            if not kept:
                kept.extend(out.copy() for out in outs)
            for out, first in zip(outs, kept, strict=True):
                out[...] = first

        return restore


# --- LCH-2 ------------------------------------------------------------------------------------


def _inputs_apart(node: BoundNode) -> list[Array]:
    """Return the operands that share no byte with the result."""
    out = bind_host(node.output)
    arrays = [bind_host(o) for o in node.inputs if 0 not in o.shape]
    return [a for a in arrays if a.flags.writeable and not np.may_share_memory(a, out)]


@breaks("LCH-2", "A launch clears its first operand.", CPU)
class FirstOperandIsCleared(_Spoiling):
    """It uses it as scratch."""

    def after(self, nodes: Sequence[BoundNode], stream: Stream) -> Action:
        """Clear it when it has been read."""
        arrays = _inputs_apart(nodes[-1])[:1]

        def clear() -> None:
            for a in arrays:
                a.fill(0)

        return clear


@breaks("LCH-2", "A launch changes the sign of its last operand and back, not quite.", CPU)
class LastOperandIsNudged(_Spoiling):
    """A trick that loses one bit in one element."""

    def after(self, nodes: Sequence[BoundNode], stream: Stream) -> Action:
        """Change one byte."""
        arrays = _inputs_apart(nodes[-1])[-1:]

        def nudge() -> None:
            for a in arrays:
                first = a[(0,) * a.ndim]
                a[(0,) * a.ndim] = 1 if first == 0 else first * 0

        return nudge


@breaks("LCH-2", "A result in the place of an operand is cleared before that is read.", CPU)
class InPlaceClearsFirst(_Spoiling):
    """It initialises its result."""

    def before(self, nodes: Sequence[BoundNode], stream: Stream) -> Action:
        """Clear results that are operands."""
        node = nodes[0]
        if any(o == node.output for o in node.inputs):
            return lambda: bind_host(node.output).fill(0)
        return _nothing


# --- LCH-3 ------------------------------------------------------------------------------------


@breaks("LCH-3", "gelu is off by a thousandth.", CPU)
class OpIsInexact(_Spoiling):
    """A table with too few entries."""

    def after(self, nodes: Sequence[BoundNode], stream: Stream) -> Action:
        """Add the error."""
        outs = _outputs([n for n in nodes if n.op == "gelu"])
        return lambda: [np.add(out, np.float32(1e-3), out) for out in outs]


@breaks("LCH-3", "soft_max of strided operands is declared and cannot be compiled.", CPU)
class DeclaredOpIsRefused(BaseDevice):
    """The facts speak of the easy case."""

    def compile(self, nodes: Sequence[BoundNode], stream: Stream) -> BaseProgram:
        """Refuse the others."""
        for node in nodes:
            if node.op == "soft_max" and not bind_host(node.inputs[0]).flags.c_contiguous:
                raise UsageError("strided operands are not supported", where=node.label)
        return super().compile(nodes, stream)


@breaks("LCH-3", "Equal elements are sorted in any order.", CPU)
class TiesInAnyOrder(_Spoiling):
    """top_k returns the larger index of two equal elements."""

    def after(self, nodes: Sequence[BoundNode], stream: Stream) -> Action:
        """Sort again, from behind."""
        found = [n for n in nodes if n.op == "argsort" and not n.params["descending"]]
        pairs = [(bind_host(n.inputs[0]), bind_host(n.output)) for n in found]

        def sort() -> None:
            for x, out in pairs:
                if x.size:
                    last = x.shape[-1] - 1
                    out[...] = last - np.argsort(np.flip(x, -1), -1, "stable")

        return sort


@breaks("LCH-3", "Ids out of range are clamped.", CPU)
class BadIdsAreClamped(BaseDevice):
    """The launch goes on with another row."""

    def compile(self, nodes: Sequence[BoundNode], stream: Stream) -> BaseProgram:
        """Let what fails do nothing."""
        program = super().compile(nodes, stream)
        body = program.body
        if body is not None and any(n.op == "get_rows" for n in nodes):
            run = body.run

            def forgive() -> None:
                try:
                    run()
                except UsageError:
                    return

            setattr(body, "run", forgive)  # noqa: B010  # of this one body
        return program


# --- LCH-4 ------------------------------------------------------------------------------------


def _nudge(outs: Sequence[Array]) -> None:
    for out in outs:
        if out.dtype == np.float32:
            np.nextafter(out, np.float32(np.inf), out)


@breaks("LCH-4", "Every other run differs in the last bit.", CPU)
class EveryOtherRunDiffers(_Spoiling):
    """Atomic additions come in any order."""

    def after(self, nodes: Sequence[BoundNode], stream: Stream) -> Action:
        """Count runs."""
        outs, kept = _outputs(nodes), self.__dict__

        def nudge() -> None:
            kept["runs"] = int(kept.get("runs", 0)) + 1
            if kept["runs"] % 2:
                _nudge(outs)

        return nudge


@breaks("LCH-4", "The last bit depends on the stream.", CPU)
class DependsOnTheStream(_Spoiling):
    """Each stream has another number of threads."""

    def after(self, nodes: Sequence[BoundNode], stream: Stream) -> Action:
        """Change the results of every second stream."""
        odd = isinstance(stream, BaseStream) and stream.progress.where.endswith(("1", "3"))
        return (lambda: _nudge(_outputs(nodes))) if odd else _nothing


@breaks("LCH-4", "Determinism is declared, and sums are added up in any order.", SIM)
class DeterminismClaimed(SimDevice):
    """A capability that lies."""

    def compile(self, nodes: Sequence[BoundNode], stream: Stream) -> SimProgram:
        """Compile as for a device that does not declare it."""
        program = super().compile(nodes, stream)
        for work in program._work:
            work._wobbles = work.node.output.dtype is F32 and work.node.op == "mul_mat"
        return program


# --- LCH-5 ------------------------------------------------------------------------------------


@breaks("LCH-5", "Scratch memory is shared by the streams of a device.", SIM)
class ScratchIsShared(SimProgram):
    """What one launch has half done, another one overwrites."""

    def steps(self) -> list[Step]:
        """Keep intermediate results in one place for all streams."""
        room: dict[int, Any] = self.stream.device.__dict__.setdefault("scratch", {})
        steps: list[Step] = []
        for work in self._work:
            begin, end = work.steps()

            def compute(begin: Step = begin, work: Any = work) -> None:
                begin()
                room[work._result.nbytes] = work._result

            def write(end: Step = end, work: Any = work) -> None:
                work._result = room[work._result.nbytes]
                end()

            steps += [compute, write]
        return steps or super().steps()


@breaks("LCH-5", "A program runs on any stream.", CPU)
class ProgramOfAnyStream(BaseStream):
    """With the handles of the one that it was compiled for."""

    def launch(self, program: Program) -> None:
        """Take it for one's own."""
        if isinstance(program, BaseProgram) and program.stream is not self and program.body:
            self._require_usable()
            self._submit(program.body, program.body.run)
            return
        super().launch(program)


@breaks("LCH-5", "Compiling takes away the scratch of the stream's older programs.", CPU)
class OlderProgramsAreLost(BaseDevice):
    """Their results are what happens to be there."""

    def compile(self, nodes: Sequence[BoundNode], stream: Stream) -> BaseProgram:
        """Let the program before this one do nothing."""
        program = super().compile(nodes, stream)
        older = vars(stream).get("older")
        if older is not None:
            older.run = _nothing
        vars(stream)["older"] = program.body
        return program
