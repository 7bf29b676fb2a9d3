"""How far results may be off where products are rounded (LCH-3)."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ggsched.backend.precision import EXACT, Rounds
from ggsched.ir.graph import Graph
from ggsched.topology.caps import DeviceFacts
from ggsched_testing.generators.values import ATOL, RTOL
from ggsched_testing.oracle.interpreter import Rounding, rounding_entry, run_oracle

Array = npt.NDArray[Any]

TRIALS: Final = 4
MARGIN: Final = 2.0
"""Of what trials show, for results that other ops compute from rounded products."""


def rounds_of(facts: DeviceFacts) -> Rounds:
    """Return how a device declares that it rounds operands of products."""
    return Rounds(facts.rounds_to_8_bits, facts.precision)


def rounding_allowances(
    graph: Graph,
    values: Mapping[str, Array],
    expected: Mapping[int, Array],
    states: Mapping[str, Array] | None = None,
    *,
    how: Rounds = EXACT,
) -> dict[int, Array]:
    """Return by how much each element of each output may be off because products are rounded.

    For an output that is such a product of what is given: the entry of ``ROUNDING`` times
    ``sum |w| |x|``; for attention, what its result moves by if logits and results are that much
    off. Behind other ops: what the results move by when each element of one product is that much
    off, with random signs, at most of a few trials and with a margin, added up over the products.
    (Were all products off at once, their errors might cancel in every trial.)

    Args:
        values: Its inputs and weights.
        expected: Its outputs as the oracle computes them, by tensor.
        states: Content of states before the run; those that are missing hold zeros.
        how: How the device declares that it rounds.
    """
    rounded = [
        n for n in graph.nodes if rounding_entry(n.op, graph.tensors[n.inputs[0]].dtype, how) > 0
    ]
    moved = {tid: np.zeros(array.shape) for tid, array in expected.items()}
    if not rounded:
        return moved
    rng = np.random.default_rng(0)
    for node in rounded:
        by = _moves(graph, values, expected, states, Rounding(node.id, rng), how=how)
        moved = {tid: moved[tid] + array for tid, array in by.items()}
    direct = {n.output for n in rounded} if len(graph.nodes) == len(rounded) == 1 else set()
    return {tid: by * (1.0 if tid in direct else MARGIN) for tid, by in moved.items()}


def _moves(
    graph: Graph,
    values: Mapping[str, Array],
    expected: Mapping[int, Array],
    states: Mapping[str, Array] | None,
    rounding: Rounding,
    *,
    how: Rounds,
) -> dict[int, Array]:
    """Return by how much outputs move, at most of a few trials, when one product is rounded."""
    moves = {tid: np.zeros(array.shape) for tid, array in expected.items()}
    for _ in range(TRIALS):
        before = {name: array.copy() for name, array in (states or {}).items()}
        found = run_oracle(graph, values, states=before, rounding=rounding, how=how)
        for tid, array in found.items():
            with np.errstate(all="ignore"):
                by = np.abs(array.astype(np.float64) - expected[tid])
            moves[tid] = np.maximum(moves[tid], np.nan_to_num(by, nan=0.0, posinf=0.0))
    return moves


def far_off(
    seen: Mapping[int, Array],
    graph: Graph,
    values: Mapping[str, Array],
    expected: Mapping[int, Array],
    states: Mapping[str, Array] | None = None,
    *,
    how: Rounds = EXACT,
) -> list[int]:
    """Return the outputs that differ from the oracle by more than tolerance and rounding explain.

    Allowances take several runs of the oracle, and are computed only for results outside the
    tolerance; the arguments beside ``seen`` are those of ``rounding_allowances``.
    """
    off = [tid for tid, wanted in expected.items() if not is_within(seen[tid], wanted)]
    if not off:
        return off
    allowed = rounding_allowances(graph, values, expected, states, how=how)
    return [tid for tid in off if not is_within(seen[tid], expected[tid], allowed[tid])]


def is_within(seen: Array, wanted: Array, allowance: Array | float = 0.0) -> bool:
    """Whether results agree within ``ATOL``, ``RTOL`` of the value, and an allowance."""
    seen, wanted = seen.astype(np.float64), wanted.astype(np.float64)
    close = np.isclose(seen, wanted, RTOL, ATOL, equal_nan=True)
    with np.errstate(all="ignore"):
        near = np.abs(seen - wanted) <= ATOL + RTOL * np.abs(wanted) + allowance
    return bool((close | near).all())
