"""Products with weights of chosen experts, on the host; see ``test_fibers_warp_specialized``."""

from dataclasses import dataclass

import numpy as np
import pytest

from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import F32, I32, dtype_by_name
from ggsched_testing.oracle.interpreter import run_oracle
from tests.kernels.test_fibers import NEEDS, laid_out
from tests.kernels.test_fibers_warp_specialized import SEEDS, check, one_call, results, values_of

pytestmark = NEEDS


@dataclass(frozen=True)
class Chosen:
    """Products with the weights of chosen experts."""

    form: str
    kind: str
    k: int = 64
    tokens: int = 1
    used: int = 2
    rows: int = 19
    each: bool = False  # whether each expert has a row of its own
    units: int = 6
    of: int = 0  # experts in all, if weights have some of them, from number 2 on

    @property
    def here(self):
        return {"first": 2, "of": self.of} if self.of else {}


EXPERTS = 5


def experts(c):
    """Return the graph of a form, and its groups."""
    g = GraphBuilder(c.form)
    x = g.input("x", (c.tokens, c.used if c.each else 1, c.k))
    ids = g.input("ids", (c.tokens, c.used), I32)

    def side(name, has_bias):
        w = g.weight(name, (EXPERTS, c.rows, c.k), dtype_by_name(c.kind))
        y = g.mul_mat_id(w, x, ids, **c.here)
        bias = g.weight(f"{name}.bias", (EXPERTS, c.rows), F32) if has_bias else None
        return g.add_id(y, bias, ids, **c.here) if has_bias else y

    match c.form:
        case "product":
            return g.build(side("w", False)), []
        case "biased":
            return g.build(side("w", True)), [("mul_mat_id+add_id", (0, 1))]
        case "scaled":
            y = g.mul(side("w", True), g.input("scale", (c.tokens, c.used, 1)))
            return g.build(y), [("mul_mat_id+add_id+mul", (0, 1, 2))]
        case "swiglu":
            gate, up = side("gate", False), side("up", False)
            return g.build(g.swiglu(gate, up)), [("mul_mat_id*2+swiglu", (0, 1, 2))]
    gate, up = side("gate", True), side("up", True)
    y = g.swiglu_oai(gate, up, alpha=1.702, limit=0.75)
    return g.build(y), [("(mul_mat_id+add_id)*2+swiglu_oai", (0, 1, 2, 3, 4))]


def run_experts(runner, c, wrong=None):
    """Run a case, perhaps with one id out of range; return graph, memory and values."""
    graph, groups = experts(c)
    values = values_of(graph, bound=c.of or EXPERTS)
    given = {**values, "ids": values["ids"].copy()}
    if wrong is not None:
        given["ids"][-1, -1] = wrong
    nodes, memory = laid_out(graph, given)
    call = one_call(nodes, groups, c.units)
    assert call.kernel == "warp_specialized_experts"
    runner.fault[:] = 0
    runner.run(call, {call.label: 7})
    return graph, memory, values


CHOSEN = [
    Chosen("product", "q8_0", 96, used=1),
    Chosen("biased", "bf16", each=True),
    Chosen("scaled", "mxfp4", 2880, tokens=2, each=True, rows=5),
    Chosen("swiglu", "f16", 320, used=3),
    Chosen("scaled", "q8_0", 96, tokens=2, used=3, of=12),
    Chosen("product", "bf16", 64, used=5, each=True, units=12, of=9),
    Chosen("swiglu", "q8_0", 96, used=4, of=30),
    Chosen("swiglu_oai", "mxfp4", 288, tokens=2, used=3),
    Chosen("swiglu", "q4_k", 512, used=3),
    Chosen("scaled", "q6_k", 256, each=True),
]
FORMS_OF_EXPERTS = ("product", "biased", "scaled", "swiglu", "swiglu_oai")
SLOW_CHOSEN = [
    *(Chosen(form, kind, k, tokens, used, each=form == "scaled", units=16, rows=33)
      for form in FORMS_OF_EXPERTS
      for kind, k in (("f32", 288), ("q4_0", 96), ("q8_0", 2880), ("mxfp4", 320))
      for tokens, used in ((1, 4), (2, 1), (2, 4))),
    Chosen("swiglu_oai", "mxfp4", 2880, used=4, rows=70, units=8),
    Chosen("product", "bf16", 2048, rows=150, units=2),
]  # fmt: skip


@pytest.mark.parametrize(
    "case", [*CHOSEN, *(pytest.param(c, marks=pytest.mark.slow) for c in SLOW_CHOSEN)], ids=str
)
def test_experts(runner, case):
    for runner.seed in SEEDS:
        graph, memory, values = run_experts(runner, case)
        assert not runner.fault.any()
        check(graph, memory, run_oracle(graph, values))


@pytest.mark.parametrize("case", CHOSEN[2:], ids=str)
@pytest.mark.parametrize("wrong", [-1, None, 1 << 30, -(1 << 31)])
def test_a_bad_id(runner, case, wrong):
    """It is reported, nothing is fetched that is not an operand, and all others are right."""
    count = case.of or EXPERTS
    wrong = count if wrong is None else wrong
    graph, memory, values = run_experts(runner, case, wrong)
    assert runner.fault[:3].tolist() == [7, wrong, count]
    (got,), (wanted,) = results(graph, memory).values(), run_oracle(graph, values).values()
    size = float(np.max(np.abs(wanted)))
    pairs = (case.tokens * case.used, case.rows)
    np.testing.assert_allclose(
        got.reshape(pairs)[:-1], wanted.reshape(pairs)[:-1], 1e-4, 1e-5 * size
    )
