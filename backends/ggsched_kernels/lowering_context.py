"""One node while it is being lowered: collects calls and scratch memory."""

from dataclasses import replace
from math import prod
from typing import Final, cast

from ggsched.backend.program import BoundNode, Operand
from ggsched.ir.dtype import DType
from ggsched.ir.tensor import contiguous_strides
from ggsched_kernels.calls import (
    MAX_PARTS,
    SCRATCH,
    Arg,
    KernelCall,
    Launch,
    StreamCall,
    TuningProfile,
    Window,
    i32,
    merged,
    window,
)
from ggsched_kernels.retained import Retained

ALIGNMENT: Final = 128  # of pieces of scratch memory
SPAN_UNIT: Final = 32  # spans are cut at whole blocks


class LoweringContext:
    """A node and the calls that it has become so far.

    Args:
        profile: How kernels are cut for the device.
        retained: What calls of earlier nodes of the program have prepared.
    """

    def __init__(
        self, node: BoundNode, profile: TuningProfile, retained: Retained | None = None
    ) -> None:
        self.node = node
        self.profile = profile
        self.retained = Retained() if retained is None else retained
        self.calls: list[KernelCall | StreamCall] = []
        self.scratch_nbytes = 0

    def number(self, name: str) -> float:
        """Return a parameter that is a number."""
        value = self.node.params[name]
        assert isinstance(value, (int, float))  # the graph was verified
        return float(value)

    def call(
        self,
        source: str,
        kernel: str,
        args: tuple[Arg, ...],
        groups: tuple[int, int, int],
        **defines: str | int,
    ) -> None:
        """Add a call.

        ``lanes`` in ``defines`` replaces the profile's; ``helpers`` are lanes that a group has
        beyond them; ``LOCAL_NBYTES`` is local memory that the kernel does not declare; ``cluster``
        is how many groups along the first axis reach each other's.
        """
        lanes = int(defines.pop("lanes", self.profile.lanes))
        group = lanes + int(defines.pop("helpers", 0))
        cluster = int(defines.pop("cluster", 1))
        every = {"VW": self.profile.vector, "LANES": lanes, **defines}
        pairs = tuple(sorted((name, str(value)) for name, value in every.items()))
        label, local = self.node.label, int(defines.get("LOCAL_NBYTES", 0))
        call = KernelCall(source, pairs, kernel, args, groups, group, label, local, cluster)
        self.calls.append(call)

    def launched(self, launch: Launch, early_reads: tuple[Operand, ...] = ()) -> None:
        """Say when the last call may be launched, and what it can read early."""
        call = self.calls[-1]
        assert isinstance(call, KernelCall)
        self.calls[-1] = replace(call, launch=launch, early_reads=early_reads)

    def scratch(self, nbytes: int) -> int:
        """Reserve scratch memory for this node, return its offset."""
        offset = self.scratch_nbytes
        self.scratch_nbytes += -(-nbytes // ALIGNMENT) * ALIGNMENT
        return offset

    def parts(self, rows: int, extent: int) -> tuple[tuple[int, int, int], bytes]:
        """Cut rows into spans: the grid, and the span as an argument."""
        span = max(self.profile.span, -(-extent // MAX_PARTS // SPAN_UNIT) * SPAN_UNIT)
        return (rows, max(1, -(-extent // span)), 1), i32(span)

    def copy(self, x: Window, y: Window, dtype: DType, kernel: str) -> None:
        """Copy between windows of one shape, converting from ``dtype``."""
        if not dtype.is_quantized:
            x, y = merged([x, y])
        groups, span = self.parts(x.rows, x.shape[-1])
        self.call("copy", kernel, (*x.args, *y.args, span), groups, **weight_define(dtype))

    def contiguous(self, operand: Operand, *, copies: bool = False) -> Window:
        """Return f32 windows whose rows have no gaps, from a copy in scratch if need be.

        ``copies`` asks for a copy, in which nothing has gaps, whatever the rows are.
        """
        has_rows = operand.shape[-1] == 1 or operand.strides[-1] == operand.dtype.block_nbytes
        if has_rows and not copies:
            return window(operand)
        nbytes = prod(operand.shape) * operand.dtype.block_nbytes
        copy = Operand(
            operand.buffer,
            self.scratch(nbytes),
            nbytes,
            operand.dtype,
            operand.shape,
            contiguous_strides(operand.dtype, operand.shape),
        )
        plain = window(copy)
        target = Window(SCRATCH, plain.offset, plain.shape, plain.strides)
        self.copy(window(operand), target, operand.dtype, "copy_f32")
        return target


def weight_define(dtype: DType) -> dict[str, str | int]:
    """Return the definition that makes ``weights.h`` read a type; i32 is moved as f32."""
    name = "f32" if dtype.name == "i32" else dtype.name
    return {f"W_{name.upper()}": 1}


def experts_of(node: BoundNode) -> tuple[int, int, int]:
    """Return the first row that the table of a node with ids has, of how many, and its rows."""
    count = node.inputs[0 if node.op == "mul_mat_id" else 1].shape[0]
    first, of = (int(cast(int, node.params.get(name, 0))) for name in ("first", "of"))
    return first, of or count, count
