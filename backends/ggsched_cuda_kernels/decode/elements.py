"""Neighbours that treat few elements each on its own, as one kernel.

In decoding the gates of linear attention and of shared experts are chains of ops on a few numbers,
of which each takes as long as the start and the end of its kernel. They are not a fusion group: all
of what they compute is written.
"""

from collections.abc import Sequence
from itertools import takewhile
from math import prod
from typing import Final

from ggsched.backend.program import BoundNode
from ggsched_cuda_kernels.calls import CudaLoweringContext
from ggsched_kernels import TuningProfile
from ggsched_kernels.calls import Arg, f32, i32, merged, window
from ggsched_kernels.lower_elements import BINARY, UNARY

MAX_STEPS: Final = 6
MAX_ELEMENTS: Final = 4096
"""Of a result; one group computes them."""
MAX_LANES: Final = 1024
_FIRST_BINARY: Final = 16


def join_elements(
    groups: Sequence[Sequence[BoundNode]], at: int, profile: TuningProfile
) -> tuple[int, CudaLoweringContext] | None:
    """Return how many groups from ``at`` on the kernel does, and its context, or None."""
    nodes = [group[0] for group in takewhile(_is_small, groups[at : at + MAX_STEPS])]
    if len(nodes) <= 1:
        return None
    ctx = CudaLoweringContext(nodes[-1], profile)
    args = tuple(arg for node in nodes for arg in _step(node, profile))
    most = max(prod(node.output.shape) for node in nodes)
    lanes = min(MAX_LANES, max(32, 1 << (most - 1).bit_length()))
    ctx.call("elements", "elements", args, (1, 1, 1), lanes=lanes, STEPS=len(nodes))
    return len(nodes), ctx


def _is_small(group: Sequence[BoundNode]) -> bool:
    node = group[0]
    if len(group) != 1 or (node.op not in UNARY and node.op not in BINARY):
        return False
    return 0 < prod(node.output.shape) <= MAX_ELEMENTS


def _step(node: BoundNode, profile: TuningProfile) -> tuple[Arg, ...]:
    """Return the arguments of a node: operands, the result, the op and its parameters."""
    a, *more = node.inputs
    places = merged([window(a), window(more[0] if more else a, a.shape), window(node.output)])
    number, *names = (BINARY if more else UNARY)[node.op]
    ctx = CudaLoweringContext(node, profile)
    p, q = (ctx.number(name) if name else 0.0 for name in names)
    op = i32(number + _FIRST_BINARY * bool(more))
    return (*(arg for place in places for arg in place.args), op, f32(p), f32(q))
