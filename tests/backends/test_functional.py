"""Devices of immutable arrays: a toy over numpy, and JAX where it is installed."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from ggsched.backend.functional import FunctionalDevice, functional_facts
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import F32
from ggsched_testing.conformance import Harness, run_conformance
from ggsched_testing.eager import run_direct
from ggsched_testing.generators.strategies import graphs, seeds
from ggsched_testing.generators.values import ATOL, RTOL, values_for
from ggsched_testing.oracle.interpreter import run_oracle

JAX_OPS = ("add", "mul", "silu", "mul_mat")
SOURCE = Path(__file__).parents[2] / "examples" / "jax_backend" / "jax_backend.py"


class Frozen:
    """An array that cannot be written, and is nothing that numpy's functions take."""

    moved = 0

    def __init__(self, array):
        self.array = np.array(array)
        self.array.flags.writeable = False


class Immutable:
    def __init__(self):
        self.uploads = self.downloads = 0

    def from_host(self, array):
        self.uploads += 1
        return Frozen(array)

    def to_host(self, array):
        self.downloads += 1
        return array.array


def kernel(function, *names):
    def run(inputs, params):
        arrays = [x.array for x in inputs]
        return Frozen(function(*arrays, *(params[n] for n in names)))

    return run


def mul_mat(w, x):
    w = w.reshape((1,) * (x.ndim - w.ndim) + w.shape)
    for axis in range(x.ndim - 2):
        w = np.repeat(w, x.shape[axis] // w.shape[axis], axis)
    return x @ np.swapaxes(w, -1, -2)


def set_rows(dst, src, ids):
    if ids.size and not (ids.min() >= 0 and ids.max() < len(dst)):
        raise IndexError("an id is not one of a row")
    changed = dst.copy()
    changed[ids] = src
    return changed


KERNELS = {
    "add": kernel(np.add),
    "mul": kernel(np.multiply),
    "silu": kernel(lambda x: x / (1 + np.exp(-x))),
    "scale": kernel(lambda x, s, b: x * np.float32(s) + np.float32(b), "scale", "bias"),
    "mul_mat": kernel(mul_mat),
    "set_rows": kernel(set_rows),
}


def open_toy(index=0):
    facts = functional_facts("toy", [*KERNELS, "set_rows:f16"], name=f"toy:{index}")
    return FunctionalDevice(facts, KERNELS, Immutable())


@settings(deadline=None)
@given(drawn=graphs(ops=tuple(KERNELS), weight_dtypes=[F32]), seed=seeds())
def test_agrees_with_the_oracle(drawn, seed):
    agree(open_toy(), drawn, seed)


def agree(device, drawn, seed):
    values = values_for(drawn, seed)
    result = run_direct(device, drawn.graph, values)
    for tid, expected in run_oracle(drawn.graph, values).items():
        np.testing.assert_allclose(result[tid], expected, RTOL, ATOL)


def test_passes_the_kit():
    def open_devices(count, _seed):
        return [open_toy(i) for i in range(count)]

    report = run_conformance(Harness("toy", open=open_devices), max_examples=10)
    report.raise_if_findings()


def test_results_stay_arrays():
    """Of a chain only the input and the weight are brought to the device, only the end back."""
    g = GraphBuilder()
    x = g.input("x", (4, 4))
    w = g.weight("w", (4, 4))
    for _ in range(5):
        x = g.silu(g.mul_mat(w, x))
    graph = g.build(x)
    device = open_toy()
    run_direct(device, graph, {"x": np.ones((4, 4), np.float32), "w": np.eye(4, dtype=np.float32)})
    assert (device.library.uploads, device.library.downloads) == (2, 1)


@pytest.fixture(scope="module")
def example():
    pytest.importorskip("jax")
    spec = importlib.util.spec_from_file_location("jax_backend", SOURCE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_example_is_short():
    assert len(SOURCE.read_text(encoding="utf-8").splitlines()) < 120


class TestJax:
    @settings(deadline=None, max_examples=10)
    @given(
        drawn=graphs(max_nodes=6, ops=JAX_OPS, weight_dtypes=[F32]),
        seed=seeds(),
    )
    def test_agrees_with_the_oracle(self, example, drawn, seed):
        agree(example.open_device(0), drawn, seed)

    @pytest.mark.slow
    def test_passes_the_kit(self, example):
        def open_devices(count, _seed):
            return [example.open_device(i) for i in range(count)]

        report = run_conformance(Harness("jax", open=open_devices), max_examples=5)
        report.raise_if_findings()

    def test_runs_as_a_program(self, example, capsys):
        example.main()
        assert "jax:0 (4, 64) True" in capsys.readouterr().out
