"""The contract case by case, and random graphs. ``pip install -e .`` first."""

import numpy as np
import pytest
from hypothesis import given, settings

from ggsched.backend.registry import open_devices
from ggsched_testing.eager import run_direct
from ggsched_testing.generators.strategies import graphs, seeds
from ggsched_testing.generators.values import ATOL, RTOL, values_for
from ggsched_testing.oracle.interpreter import run_oracle

pytest_plugins = ["ggsched_testing.conformance.pytest_plugin"]


@pytest.fixture(scope="module")
def conformance_harness():
    return "torch"


def test_contract(conformance):
    conformance()


@settings(deadline=None)
@given(drawn=graphs(), seed=seeds())
def test_graphs_agree_with_the_oracle(drawn, seed):
    (device,) = open_devices(["torch:0"])
    values = values_for(drawn, seed)
    try:
        result = run_direct(device, drawn.graph, values)
    finally:
        device.close()
    for tid, expected in run_oracle(drawn.graph, values).items():
        np.testing.assert_allclose(result[tid], expected, RTOL, ATOL)
