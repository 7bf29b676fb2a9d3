import importlib.util
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

from ggsched.ir.dtype import F32
from ggsched_testing.conformance import Harness, run_conformance
from ggsched_testing.eager import run_direct
from ggsched_testing.generators.strategies import graphs, seeds
from ggsched_testing.generators.values import ATOL, RTOL, values_for
from ggsched_testing.oracle.interpreter import run_oracle

SOURCE = Path(__file__).parents[2] / "examples" / "minimal_backend.py"
OPS = ("add", "mul", "silu", "scale", "mul_mat")


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("minimal_backend", SOURCE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_is_minimal(example):
    assert len(SOURCE.read_text(encoding="utf-8").splitlines()) < 100
    assert tuple(example.KERNELS) == OPS


@given(drawn=graphs(ops=OPS, weight_dtypes=[F32]), seed=seeds())
def test_agrees_with_the_oracle(example, drawn, seed):
    values = values_for(drawn, seed)
    device = example.open_backend().open_device(1)
    result = run_direct(device, drawn.graph, values)
    for tid, expected in run_oracle(drawn.graph, values).items():
        np.testing.assert_allclose(result[tid], expected, RTOL, ATOL)


def test_runs_as_a_program(example, capsys):
    example.main()
    assert "minimal:0" in capsys.readouterr().out


class Installed:
    name = "minimal"

    def __init__(self, module):
        self.load = lambda: module.open_backend


def test_passes_the_kit(example):
    report = run_conformance(
        Harness.named("minimal:0", entry_points=[Installed(example)]), max_examples=10
    )
    report.raise_if_findings()


def test_the_last_device_is_judged_without_a_second_one(example):
    harness = Harness.named("minimal:1", entry_points=[Installed(example)])
    report = run_conformance(harness, rules="CPY-6")
    report.raise_if_findings()
    skipped = {r.case.name: r.reason for r in report.results if r.verdict == "skip"}
    assert "no second device" in skipped["cpy6_no_path"]
