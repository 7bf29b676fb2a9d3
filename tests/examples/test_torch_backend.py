import sys

import numpy as np
import pytest
from hypothesis import given

from ggsched.backend.registry import discover
from ggsched.cli.main import main
from ggsched.ir.dtype import BF16, F16, F32, MXFP4, Q4_0, Q8_0
from ggsched.ir.ops import BUILT_IN
from ggsched_testing.conformance import run_conformance
from ggsched_testing.eager import run_direct
from ggsched_testing.generators.strategies import graphs, seeds
from ggsched_testing.generators.values import ATOL, RTOL, values_for
from ggsched_testing.oracle.interpreter import run_oracle
from tests.examples.installing import as_installed
from tests.meta.repository import ROOT

SOURCE = ROOT / "examples" / "torch_backend"
OPS = frozenset(BUILT_IN) - {"attention", "linear_attention", "short_conv", "softplus"}
"""Those that the example has: attention is decomposed, others are of recurrent models."""

WEIGHTS = (F32, F16, BF16, Q8_0, Q4_0, MXFP4)
MODEL = ROOT / "ggsched" / "data" / "addition-moe.gguf"


@pytest.fixture(scope="module")
def plugin(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    folder = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch, as_installed(SOURCE, folder, patch) as package:
        yield package


@pytest.fixture(scope="module")
def torch_backend(plugin):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    from ggsched_torch import open_backend

    return open_backend()


def test_without_pytorch_it_says_so(plugin, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # what importing then finds
    (status,) = [s for s in discover() if s.name == "torch"]
    assert status.state == "unavailable"
    assert "pip install torch" in status.hint


def test_passes_the_kit(torch_backend):
    report = run_conformance("torch:0", max_examples=20)
    report.raise_if_findings()
    assert sum(r.verdict == "pass" for r in report.results) > 150


@given(drawn=graphs(ops=OPS, weight_dtypes=WEIGHTS), seed=seeds())
def test_agrees_with_the_oracle(torch_backend, drawn, seed):
    device = torch_backend.open_device(0)
    values = values_for(drawn, seed)
    try:
        result = run_direct(device, drawn.graph, values)
    finally:
        device.close()
    for tid, expected in run_oracle(drawn.graph, values).items():
        np.testing.assert_allclose(result[tid], expected, RTOL, ATOL)


@pytest.mark.parametrize(
    "devices", ["torch:0", "torch:0,cpu:0", "cpu:0,torch:0", "torch:0,torch:1"]
)
def test_runs_a_model(torch_backend, capsys, devices):
    assert main(["run", str(MODEL), "-p", "417+385=", "--devices", devices]) == 0
    assert capsys.readouterr().out.strip() == "802"
