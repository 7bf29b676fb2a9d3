"""Experts with the router fused in, on the host; see ``test_fibers_experts`` and ``_route``."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from ggsched.backend.program import Group
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import F32, dtype_by_name
from ggsched_testing.eager import bound_nodes
from ggsched_testing.oracle.interpreter import run_oracle
from tests.kernels.test_fibers import H200, NEEDS, laid_out
from tests.kernels.test_fibers_moe_router import drawn
from tests.kernels.test_fibers_warp_specialized import SEEDS, values_of

pytestmark = NEEDS

OAI, PLAIN = "(mul_mat_id+add_id)*2+swiglu_oai", "mul_mat_id*2+swiglu"


@dataclass(frozen=True)
class Case:
    """A route, and a gate of those it chooses."""

    pattern: str = OAI
    kind: str = "bf16"
    k: int = 64
    tokens: int = 1
    experts: int = 5
    used: int = 2
    scale: float = 1.0
    what: str = "plain"
    rows: int = 9
    units: int = 6
    here: tuple[int, int] = (0, 0)  # the first expert that weights have, and how many


def graph_of(c):
    g = GraphBuilder("routed")
    logits, x = g.input("logits", (c.tokens, c.experts)), g.input("x", (c.tokens, 1, c.k))
    ids = g.top_k(logits, c.used)
    picked = g.get_rows(g.reshape(logits, c.tokens, c.experts, 1), ids)
    shares = g.soft_max(g.reshape(picked, c.tokens, c.used), scale=c.scale)

    def side(name):
        first, count = c.here if c.here[1] else (0, c.experts)
        here = {"first": first, "of": c.experts} if c.here[1] else {}
        w = g.weight(name, (count, c.rows, c.k), dtype_by_name(c.kind))
        y = g.mul_mat_id(w, x, ids, **here)
        if c.pattern == PLAIN:
            return y
        return g.add_id(y, g.weight(f"{name}.bias", (count, c.rows), F32), ids, **here)

    gate, up = side("gate"), side("up")
    made = (
        g.swiglu(gate, up) if c.pattern == PLAIN else g.swiglu_oai(gate, up, alpha=1.7, limit=0.7)
    )
    return g.build(ids, picked, shares, made)


def lowered(nodes, c):
    from ggsched_cuda_kernels.kernel_selection import lower

    group = Group(c.pattern, tuple(n.node for n in nodes[3:]))
    nodes = [*nodes[:3], *(replace(n, group=group) for n in nodes[3:])]
    return lower(nodes, replace(H200, num_sms=c.units))[0]


def prepared(c):
    graph = graph_of(c)
    values = values_of(graph)
    values["logits"] = drawn(c.what, c.tokens, c.experts, np.random.default_rng(2))
    return graph, values


CASES = [
    Case(experts=32, used=4, kind="mxfp4", k=96),
    Case(PLAIN, tokens=2, experts=33, used=3, scale=0.5),
    Case(tokens=2, what="ties"),
    Case(experts=32, used=4, what="infinite", scale=0.5),
    Case(experts=128, used=8, units=16, rows=5),
    Case(experts=32, used=4, units=16, here=(16, 16)),
    Case(PLAIN, tokens=2, experts=33, used=3, here=(1, 3)),
]
SLOW = [
    *(Case(pattern, what=what, tokens=tokens, experts=experts, used=used, units=16)
      for pattern in (OAI, PLAIN)
      for what in ("plain", "ties", "zeros", "infinite", "not a number")
      for tokens, experts, used in ((1, 32, 4), (3, 60, 3), (2, 100, 7))),
    Case(experts=1, used=1),
    Case(experts=2, used=2, kind="q8_0"),
    Case(experts=31, used=16, units=32),
]  # fmt: skip


@pytest.mark.parametrize(
    "case", [*CASES, *(pytest.param(c, marks=pytest.mark.slow) for c in SLOW)], ids=str
)
def test_routed(runner, case):
    graph, values = prepared(case)
    wanted = run_oracle(graph, values)
    for runner.seed in SEEDS:
        nodes, memory = laid_out(graph, values)
        (call,) = lowered(nodes, case)
        assert (call.kernel, dict(call.defines)["ROUTED"]) == ("warp_specialized_experts", "1")
        runner.fault[:] = 0
        runner.run(call)
        assert not runner.fault.any()
        for tid, expected in wanted.items():
            t = graph.tensors[tid]
            found = memory[t.storage].view.view(expected.dtype).reshape(expected.shape)
            exact = expected.dtype == np.int32 or tid == graph.outputs[1]
            size = float(np.nanmax(np.abs(np.where(np.isfinite(expected), expected, 0)), initial=0))
            atol = 0 if exact else 2e-6 * max(size, 1)
            np.testing.assert_allclose(
                found, expected, 0 if exact else 2e-5, atol, err_msg=str(tid)
            )
            assert (memory[t.storage].bytes[-32:] == 0xFF).all(), "what lies behind is as it was"


# Results by number; -1 are the logits, -2 the row. What lies on another one is left to two calls.
PLACES = [{0: -1}, {1: -1}, {2: -1}, {2: 1}, {3: -1}, {3: -2}, {3: 1}]


@pytest.mark.parametrize("places", PLACES, ids=str)
def test_what_groups_still_read_is_written_by_nobody(places):
    case = Case(experts=32, used=4, k=32, rows=1)
    graph, values = prepared(case)
    _, memory = laid_out(graph, values)
    roots = [graph.tensors[tid].storage for tid in graph.outputs]
    roots += [graph.named("x").id, graph.named("logits").id]
    for above, below in places.items():
        memory[roots[above]] = memory[roots[below]]
    kernels = [call.kernel for call in lowered(bound_nodes(graph, memory), case)]
    assert kernels == ["route_chosen", "warp_specialized_experts"]


@pytest.mark.parametrize("case", [Case(experts=129), Case(tokens=4, used=2)], ids=str)
def test_others_stay_apart(case):
    graph, values = prepared(case)
    nodes, _ = laid_out(graph, values)
    kernels = [getattr(call, "kernel", "") for call in lowered(nodes, case)]
    assert kernels[0] == "route_chosen"
