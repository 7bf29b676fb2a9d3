"""Ops that take rows by ids do not care what the other rows hold (``OpDef.rows``).

Copies of rows rely on it: rows that no id names are never copied, so anything may be there.
"""

import numpy as np
import pytest

from ggsched.config import Settings
from ggsched.ir import GraphBuilder
from ggsched.ir.dtype import BF16, F16, F32, I32, Q8_0
from ggsched.ir.ops import OPS
from ggsched.passes.place import Constraints
from ggsched.scheduler import Scheduler
from ggsched_testing.generators.values import LeafRule, leaf_values
from ggsched_testing.sim.config import SimConfig
from ggsched_testing.sim.world import SimWorld

EXPERTS, ROWS, WIDTH = 6, 24, 64
DTYPES = (F32, F16, BF16, Q8_0)


@pytest.fixture(params=["cpu:0", "opencl:0", "sim"])
def devices(request):
    if request.param == "sim":
        return SimWorld([SimConfig()]).open_all()
    return [request.param]


def poisoned(array, taken):
    """Return an array like it whose rows are NaN but for those that are taken."""
    raw = np.ascontiguousarray(array).view(np.uint8).reshape(len(array), -1).copy()
    for row in set(range(len(array))) - set(taken):
        raw[row] = 0xFF
    return raw.view(array.dtype).reshape(array.shape)


def tables(op, dtype, tokens, used):
    """Return a graph with one such op, and which of its leaves is the table."""
    g = GraphBuilder(op)
    ids = g.input("ids", (tokens, used), I32)
    if op == "get_rows":
        w = g.weight("w", (EXPERTS, WIDTH), dtype)
        flat = g.input("flat", (tokens * used,), I32)
        return g.build(g.get_rows(w, flat))
    if op == "add_id":
        x = g.input("x", (tokens, used, WIDTH))
        return g.build(g.add_id(x, g.weight("w", (EXPERTS, WIDTH)), ids))
    w = g.weight("w", (EXPERTS, ROWS, WIDTH), dtype)
    return g.build(g.mul_mat_id(w, g.input("x", (tokens, 1, WIDTH)), ids))


@pytest.mark.parametrize("tokens", [1, 3, 40])
@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        *(("mul_mat_id", dtype) for dtype in DTYPES),
        ("add_id", F32),
        *(("get_rows", dtype) for dtype in DTYPES),
    ],
    ids=str,
)
def test_what_other_rows_hold_does_not_matter(devices, op, dtype, tokens):
    taken = (1, 4)
    graph = tables(op, dtype, tokens, len(taken))
    rng = np.random.default_rng(0)
    ids = np.array([rng.permutation(taken) for _ in range(tokens)], np.int32)
    inputs = {"ids": ids, "flat": ids.ravel()}
    inputs["x"] = rng.standard_normal((tokens, 1 if op == "mul_mat_id" else 2, WIDTH), np.float32)
    inputs = {name: value for name, value in inputs.items() if name in graph}
    weight = leaf_values(graph.named("w"), LeafRule(), rng)
    results = []
    for stored in (np.ascontiguousarray(weight), poisoned(weight, taken)):
        opened = SimWorld([SimConfig()]).open_all() if not isinstance(devices[0], str) else devices
        settings = Settings(verify=True)
        with Scheduler(opened, weights={"w": stored}, settings=settings) as scheduler:
            out = scheduler.run(graph, inputs, Constraints())
            results.append(out[graph.outputs[0]])
    assert np.isfinite(results[0]).all()
    np.testing.assert_array_equal(results[0], results[1])


def test_these_are_all_ops_that_take_rows():
    assert {op for op, d in OPS.items() if d.rows} == {"mul_mat_id", "add_id", "get_rows"}
