"""LCH-8: NaN, infinities, zeros, and integers out of range have one meaning."""

from collections.abc import Iterable
from typing import Final

import numpy as np

from ggsched_testing.conformance.case import case
from ggsched_testing.conformance.context import TestContext
from ggsched_testing.conformance.draws import is_declared
from ggsched_testing.conformance.oprun import run
from ggsched_testing.conformance.rules import BrokenRule
from ggsched_testing.conformance.special_graphs import special_graphs
from ggsched_testing.generators.special_values import SPECIAL, Special
from ggsched_testing.generators.values import ATOL, RTOL
from ggsched_testing.oracle.interpreter import run_oracle

TRAPS: Final = ("nd.div",)
"""Ops of the library that are always tried; others are drawn, as each compiles a kernel."""


def _check(w: TestContext, rows: Iterable[Special]) -> None:
    q = w.stream()
    for special in rows:
        graph, values = special.graph()
        if not is_declared(graph, w.device.facts):
            continue
        w.program.append(f"graph: {graph.name}")
        prepared, after = run(w, q, graph, values)
        difference = special.differs(prepared.output(after, graph.outputs[0]))
        w.require(not difference, difference)
        w.program.clear()
    w.close(q)


@case("LCH-8", "Built-in ops give NaN, infinities and zeros as the table of special operands has.")
def lch8_special_operands(w: TestContext) -> None:
    _check(w, [s for s in SPECIAL if "." not in s.op])


@case("LCH-8", "Ops of the library do, and their integers wrap and do not trap.")
def lch8_special_arrays(w: TestContext) -> None:
    of_library = [s for s in SPECIAL if "." in s.op]
    others = [s for s in of_library if s.op not in TRAPS]
    places = w.rng.permutation(len(others))[: w.draws(len(others), 4)]
    _check(w, [*(s for s in of_library if s.op in TRAPS), *(others[i] for i in places)])


@case("LCH-8", "NaN and infinities anywhere in the operands of built-in ops come out as computed.")
def lch8_drawn_into_operands(w: TestContext) -> None:
    q = w.stream()
    for op, drawn, values in special_graphs(w.rng, w.draws(3, 1)):
        if not is_declared(drawn.graph, w.device.facts):
            continue
        w.program.append(f"graph: {op} of special elements, seed {w.seed}")
        expected = run_oracle(drawn.graph, values)
        prepared, after = run(w, q, drawn.graph, values)
        for tid, wanted in expected.items():
            seen = prepared.output(after, tid)
            try:
                np.testing.assert_allclose(seen, wanted, RTOL, ATOL, equal_nan=True)
            except AssertionError as error:
                text = " ".join(str(error).split())
                raise BrokenRule(f"{op} differs from the oracle: {text}") from None
        w.program.clear()
    w.close(q)
