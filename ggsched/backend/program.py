"""What a device compiles: nodes with every operand bound to bytes of a buffer."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ggsched.ir.dtype import DType
from ggsched.ir.ops import OPS, Param
from ggsched.topology.caps import DeviceFacts

# --- rows that ids name ---------------------------------------------------------------------------


class ChosenRows:
    """Called before each launch that reads the operand, for checks of the rows read.

    Attributes:
        ranges: Bytes of the rows, each (first, one past the last), from the operand's first byte.
    """

    __slots__ = ("ranges",)

    def __init__(self) -> None:
        self.ranges: tuple[tuple[int, int], ...] = ()


# --- programs -------------------------------------------------------------------------------------


class MemoryOwner(Protocol):
    """What an operand's buffer says of its device."""

    @property
    def facts(self) -> DeviceFacts:
        """What it can do."""


class OperandMemory(Protocol):
    """What an operand says of its buffer, which is a ``ggsched.backend.protocols.Buffer``."""

    @property
    def nbytes(self) -> int:
        """Length in bytes; zero is legal (BUF-1)."""

    @property
    def device(self) -> MemoryOwner:
        """The device whose memory this is."""

    def host_view(self) -> memoryview:
        """Return the bytes themselves, if the device ``is_host`` (BUF-4)."""


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor at a place.

    Attributes:
        buffer: The buffer that holds it.
        offset: Bytes from the start of the buffer to the tensor's first element.
        nbytes: Length of its bounding byte range, from ``offset``.
        dtype: Element type.
        shape: Up to eight axes, outermost first.
        strides: Bytes per axis, see ``ggsched.ir.tensor.Tensor``.
        chosen: Of an operand of which an op takes rows by ids (``OpDef.rows``), the rows that have
            been copied, the others being undefined; None where all of it is there. No kernel needs
            to look at it.
        is_constant: Whether nobody writes its bytes as long as the program is open, but while the
            device is idle: a weight in a place of its own. A device may read it before what its
            stream was given earlier is complete (LCH-7).
    """

    buffer: OperandMemory
    offset: int
    nbytes: int
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    chosen: ChosenRows | None = None
    is_constant: bool = False

    def meets(self, other: "Operand") -> bool:
        """Whether the byte ranges of two operands have a byte in common."""
        a, b = self.offset, other.offset
        return self.buffer is other.buffer and a < b + other.nbytes and b < a + self.nbytes

    def is_same_window(self, other: "Operand") -> bool:
        """Whether two operands are the same elements in the same order."""
        return self.buffer is other.buffer and (
            (self.offset, self.dtype, self.shape, self.strides)
            == (other.offset, other.dtype, other.shape, other.strides)
        )


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes that a device may run as one (LCH-6).

    Attributes:
        pattern: Name of the pattern, see ``ggsched.ir.fusion``.
        nodes: Ids of the nodes, in the order of the pattern's members.
    """

    pattern: str
    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BoundNode:
    """A node to run, with operands bound.

    Attributes:
        node: Id of the node in its graph, for messages.
        op: Name of the op; its meaning is in ``docs/reference/ops.md``.
        inputs: Operands in the op's order.
        output: Result. For ops that write through an operand it is that operand's window.
        params: Every parameter, defaults filled in.
        label: For messages, e.g. ``"n12 mul_mat 'blk.0.ffn_up'"``.
        group: The group that it belongs to; its nodes follow each other. To take no notice of it
            is correct.
    """

    node: int
    op: str
    inputs: tuple[Operand, ...]
    output: Operand
    params: Mapping[str, Param]
    label: str
    group: Group | None = None

    def ints(self, name: str) -> tuple[int, ...]:
        """Return a parameter that is a tuple of whole numbers."""
        value = self.params[name]
        assert isinstance(value, tuple)  # the graph was verified
        return value


def groups_of(nodes: Sequence[BoundNode]) -> Iterator[Sequence[BoundNode]]:
    """Yield the nodes in order: those of a group together, the others one by one.

    A group that is not all there, node after node, is not a group.
    """
    at = 0
    while at < len(nodes):
        group = nodes[at].group
        size = 1
        if group is not None:
            some = nodes[at : at + len(group.nodes)]
            if tuple(n.node for n in some) == group.nodes and all(n.group == group for n in some):
                size = len(some)
        yield nodes[at : at + size]
        at += size


def full_params(op: str, params: Mapping[str, Param]) -> dict[str, Param]:
    """Return a node's parameters with the op's defaults filled in."""
    return OPS[op].full(params)
