"""Hypothesis strategies: random graphs with views, aliases, caches and every op.

    @given(drawn=graphs(), seed=seeds())
    def test_something(drawn, seed):
        values = values_for(drawn, seed)
        expected = run_oracle(drawn.graph, values, states={})

Computed in f32 by any correct backend, the outputs agree with the oracle within ``ATOL`` and
``RTOL`` (and exactly for i32), also over several runs that keep their states.
"""

from collections.abc import Collection, Sequence
from typing import Final

from hypothesis import strategies as st

from ggsched.ir.dtype import F16, F32, FLOAT_DTYPES, GGUF_DTYPES, I32, DType
from ggsched.ir.fusion import PATTERNS
from ggsched.ir.ops import BUILT_IN, op_by_name
from ggsched.ir.tensor import Role, Tensor
from ggsched_testing.generators.graph_gen import GraphGenerator
from ggsched_testing.generators.graph_gen_chains import CHAINS
from ggsched_testing.generators.graph_gen_ops import STEPS, Step
from ggsched_testing.generators.graph_gen_views import draw_view
from ggsched_testing.generators.user_op_graphs import draw_user_op
from ggsched_testing.generators.values import ATOL, RTOL, DrawnGraph, LeafRule, values_for

CHOICES: Final = 40  # bytes per step, more than any step needs
_CHAINS: Final = tuple(name for name in CHAINS if {*BUILT_IN} >= {*PATTERNS[name].ops})
"""Of ops that every device of a test has."""


@st.composite
def graphs(
    draw: st.DrawFn,
    max_nodes: int = 12,
    *,
    min_nodes: int = 1,
    ops: Collection[str] | None = None,
    views: bool = True,
    write_inputs: bool = True,
    weight_dtypes: Sequence[DType] = FLOAT_DTYPES,
    chains: bool = False,
) -> DrawnGraph:
    """Draw a verified graph of up to about ``max_nodes`` nodes with 1 to 4 outputs.

    Args:
        draw: Passed by Hypothesis.
        max_nodes: Largest number of steps; a step adds none, one or two nodes. Hypothesis draws
            about ``min_nodes + 5`` steps on average, so raise that for large graphs.
        min_nodes: Smallest number of steps.
        ops: Ops to choose from, user-defined ones too; all built-in ones by default.
        views: Whether to draw views (writes into them make hazards on parts of a storage).
        write_inputs: Whether nodes may write through inputs, which the host sets before each run.
        weight_dtypes: Float types of weights.
        chains: Whether every other step is a chain of nodes that a device may compile as one.

    Raises:
        GraphError: ``ops`` names an unknown op.
    """
    names = tuple(STEPS) if ops is None else tuple(op_by_name(name).name for name in ops)
    d = GraphGenerator(write_inputs=write_inputs, weight_dtypes=weight_dtypes)
    length = CHOICES * 3 if chains else CHOICES
    choices = st.binary(min_size=length, max_size=length)
    for step in draw(st.lists(choices, min_size=min_nodes, max_size=max_nodes)):
        d.feed(step)
        if chains and d.flip():
            CHAINS[d.pick(_CHAINS)](d)
            continue
        op = _step(d, d.pick(names))
        if views and d.flip():
            draw_view(d)
        op(d)
    if not d.results:
        d.node("silu", d.leaf((4,)))
    d.feed(draw(st.binary(min_size=4, max_size=4)))
    return DrawnGraph(d.g.build(*_outputs(d)), dict(d.rules))


def _step(d: GraphGenerator, name: str) -> Step:
    """Return a step that adds a node of an op, built-in or user-defined."""
    if name in STEPS:
        return d.pick(STEPS[name])
    return lambda d: draw_user_op(d, op_by_name(name))


def _outputs(d: GraphGenerator) -> list[Tensor]:
    """The last result, and up to three others; states and views of temporaries among them."""
    others = [t for t in d.floats if t.role is not Role.WEIGHT and t.dtype in (F32, F16)]
    others += [i.tensor for i in d.ids if i.tensor.dtype is I32]
    count = d.number(0, 3) if others else 0
    return [d.results[-1], *(d.pick(others) for _ in range(count))]


def seeds() -> st.SearchStrategy[int]:
    """Draw a seed for ``values_for``."""
    return st.integers(0, 2**32 - 1)


def dtypes() -> st.SearchStrategy[DType]:
    """Draw any element type."""
    return st.sampled_from(GGUF_DTYPES)


__all__ = [
    "ATOL",
    "RTOL",
    "DrawnGraph",
    "LeafRule",
    "dtypes",
    "graphs",
    "seeds",
    "values_for",
]
