"""Kernel calls as data, and what every lowering needs to make them."""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from math import prod
from typing import Any, Final

from ggsched.backend.device_array import DeviceArray, device_array
from ggsched.backend.precision import Activations, Precision
from ggsched.backend.program import Operand, OperandMemory
from ggsched.errors import UsageError
from ggsched.ir.dtype import DType
from ggsched.ir.ops import Param

AXES = 4
MAX_PARTS = 65535  # CUDA's limit for the second axis of a grid
JOINED_NBYTES = 1600  # arguments of a kernel that does the work of several nodes, at most
MAX_JOBS = 3  # rotations and copies that one kernel does; JOB_ of rope_kv_write.cl
MAX_PEERS = 3  # GPUs whose kernels one kernel meets; PEERS of rendezvous.h


class ArgPlaceholder(Enum):
    """Arguments that the device provides."""

    SCRATCH = "scratch"  # memory of the program for results between two of its calls (LCH-5)
    FAULT = "fault"  # three i32 of the stream, zeros until a kernel meets an id out of range
    CODE = "code"  # the i32 that such a kernel writes there before the id and the number of rows
    ROUTE = "route"  # memory of the program for a prepared route of experts (retained.py)
    FACTOR = "factor"  # memory of the program for converted rows of a product (retained.py)


SCRATCH: Final = ArgPlaceholder.SCRATCH
FAULT: Final = ArgPlaceholder.FAULT
CODE: Final = ArgPlaceholder.CODE
ROUTE: Final = ArgPlaceholder.ROUTE
FACTOR: Final = ArgPlaceholder.FACTOR


@dataclass(frozen=True, slots=True)
class Constant:
    """Bytes that the device keeps in memory of its own as long as the program lives."""

    content: bytes


@dataclass(frozen=True, slots=True)
class CodeOf:
    """What CODE is for another node than the call's, where a call does the work of several.

    Attributes:
        label: The node, for messages.
    """

    label: str


Arg = OperandMemory | bytes | Constant | CodeOf | ArgPlaceholder
"""A kernel argument: memory from its start, or a value in its bytes."""


@dataclass(frozen=True, slots=True)
class MirrorOutput:
    """A result that a kernel can write to other places too.

    Attributes:
        buffer: Where the result is.
        offset: Bytes to it.
        nbytes: Its length; it has no gaps.
        arg: Which argument of the call is the address of the first other place; 0 for none.
        places: How many other places there can be, one argument for each: one in host memory, or
            several in memory of GPUs.
    """

    buffer: OperandMemory
    offset: int
    nbytes: int
    arg: int
    places: int = 1


class Launch(Enum):
    """When a kernel may be brought onto the GPU; devices without such a choice launch in turn."""

    IN_TURN = "in turn"  # when its predecessor is complete
    # Before that. In front of its first statement it lets its successor in and waits.
    AT_HEAD = "at its head"
    # Before that. Its text says where it lets its successor in, and where it waits,
    BY_ITSELF = "by itself"
    WAITS_FIRST = "waits first"  # and it waits before it lets its successor in.


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One kernel to enqueue.

    Attributes:
        source: Name of the source that holds it.
        defines: Preprocessor definitions, sorted; source and definitions name a program.
        kernel: Name of the kernel.
        args: Arguments in order.
        groups: Extent of the grid in groups.
        lanes: Work-items of a group, all on the first axis.
        label: The node that it belongs to, for messages.
        shared_nbytes: Shared memory of a group beyond what the kernel declares; CUDA only (OpenCL
            programs declare it by the definition LOCAL_NBYTES).
        cluster: Groups along the first axis that run at the same time and reach each other's shared
            memory; a divisor of their number. CUDA only, from compute capability 9.0 on.
        also: What it can write to other places too, whose addresses are then given. CUDA only.
        launch: When it may be launched.
        early_reads: What it can read before its predecessor has ended, if that writes none of it.
        meets: The first of the arguments by which it can meet calls of up to three other GPUs: for
            each a word of its own for each group and one of the other's, then nanoseconds of
            patience; -1 for none. CUDA only.
        pushed: What takes its place, and that of calls behind it, where the rows that it adds up
            come from other GPUs. CUDA only.
        halves: The argument by which it can write its result as rows of bf16 too, with the
            definition HALVES; any memory where it does not. -1 for none. CUDA only.
        reads: What it may read; empty where memory that is not an operand's is touched too.
        writes: What it may write, of operands.
    """

    source: str
    defines: tuple[tuple[str, str], ...]
    kernel: str
    args: tuple[Arg, ...]
    groups: tuple[int, int, int]
    lanes: int
    label: str
    shared_nbytes: int = 0
    cluster: int = 1
    also: MirrorOutput | None = None
    launch: Launch = Launch.AT_HEAD
    early_reads: tuple[Operand, ...] = ()
    meets: int = -1
    pushed: "PushedRows | None" = None
    halves: int = -1
    reads: tuple[Operand, ...] = ()
    writes: tuple[Operand, ...] = ()


@dataclass(frozen=True, slots=True)
class PushedRows:
    """A call that begins with a sum over GPUs, whose rows they have written into its GPU's memory.

    Attributes:
        covered: How many calls it takes the place of.
        parts: Memory and offset of the rows, in the order in which they are added.
        nbytes: Length of a row.
        staged: The first of the arguments by which the call meets others: the address of the rows,
            side by side in this order; that of a word, 0, at which its thread blocks count
            themselves; then as for ``meets``.
    """

    call: KernelCall
    covered: int
    parts: tuple[tuple[OperandMemory, int], ...]
    nbytes: int
    staged: int


@dataclass(frozen=True, slots=True)
class StreamCall:
    """A function that enqueues commands of its own on the stream: the kernel of a user-defined op.

    Attributes:
        function: ``function(stream, *operands, out=array, **params)``.
        places: Memory and offset of each operand, and of the result at the end.
        kinds: Type and extents of each.
        params: Parameters of the node.
        label: The node, for messages.
    """

    function: Callable[..., object]
    places: tuple[tuple[OperandMemory | ArgPlaceholder, int], ...]
    kinds: tuple[tuple[DType, tuple[int, ...]], ...]
    params: Mapping[str, Param]
    label: str

    def bound(
        self, memory_of: Callable[[OperandMemory | ArgPlaceholder], Any], stream: Any
    ) -> Callable[[Any], object]:
        """Return what enqueues the commands on the stream that it is given.

        Args:
            memory_of: Returns the library's handle of memory.
            stream: The library's stream, for arrays that name theirs.
        """
        arrays: list[DeviceArray] = []
        for (memory, offset), (dtype, shape) in zip(self.places, self.kinds, strict=True):
            arrays.append(device_array(memory_of(memory), offset, dtype, shape, stream))
        *operands, out = arrays
        return lambda queue: self.function(queue, *operands, out=out, **self.params)


@dataclass(frozen=True, slots=True)
class TuningProfile:
    """How kernels are cut for a kind of device.

    Attributes:
        vector: Floats in a vector.
        lanes: Work-items of a group.
        span: Elements of a row that one group takes; a multiple of 32.
        few_rows: Largest number of rows that a matrix-vector kernel takes.
        tile_lanes: Work-items of a group that multiplies blocks of matrices.
        tile_columns: Of these, how many lie along the rows of the weight (LX).
        lane_columns: Rows of the weight for each lane (NR).
        lane_rows: Rows of the other matrix for each lane (MR).
        tile_rows: Rows of the other matrix for a group (BM), a multiple of lane_rows * lanes / LX.
        tile_depth: Elements along the sum that a tile holds (BK), a multiple of 32.
        num_sms: Multiprocessors of a device whose lanes work in warps of 32; 0 for others, which
            do without the kernels for warps.
        local_nbytes: Local memory of a group, where ``num_sms`` says that there are warps.
        has_tma: Whether a warp can copy spans to local memory for others (capability 9.0).
        group_mma: Whether four warps can multiply together from local memory (capability 9.0 only).
        row_lanes: Most work-items of a group that reduces one row; 0: as many as others.
        activations: How tensor cores get the rows that weights of 16 bits and packed ones meet;
            ``auto``: rounded once, no more coarsely than the weight's type rounds
            (``ggsched.backend.precision``); ``f32``: in parts that keep 16 bits or more.
        reads_peers: Whether kernels access the memory of other devices of the backend.
        precision: What factors of products and convolutions of f32 may be rounded to.
        joins: Whether the shared kernels do the work of several nodes where groups are of many
            work-items; their arguments take up to ``JOINED_NBYTES``.
        matrix_units: Whether the shared kernels multiply many rows in 16 bits, where
            ``activations`` is ``auto``, by warps that multiply matrices.
        staged_nbytes: Local memory for rows of a weight and of x, with ``matrix_units``.
        merged_groups: Groups of a kernel that is several calls (``merged``); 0: there are no such
            kernels.
        merged_lanes: Work-items of these, and of groups that stream weights past one row of x.
    """

    vector: int
    lanes: int
    span: int
    few_rows: int
    tile_lanes: int
    tile_columns: int
    lane_columns: int
    lane_rows: int
    tile_rows: int
    tile_depth: int
    num_sms: int = 0
    local_nbytes: int = 0
    has_tma: bool = False
    group_mma: bool = False
    row_lanes: int = 0
    activations: Activations = "f32"
    reads_peers: bool = False
    precision: Precision = "f32"
    joins: bool = False
    matrix_units: bool = False
    staged_nbytes: int = 76 << 10
    merged_groups: int = 0
    merged_lanes: int = 1


# One work-item is a whole group and works like a plain loop; 3 x 4 sums of 8 floats fill the
# registers of AVX2, and a tile of 4 x 1024 floats half of the first cache. 129 rows: batches are
# often 128, 256 or 512, and the last block should not be left with two rows.
CPU: Final = TuningProfile(
    vector=8,
    lanes=1,
    span=4096,
    few_rows=4,
    tile_lanes=1,
    tile_columns=1,
    lane_columns=4,
    lane_rows=3,
    tile_rows=129,
    tile_depth=1024,
)
GPU: Final = TuningProfile(
    vector=4,
    lanes=128,
    span=1024,
    few_rows=4,
    tile_lanes=256,
    tile_columns=16,
    lane_columns=4,
    lane_rows=4,
    tile_rows=64,
    tile_depth=32,
)


def warp_profile(num_sms: int, local_nbytes: int, has_tma: bool) -> TuningProfile:
    """Return the profile of a GPU with warps of 32 lanes.

    Args:
        num_sms: Its multiprocessors; kernels that stay resident have a group or two for each.
        local_nbytes: Local (shared) memory that one group can have.
        has_tma: Whether its compute capability is 9.0 or higher.
    """
    return replace(
        GPU,
        few_rows=8,
        num_sms=num_sms,
        local_nbytes=local_nbytes,
        has_tma=has_tma,
        row_lanes=1024,
    )


@dataclass(frozen=True, slots=True)
class Window:
    """Four-axis view of memory for a kernel: the struct ``Tens`` of ``common.h``.

    Attributes:
        buffer: Where it lies.
        offset: Bytes to the first element.
        shape: Four extents, outermost first.
        strides: Four strides in bytes.
    """

    buffer: OperandMemory | ArgPlaceholder
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def rows(self) -> int:
        """Product of the outer three extents."""
        return prod(self.shape[:-1])

    @property
    def args(self) -> tuple[Arg, Arg]:
        """Pointer and struct, as two arguments."""
        packed = struct.pack("<q4q4i", self.offset, *self.strides, *self.shape)
        return self.buffer, packed


def window(operand: Operand, shape: Sequence[int] | None = None) -> Window:
    """Return an operand as a window of four axes.

    Args:
        shape: Extents to which it is broadcast as in numpy; its own by default.
    """
    extents, strides = _axes(
        operand.shape, operand.strides, None if shape is None else tuple(shape)
    )
    return Window(operand.buffer, operand.offset, extents, strides)


@lru_cache(4096)  # layers have the same ones
def _axes(
    shape: tuple[int, ...], strides: tuple[int, ...], wanted: tuple[int, ...] | None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return extents and strides of four axes."""
    own, steps = _padded(shape, 1), _padded(strides, 0)
    extents = own if wanted is None else _padded(wanted, 1)
    pairs = zip(own, extents, steps, strict=True)
    return extents, tuple(0 if n == 1 else step for n, _, step in pairs)


def window_of(
    operand: Operand, shape: tuple[int, int, int, int], strides: tuple[int, int, int, int]
) -> Window:
    """Return an operand's memory seen with other axes."""
    return Window(operand.buffer, operand.offset, shape, strides)


def _padded(extents: Sequence[int], fill: int) -> tuple[int, ...]:
    return (*(fill for _ in range(AXES - len(extents))), *extents)


def merged(windows: Sequence[Window]) -> list[Window]:
    """Merge axes of windows of one shape wherever all of them allow it.

    Fewer and longer rows mean fewer groups; contiguous tensors become a single row.
    """
    shape = windows[0].shape
    axes: list[tuple[int, tuple[int, ...]]] = []  # extent and the stride of each window
    for axis in range(AXES):
        steps = tuple(w.strides[axis] for w in windows)
        if shape[axis] == 1:
            continue
        outer = axes[-1] if axes else None
        if outer is not None and outer[1] == tuple(s * shape[axis] for s in steps):
            axes[-1] = (outer[0] * shape[axis], steps)
        else:
            axes.append((shape[axis], steps))
    if not axes:
        axes.append((1, tuple(w.strides[-1] for w in windows)))
    missing = AXES - len(axes)
    extents = (*(1 for _ in range(missing)), *(n for n, _ in axes))
    return [
        Window(w.buffer, w.offset, extents, (*(0,) * missing, *(steps[i] for _, steps in axes)))
        for i, w in enumerate(windows)
    ]


def check_alignment(operand: Operand, label: str) -> None:
    """Refuse elements of plain types that do not lie at multiples of their size.

    Processors would not mind, GPUs fault.

    Raises:
        UsageError: offset or a stride is not a multiple of the element's size.
    """
    if operand.dtype.is_quantized or 0 in operand.shape:
        return
    size = operand.dtype.block_nbytes
    if operand.offset % size or any(step % size for step in operand.strides):
        raise UsageError(
            f"{operand.dtype} elements at offset {operand.offset}, strides {operand.strides}",
            where=label,
            why=f"elements must lie at multiples of {size} bytes",
            hint="copy the tensor with cont() on another device",
        )


def i32(value: int) -> bytes:
    """Pack a 32-bit integer argument."""
    return struct.pack("<i", value)


def i64(value: int) -> bytes:
    """Pack a 64-bit integer argument."""
    return struct.pack("<q", value)


class FloatBytes(bytes):
    """A float argument in its bytes."""


def f32(value: float) -> FloatBytes:
    """Pack a float argument; one that is too large becomes infinite, as in a cast."""
    try:
        return FloatBytes(struct.pack("<f", value))
    except OverflowError:
        return f32(float("inf") if value > 0 else float("-inf"))
