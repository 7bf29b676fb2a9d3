"""Which kernel runs which node: one table, from above; what fits nothing goes the shared way.

To add a kernel, write its lowering (``ggsched_kernels`` for one that OpenCL can use too) and put a
row above those that it is quicker than.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ggsched.backend.program import BoundNode
from ggsched_cuda.calls import Call, CudaSite
from ggsched_cuda.products import (
    fits_plain,
    fits_split,
    fits_unpacked,
    lower_plain,
    lower_split,
    lower_unpacked,
)
from ggsched_cuda.vectors import fits_columns, lower_columns
from ggsched_kernels import GPU, Profile, lower_nodes
from ggsched_kernels.calls import check_alignment


@dataclass(frozen=True, slots=True)
class Choice:
    """A way to run some nodes.

    Attributes:
        name: For people.
        op: The op.
        dtypes: Types of the first operand.
        fits: Whether a node can and should run this way, by its shapes and strides.
        lower: Adds the calls of the node to its site.
    """

    name: str
    op: str
    dtypes: frozenset[str]
    fits: Callable[[CudaSite], bool]
    lower: Callable[[CudaSite], None]


_PACKED: Final = frozenset({"f16", "bf16", "q8_0", "q4_0", "mxfp4"})

_PLAIN: Final = frozenset({"f32", "f16", "bf16"})

TABLE: Final[tuple[Choice, ...]] = (
    Choice("columns", "mul_mat", _PLAIN, fits_columns, lower_columns),
    Choice("cublas f32", "mul_mat", frozenset({"f32"}), fits_plain, lower_plain),
    Choice("cublas 2 x bf16", "mul_mat", frozenset({"bf16"}), fits_split, lower_split),
    Choice("cublas unpacked", "mul_mat", _PACKED, fits_unpacked, lower_unpacked),
)


def choose(site: CudaSite) -> Choice | None:
    """Return the first way that fits a node, or None for the shared kernels."""
    node = site.node
    kind = node.inputs[0].dtype.name if node.inputs else ""
    for choice in TABLE:
        if choice.op == node.op and kind in choice.dtypes and choice.fits(site):
            return choice
    return None


def lower(nodes: Sequence[BoundNode], profile: Profile = GPU) -> tuple[list[Call], int]:
    """Return the calls of nodes, in order, and how much scratch memory they share.

    Raises:
        UsageError: an op that is not lowered, or elements that are not aligned.
    """
    calls: list[Call] = []
    scratch = 0
    for node in nodes:
        site = CudaSite(node, profile)
        choice = None if 0 in node.output.shape else choose(site)
        if choice is None:
            shared = lower_nodes([node], profile)
            calls.extend(shared.calls)
            scratch = max(scratch, shared.scratch_nbytes)
            continue
        for operand in (*node.inputs, node.output):
            check_alignment(operand, node.label)
        choice.lower(site)
        calls.extend(site.calls)
        scratch = max(scratch, site.scratch_nbytes)
    return calls, scratch
