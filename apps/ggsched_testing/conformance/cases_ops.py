"""LCH-3: every declared op against the oracle, a case for each op."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ggsched.backend.protocols import Stream
from ggsched.ir.dtype import DType, dtype_by_name
from ggsched.ir.ops import OPS
from ggsched_testing.allowance import far_off, rounds_of
from ggsched_testing.conformance.case import Case, case
from ggsched_testing.conformance.context import TestContext
from ggsched_testing.conformance.draws import empty_graphs, graphs_with, is_declared
from ggsched_testing.conformance.faults import LABEL, bad_rows, fails_by_name
from ggsched_testing.conformance.oprun import run
from ggsched_testing.conformance.rules import BrokenRule
from ggsched_testing.conformance.strided import strided_graphs, tied_graphs
from ggsched_testing.generators.values import ATOL, RTOL, DrawnGraph, values_for
from ggsched_testing.oracle.interpreter import run_oracle

Array = npt.NDArray[Any]

MOVES: Final = frozenset(
    {"get_rows", "set_rows", "cpy", "cont", "concat", "repeat", "clamp", "argsort", "top_k"}
)
"""Ops that compute nothing: their results agree to the bit. All others within ATOL and RTOL."""

SORTS: Final = frozenset({"argsort", "top_k"})

GRAPHS: Final = 6
"""Graphs for each op and type: plain ones, and ones with views, chains and results in place; 3 at
least."""


def _op_case(op: str) -> Case:
    def check(w: TestContext) -> None:
        keys = [key for key in sorted(w.device.facts.ops) if key.partition(":")[0] == op]
        for key in keys:
            _check_type(w, op, dtype_by_name(key.partition(":")[2]))

    check.__name__ = f"lch3_{op}"
    exact = op in MOVES
    measure = "to the bit" if exact else f"within {ATOL:g} + {RTOL:g} of the value"
    return case("LCH-3", f"{op} agrees with the oracle {measure}.", f"op {op}")(check)


def _check_type(w: TestContext, op: str, dtype: DType) -> None:
    q = w.stream()
    for drawn in _drawn(w, op, dtype):
        check_graph(w, q, drawn)
    w.close(q)


def check_graph(
    w: TestContext, q: Stream, drawn: DrawnGraph, values: Mapping[str, Array] | None = None
) -> None:
    """Compare a graph with the oracle, on values as its rules say unless others are given."""
    name = drawn.graph.name or drawn.graph.nodes[-1].op
    w.program.append(f"graph: {name}, seed {w.seed}")
    values = values_for(drawn, w.seed) if values is None else values
    expected = run_oracle(drawn.graph, values)
    prepared, after = run(w, q, drawn.graph, values)
    seen = {tid: prepared.output(after, tid) for tid in expected}
    exact = {tid for tid, a in expected.items() if _is_exact(drawn) or a.dtype == np.int32}
    far = exact
    if len(exact) < len(expected):
        far = exact.union(
            far_off(seen, drawn.graph, values, expected, how=rounds_of(w.device.facts))
        )
    for tid in sorted(far):
        _compare(seen[tid], expected[tid], drawn, tid, exact=tid in exact)
    w.program.clear()


def _drawn(w: TestContext, op: str, dtype: DType) -> Iterator[DrawnGraph]:
    random = graphs_with(op, dtype, w.draws(GRAPHS, 3), w.rng)
    ties = tied_graphs(op) if op in SORTS else ()
    for drawn in (*random, *strided_graphs(op, dtype), *ties, *empty_graphs(op, dtype)):
        if is_declared(drawn.graph, w.device.facts):
            yield drawn


def _is_exact(drawn: DrawnGraph) -> bool:
    return all(n.op in MOVES for n in drawn.graph.nodes)


def _compare(seen: Array, wanted: Array, drawn: DrawnGraph, tid: int, *, exact: bool) -> None:
    tolerance = (0.0, 0.0) if exact else (RTOL, ATOL)
    try:
        np.testing.assert_allclose(
            seen.astype(np.float64), wanted.astype(np.float64), *tolerance, equal_nan=True
        )
    except AssertionError as error:
        text = " ".join(str(error).split())
        raise BrokenRule(f"t{tid} of\n{_text(drawn)}\ndiffers from the oracle: {text}") from None


def _text(drawn: DrawnGraph) -> str:
    return "\n".join(f"  {drawn.graph.label(n)}" for n in drawn.graph.nodes)


CASES: Final = tuple(_op_case(op) for op in OPS)


@case("LCH-3", "An id out of range fails the launch; it never reads or writes elsewhere.",
      "op get_rows")  # fmt: skip
def lch3_ids_out_of_range(w: TestContext) -> None:
    q = w.stream()
    bad_rows(w, q)
    fails_by_name(w, LABEL, w.sync, q)
