"""Graphs on one device, compared with the oracle."""

import numpy as np

from ggsched_testing.allowance import far_off, rounds_of
from ggsched_testing.eager import run_direct
from ggsched_testing.generators.values import ATOL, RTOL, DrawnGraph, values_for
from ggsched_testing.oracle.interpreter import run_oracle


def check(device, graph, values, *, runs=1, rtol=RTOL, atol=ATOL, states=None):
    """Run a graph on a device and by the oracle; outputs and states must agree."""
    states = states or {}
    expected_states = {name: array.copy() for name, array in states.items()}
    for _ in range(runs):
        before = {name: array.copy() for name, array in expected_states.items()}
        expected = run_oracle(graph, values, states=expected_states)
        result = run_direct(device, graph, values, states)
        far = expected
        if (rtol, atol) == (RTOL, ATOL):
            far = far_off(result, graph, values, expected, before, how=rounds_of(device.facts))
        for tid, wanted in expected.items():
            if wanted.dtype.kind != "f" or tid in far:
                same(result[tid], wanted, rtol, atol)
        for name, wanted in expected_states.items():
            same(states[name], wanted, rtol, atol)


def same(got, wanted, rtol, atol):
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    if wanted.dtype.kind == "f":
        np.testing.assert_allclose(got, wanted, rtol, atol)
    else:
        np.testing.assert_array_equal(got, wanted)


def whole(n, dtype):
    """Return n, rounded up to whole blocks of a type."""
    return -(-n // dtype.block) * dtype.block


def tame(graph, seed=0, **rules):
    """Return values for a graph that was not drawn."""
    return values_for(DrawnGraph(graph, rules), seed)
