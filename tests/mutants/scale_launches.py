"""LCH, CAP: programs that are right while they are small and few."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from time import sleep
from typing import Any

import numpy as np

from ggsched.backend.arrays import bind_host
from ggsched.backend.base import BaseDevice, BaseProgram, BaseStream
from ggsched.backend.capture import DeviceGraph
from ggsched.backend.list_capture import RecordedCapture
from ggsched.backend.program import BoundNode, Operand
from ggsched.backend.protocols import Stream
from ggsched.errors import UsageError
from ggsched.ir.dtype import F32
from tests.mutants.baselines import CPU
from tests.mutants.mutant import breaks
from tests.mutants.mutate_calls import Action, Around, MutatedCalls, bytes_of, nothing, outputs_of

KIB64 = 1 << 16

# --- LCH-1, LCH-2 -----------------------------------------------------------------------------


@breaks("LCH-1", "Of a result, the elements behind the first 65,535 are not written.", CPU)
class ResultsOf16Bits(MutatedCalls):
    """The index of an element has sixteen bits."""

    def compile(self, nodes: Sequence[BoundNode], stream: Stream) -> BaseProgram:
        program = super().compile(nodes, stream)
        outs = [o for o in outputs_of(nodes) if o.size > KIB64 - 1 and o.flags.c_contiguous]
        if program.body is not None and outs:
            rests = [o.reshape(-1)[KIB64 - 1 :] for o in outs]
            kept = [r.copy() for r in rests]

            def save() -> None:
                for k, r in zip(kept, rests, strict=True):
                    k[...] = r

            def put_back() -> None:
                for k, r in zip(kept, rests, strict=True):
                    r[...] = k

            program.body = Around(program.body, save, put_back)
        return program


@breaks("LCH-1", "Of a program, the nodes behind the first 255 are dropped.", CPU)
class ProgramsOf255Nodes(BaseDevice):
    """The number of nodes has eight bits."""

    def compile(self, nodes: Sequence[BoundNode], stream: Stream) -> BaseProgram:
        super().compile(nodes, stream).close()
        return super().compile(nodes[:255], stream)


@breaks("LCH-1", "From the 65th open program on, a program runs another one.", CPU)
class CacheOf64Programs(BaseDevice):
    """A table of 64 places, whose numbers wrap."""

    def compile(self, nodes: Sequence[BoundNode], stream: Stream) -> BaseProgram:
        program = super().compile(nodes, stream)
        table: list[BaseProgram] = self.__dict__.setdefault("table", [])
        table[:] = [p for p in table if p.body is not None]
        table.append(program)
        if len(table) > 64:
            program.body = table[-65].body
        return program


@breaks("LCH-2", "A launch clears the end of an operand of 64 KiB and more.", CPU)
class LargeOperandsAreUsedUp(MutatedCalls):
    """It is loaded by a transfer that moves."""

    def after(self, nodes: Sequence[BoundNode], stream: Stream) -> Action:
        node = nodes[-1]
        out = bind_host(node.output) if 0 not in node.output.shape else None
        large = [bind_host(o) for o in node.inputs if o.nbytes >= KIB64]
        apart = [
            a
            for a in large
            if out is not None and a.flags.writeable and not np.may_share_memory(a, out)
        ]

        def clear() -> None:
            for a in apart:
                a[(-1,) * a.ndim] = 0

        return clear


# --- LCH-3 ------------------------------------------------------------------------------------


class _Again(MutatedCalls):
    """Computes some nodes once more, in another way."""

    ops: tuple[str, ...] = ()

    def after(self, nodes: Sequence[BoundNode], stream: Stream) -> Action:
        """Compute them again."""
        found = [n for n in nodes if n.op in self.ops and 0 not in n.output.shape]
        if not found:
            return nothing
        if any(n.inputs[0] == n.output for n in found):
            return nothing  # what it read is gone

        def again() -> None:
            for n in found:
                self.again(n)

        return again

    def again(self, node: BoundNode) -> None:
        """Compute one."""
        raise NotImplementedError


@breaks("LCH-3", "A product adds up the first 1024 terms.", CPU)
class LongSumsAreCut(_Again):
    """One thread block for each element, and one term for each thread."""

    ops = ("mul_mat",)

    def again(self, node: BoundNode) -> None:
        weight = node.inputs[0]
        if weight.dtype is F32 and weight.shape[-1] > 1024 and len(weight.shape) == 2:
            a, b, out = (bind_host(o) for o in (*node.inputs, node.output))
            out[...] = b[..., :1024] @ a[:, :1024].T


@breaks("LCH-3", "The sum of a row of more than 1024 elements is that of the first 1024.", CPU)
class LongRowsAreCut(_Again):
    """The same for reductions."""

    ops = ("sum_rows",)

    def again(self, node: BoundNode) -> None:
        if node.inputs[0].shape[-1] > 1024:
            x = bind_host(node.inputs[0])[..., :1024]
            np.sum(x, -1, keepdims=True, out=bind_host(node.output))


@breaks("LCH-3", "Of more than 512 elements in a row, the first 512 are sorted.", CPU)
class LongRowsAreSortedInPart(_Again):
    """A sorting network of that size."""

    ops = ("argsort",)

    def again(self, node: BoundNode) -> None:
        if node.output.shape[-1] > 512:
            bind_host(node.output)[..., 512:] = np.arange(512, node.output.shape[-1])


@breaks("LCH-3", "Row numbers are taken in eight bits.", CPU)
class RowNumbersOf8Bits(_Again):
    """Row 256 is row 0."""

    ops = ("get_rows",)

    def again(self, node: BoundNode) -> None:
        if node.inputs[0].dtype is F32 and len(node.inputs[0].shape) == 2:
            table, ids, out = (bind_host(o) for o in (*node.inputs, node.output))
            out[...] = table[ids % 256]


# --- LCH-5, LCH-7 -----------------------------------------------------------------------------


@breaks("LCH-5", "Large results go through scratch memory that all streams share.", CPU)
class LargeScratchIsShared(MutatedCalls):
    """There is one large block, and nobody asks whether it is in use."""

    def after(self, nodes: Sequence[BoundNode], stream: Stream) -> Action:
        outs = [o for o in outputs_of(nodes) if o.nbytes >= KIB64 // 2 and o.dtype == np.float32]
        room: list[np.ndarray] = self.__dict__.setdefault("room", [])

        def through() -> None:
            for out in outs:
                if not room or room[0].size < out.size:
                    room[:] = [np.zeros(out.size, np.float32)]
                block = room[0][: out.size].reshape(out.shape)
                block[...] = out
                sleep(1e-3)
                out[...] = block

        return through


def _copy_of(device: BaseDevice, operand: Operand) -> Operand:
    room = device.allocate(operand.nbytes)
    there = bytes_of(operand)[operand.offset : operand.offset + operand.nbytes]
    np.frombuffer(room.host_view(), np.uint8)[:] = there
    return replace(operand, buffer=room, offset=0)


@breaks("LCH-7", "Constants of 64 KiB and more are packed when they are compiled.", CPU)
class LargeConstantsAreCopied(BaseDevice):
    """It pays for large ones."""

    def compile(self, nodes: Sequence[BoundNode], stream: Stream) -> BaseProgram:
        def copied(o: Operand) -> Operand:
            return _copy_of(self, o) if o.is_constant and o.nbytes >= KIB64 else o

        changed = [replace(n, inputs=tuple(map(copied, n.inputs))) for n in nodes]
        return super().compile(changed, stream)


@breaks("LCH-7", "Constants of a group are packed when it is compiled.", CPU)
class GroupConstantsAreCopied(BaseDevice):
    """The fused kernel has a layout of its own."""

    def compile(self, nodes: Sequence[BoundNode], stream: Stream) -> BaseProgram:
        def copied(o: Operand) -> Operand:
            return _copy_of(self, o) if o.is_constant and o.nbytes else o

        changed = [
            replace(n, inputs=tuple(map(copied, n.inputs))) if n.group is not None else n
            for n in nodes
        ]
        return super().compile(changed, stream)


# --- CAP --------------------------------------------------------------------------------------


@breaks("CAP-1", "Of a capture, the commands behind the first 127 are dropped.", CPU)
class LongGraphsAreCut(BaseDevice):
    """A list with places for 127."""

    def begin_capture(self, streams: Sequence[Stream]) -> RecordedCapture:
        capture = super().begin_capture(streams)
        add = capture.add

        def some(stream: Any, command: Any, work: Callable[[], None]) -> None:
            if len(capture._calls) < 127:
                add(stream, command, work)

        capture.add = some  # type: ignore[method-assign]
        return capture


@breaks("CAP-1", "Every sixteenth replay of a graph is lost.", CPU)
class SixteenthReplayIsLost(BaseStream):
    """A ring of launches that is off by one."""

    def replay(self, graph: DeviceGraph) -> None:
        count = self.__dict__["replays"] = int(self.__dict__.get("replays", 0)) + 1
        if count % 16:
            super().replay(graph)
        else:
            self._require_usable()


# --- ranks ------------------------------------------------------------------------------------


@breaks("LCH-3", "A factor with one row in the middle of four axes is taken for a whole one.", CPU)
class MiddleAxisIsNotRepeated(_Again):
    """Its strides are those of a contiguous operand."""

    ops = ("mul",)

    def again(self, node: BoundNode) -> None:
        x, y, out = (bind_host(o) for o in (*node.inputs, node.output))
        if y.ndim == 4 and y.shape[1] > 1 and y.shape[2] == 1 < x.shape[2]:
            out[...] = x * y[:, :1]


@breaks("LCH-3", "A term of lower rank is repeated along the last axis.", CPU)
class LowerRankIsAlignedLeft(_Again):
    """Axes are matched from the first one, where that is possible."""

    ops = ("add",)

    def again(self, node: BoundNode) -> None:
        x, y, out = (bind_host(o) for o in (*node.inputs, node.output))
        if y.ndim < x.ndim and y.ndim and y.shape == x.shape[: y.ndim] and x.ndim > 3:
            out[...] = x + y.reshape(*y.shape, *[1] * (x.ndim - y.ndim))


@breaks("LCH-3", "In a product of four axes, weights are repeated in turn, not in blocks.", CPU)
class WeightsAreRepeatedInTurn(_Again):
    """Heads of one key are neighbours, and were taken for a cycle."""

    ops = ("mul_mat",)

    def again(self, node: BoundNode) -> None:
        if node.inputs[0].dtype is not F32:
            return
        a, x, out = (bind_host(o) for o in (*node.inputs, node.output))
        if a.ndim == 4 and x.ndim == 4 and a.shape[0] == x.shape[0] and 1 < a.shape[1] < x.shape[1]:
            tiled = np.concatenate([a] * (x.shape[1] // a.shape[1]), 1)
            out[...] = np.matmul(x, np.swapaxes(tiled, -1, -2))


@breaks("LCH-3", "Products with a weight of lower rank than three axes of rows are refused.", CPU)
class ProductsOfManyRanksAreRefused(BaseDevice):
    """Only two or three axes were thought of."""

    def compile(self, nodes: Sequence[BoundNode], stream: Stream) -> BaseProgram:
        for n in nodes:
            if n.op == "mul_mat" and len(n.inputs[1].shape) > 3 > len(n.inputs[0].shape):
                raise UsageError("too many axes", where=n.label)
        return super().compile(nodes, stream)


@breaks("LCH-3", "NaN is lost in clamp.", CPU)
class ClampLosesNan(_Again):
    """min and max of a library that prefers numbers."""

    ops = ("clamp",)

    def again(self, node: BoundNode) -> None:
        out = bind_host(node.output)
        np.nan_to_num(out, copy=False, nan=float(np.float32(str(node.params["min"]))))


@breaks("LCH-3", "silu of numbers far below zero is NaN.", CPU)
class SiluOverflows(_Again):
    """The exponential overflows, and infinity divided by infinity is none."""

    ops = ("silu",)

    def again(self, node: BoundNode) -> None:
        x, out = bind_host(node.inputs[0]), bind_host(node.output)
        out[x < -89] = np.nan


# --- LCH-8 ------------------------------------------------------------------------------------


@breaks("LCH-8", "A row of soft_max that is -inf throughout gives zeros.", CPU)
class SoftMaxOfNothingIsZero(_Again):
    """Where the largest element begins is finite."""

    ops = ("soft_max",)

    def again(self, node: BoundNode) -> None:
        x, out = bind_host(node.inputs[0]), bind_host(node.output)
        if len(node.inputs) == 1:
            out[(x == -np.inf).all(-1)] = 0


@breaks("LCH-8", "Attention of a query with NaN gives zeros.", CPU)
class AttentionHidesNan(_Again):
    """A sum that is not positive is taken for one of nothing."""

    ops = ("attention",)

    def again(self, node: BoundNode) -> None:
        np.nan_to_num(bind_host(node.output), copy=False)


@breaks("LCH-8", "NaN is the largest element of top_k.", CPU)
class NanIsTheLargest(_Again):
    """Bits are compared as integers."""

    ops = ("top_k",)

    def again(self, node: BoundNode) -> None:
        x, out = bind_host(node.inputs[0]), bind_host(node.output)
        keys = np.where(np.isnan(x), -np.inf, -x)
        out[...] = np.argsort(keys, -1, "stable")[..., : out.shape[-1]]


@breaks("LCH-8", "Quotients of integers by 0 are -1.", CPU)
class QuotientsByZeroAreOnes(_Again):
    """What some processors give."""

    ops = ("nd.div",)

    def again(self, node: BoundNode) -> None:
        divisor, out = bind_host(node.inputs[1]), bind_host(node.output)
        if out.dtype.kind == "i":
            out[np.broadcast_to(divisor == 0, out.shape)] = -1
