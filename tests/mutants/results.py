"""LCH-3, LCH-4, LCH-5: programs whose results are wrong, differ, or are somebody else's."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ggsched.backend.arrays import Array, bind_host
from ggsched.backend.base import BaseDevice, BaseProgram, BaseStream
from ggsched.backend.program import BoundNode
from ggsched.backend.protocols import Program, Stream
from ggsched.errors import UsageError
from ggsched.ir.dtype import F32
from ggsched_testing.sim import SimDevice, SimProgram
from ggsched_testing.sim.engine import Step
from ggsched_testing.sim.kernels import Ahead, NodeWork
from tests.mutants.baselines import CPU, SIM
from tests.mutants.mutant import breaks
from tests.mutants.mutate_calls import Action, MutatedCalls, nothing, outputs_of

# --- LCH-3 ------------------------------------------------------------------------------------


@breaks("LCH-3", "gelu is off by a thousandth.", CPU)
class OpIsInexact(MutatedCalls):
    """A table with too few entries."""

    def after(self, nodes: Sequence[BoundNode], stream: Stream) -> Action:
        outs = outputs_of([n for n in nodes if n.op == "gelu"])
        return lambda: [np.add(out, np.float32(1e-3), out) for out in outs]


@breaks("LCH-3", "soft_max of strided operands is declared and cannot be compiled.", CPU)
class DeclaredOpIsRefused(BaseDevice):
    """The facts speak of the easy case."""

    def compile(self, nodes: Sequence[BoundNode], stream: Stream) -> BaseProgram:
        for node in nodes:
            if node.op == "soft_max" and not bind_host(node.inputs[0]).flags.c_contiguous:
                raise UsageError("strided operands are not supported", where=node.label)
        return super().compile(nodes, stream)


@breaks("LCH-3", "Equal elements are sorted in any order.", CPU)
class TiesInAnyOrder(MutatedCalls):
    """top_k returns the larger index of two equal elements."""

    def after(self, nodes: Sequence[BoundNode], stream: Stream) -> Action:
        found = [n for n in nodes if n.op == "argsort" and not n.params["descending"]]
        pairs = [(bind_host(n.inputs[0]), bind_host(n.output)) for n in found]

        def sort() -> None:
            for x, out in pairs:
                if x.size:
                    last = x.shape[-1] - 1
                    out[...] = last - np.argsort(np.flip(x, -1), -1, "stable")

        return sort


def _elsewhere(op: str, nodes: Sequence[BoundNode]) -> list[tuple[list[Array], int]]:
    """Return operands and result of nodes whose tables have some rows, and the first of these."""
    found = [n for n in nodes if n.op == op and n.params["of"]]
    return [
        ([bind_host(o) for o in (*n.inputs, n.output)], int(str(n.params["first"]))) for n in found
    ]


@breaks("LCH-3", "Rows of experts that are elsewhere are not written.", CPU)
class RowsOfOthersAreLeft(MutatedCalls):
    """What was there before stays there."""

    def after(self, nodes: Sequence[BoundNode], stream: Stream) -> Action:
        def spoil() -> None:
            for (w, _, ids, out), first in _elsewhere("mul_mat_id", nodes):
                out[(ids < first) | (ids >= first + len(w))] = 1.0

        return spoil


@breaks("LCH-3", "The nearest row is added where that of the id is elsewhere.", CPU)
class NearestBiasIsAdded(MutatedCalls):
    """The id is clamped."""

    def after(self, nodes: Sequence[BoundNode], stream: Stream) -> Action:
        def spoil() -> None:
            for (_, bias, ids, out), first in _elsewhere("add_id", nodes):
                out[ids < first] += bias[0]

        return spoil


@breaks("LCH-3", "Ids out of range are clamped.", CPU)
class BadIdsAreClamped(BaseDevice):
    """The launch goes on with another row."""

    def compile(self, nodes: Sequence[BoundNode], stream: Stream) -> BaseProgram:
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


@breaks("LCH-3", "A sum that is not finite is an error.", CPU)
class InfinityIsAFault(MutatedCalls):
    """An assertion from the days of debugging."""

    def after(self, nodes: Sequence[BoundNode], stream: Stream) -> Action:
        outs = outputs_of([n for n in nodes if n.op == "add"])

        def look() -> None:
            if not all(np.isfinite(out).all() for out in outs):
                raise FloatingPointError("a sum is not finite")

        return look


# --- LCH-4 ------------------------------------------------------------------------------------


def _nudge(outs: Sequence[Array]) -> None:
    for out in outs:
        if out.dtype == np.float32:
            np.nextafter(out, np.float32(np.inf), out)


@breaks("LCH-4", "Every other run differs in the last bit.", CPU)
class EveryOtherRunDiffers(MutatedCalls):
    """Atomic additions come in any order."""

    def after(self, nodes: Sequence[BoundNode], stream: Stream) -> Action:
        outs, kept = outputs_of(nodes), self.__dict__

        def nudge() -> None:
            kept["runs"] = int(kept.get("runs", 0)) + 1
            if kept["runs"] % 2:
                _nudge(outs)

        return nudge


@breaks("LCH-4", "The last bit depends on the stream.", CPU)
class DependsOnTheStream(MutatedCalls):
    """Each stream has another number of threads."""

    def after(self, nodes: Sequence[BoundNode], stream: Stream) -> Action:
        odd = isinstance(stream, BaseStream) and stream.progress.where.endswith(("1", "3"))
        return (lambda: _nudge(outputs_of(nodes))) if odd else nothing


@breaks("LCH-4", "Determinism is declared, and sums are added up in any order.", SIM)
class DeterminismClaimed(SimDevice):
    """A capability that lies."""

    def compile(self, nodes: Sequence[BoundNode], stream: Stream) -> SimProgram:
        program = super().compile(nodes, stream)
        for work in program._work:
            if isinstance(work, NodeWork):
                work._wobbles = work.node.output.dtype is F32 and work.node.op == "mul_mat"
        return program


# --- LCH-5 ------------------------------------------------------------------------------------


@breaks("LCH-5", "Scratch memory is shared by the streams of a device.", SIM)
class ScratchIsShared(SimProgram):
    """What one launch has half done, another one overwrites."""

    def steps(self, ahead: Ahead) -> list[Step]:
        room: dict[int, Any] = self.stream.device.__dict__.setdefault("scratch", {})
        steps: list[Step] = []
        for work in self._work:
            begin, end = work.steps(ahead)

            def compute(begin: Step = begin, work: Any = work) -> None:
                begin()
                room[work._result.nbytes] = work._result

            def write(end: Step = end, work: Any = work) -> None:
                work._result = room[work._result.nbytes]
                end()

            steps += [compute, write]
        return steps or super().steps(ahead)


@breaks("LCH-5", "A program runs on any stream.", CPU)
class ProgramOfAnyStream(BaseStream):
    """With the handles of the one that it was compiled for."""

    def launch(self, program: Program) -> None:
        if isinstance(program, BaseProgram) and program.stream is not self and program.body:
            self._require_usable()
            self._submit(program.body, program.body.run)
            return
        super().launch(program)


@breaks("LCH-5", "Compiling takes away the scratch of the stream's older programs.", CPU)
class OlderProgramsAreLost(BaseDevice):
    """Their results are what happens to be there."""

    def compile(self, nodes: Sequence[BoundNode], stream: Stream) -> BaseProgram:
        program = super().compile(nodes, stream)
        older = vars(stream).get("older")
        if older is not None:
            older.run = nothing
        vars(stream)["older"] = program.body
        return program
