"""Hypothesis on your own backend: random graphs against the oracle, and rules of the contract.

The backend is that of ``minimal_backend.py``; replace it with yours. pytest runs the two properties
as tests unchanged, and the plug-in ``ggsched_testing.conformance.pytest_plugin`` adds every case of
the conformance kit as a separate test.
"""

import sys
from pathlib import Path

import numpy as np
from hypothesis import given, settings

sys.path.insert(0, str(Path(__file__).parent))
from minimal_backend import KERNELS, open_backend

from ggsched import Scheduler
from ggsched.ir.dtype import F32
from ggsched.ir.tensor import Role
from ggsched_testing.conformance import Harness, run_conformance
from ggsched_testing.eager import run_direct
from ggsched_testing.generators.strategies import ATOL, RTOL, graphs, seeds, values_for
from ggsched_testing.oracle.interpreter import run_oracle

MINE = {"ops": tuple(KERNELS), "weight_dtypes": (F32,)}  # what the backend declares
BACKEND = open_backend()


def assert_same(result, expected):
    for tensor, array in expected.items():
        np.testing.assert_allclose(result[tensor], array, RTOL, ATOL)


@settings(deadline=None)
@given(drawn=graphs(max_nodes=6, **MINE), seed=seeds())
def test_kernels_agree_with_the_oracle(drawn, seed):
    """Node by node on one device: kernels and copies, and nothing else."""
    values = values_for(drawn, seed)
    device = BACKEND.open_device(0)
    try:
        assert_same(run_direct(device, drawn.graph, values), run_oracle(drawn.graph, values))
    finally:
        device.close()


@settings(deadline=None)
@given(drawn=graphs(max_nodes=6, **MINE), seed=seeds())
def test_plans_over_two_devices_agree_with_the_oracle(drawn, seed):
    """The whole way: placement, copies, waits, memory that is used again."""
    values = values_for(drawn, seed)
    devices = [BACKEND.open_device(i) for i in range(2)]
    inputs = {t.name: values[t.name] for t in drawn.graph.roots(Role.INPUT)}
    with Scheduler(devices, weights=values) as scheduler:
        assert_same(scheduler.run(drawn.graph, inputs), run_oracle(drawn.graph, values))


def main():
    test_kernels_agree_with_the_oracle()
    print("random graphs on one device: as the oracle says")
    test_plans_over_two_devices_agree_with_the_oracle()
    print("random graphs over two devices: as the oracle says")

    def opened(count, seed):
        return [BACKEND.open_device(i) for i in range(count)]

    harness = Harness("minimal:0", opened)
    report = run_conformance(harness, rules="STR-*,EVT-*,CPY-*,BUF-*", max_examples=20)
    verdicts = [result.verdict for result in report.results]
    counts = {verdict: verdicts.count(verdict) for verdict in sorted(set(verdicts))}
    print(f"conformance: {counts}, findings: {len(report.findings)}")


if __name__ == "__main__":
    main()
