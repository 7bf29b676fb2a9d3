"""Chains of ops on single elements as one kernel: on PoCL, in CUDA on the host, and by NVRTC."""

import platform
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggsched import GraphBuilder, Scheduler
from ggsched.ir.ops import op_by_name
from ggsched_kernels import GPU, source, supported_ops
from ggsched_kernels.chains import EXPRESSIONS, chain_source
from ggsched_kernels.lower import lower_nodes
from ggsched_testing.oracle.interpreter import run_oracle
from tests.backends.opencl_devices import opencl_device
from tests.kernels.nvrtc import ARCHS, NEEDS_BINDINGS, compiler
from tests.kernels.test_cuda_on_host import CudaOnHost

SAFE = ("add", "sub", "mul", "nd.add", "nd.mul", "nd.max", "nd.min", "nd.tanh", "nd.relu",
        "nd.abs", "nd.neg", "nd.sigmoid", "nd.leaky_relu", "nd.hard_swish", "nd.erf", "tanh",
        "scale", "clamp", "silu", "nd.gelu", "nd.sin")  # fmt: skip
"""Ops whose results stay small, whatever is drawn."""


def operands(op):
    return sum(not name.endswith("?") for name in op_by_name(op).operands)


def chain(drawn, shape=(3, 5, 7), others=((3, 5, 7), (1, 5, 1), (7,)), behind=()):
    """Return a graph of ops on x, each with the result of the last one; (op, place, params)."""
    g = GraphBuilder()
    y = g.input("x", shape)
    inputs = [g.input(f"i{k}", other) for k, other in enumerate(others)]
    made = []
    for op, place, params in drawn:
        given = [y] * operands(op)
        for k in range(len(given)):
            if k and place < len(inputs):
                given[k] = inputs[(place + k - 1) % len(inputs)]
        y = g.op(op, *given, **params)
        made.append(y)
    return g.build(y, *(made[i] for i in behind))


def values_of(graph, seed=0):
    rng = np.random.default_rng(seed)
    return {
        t.name: rng.standard_normal(t.shape).astype(np.float32)
        for t in graph.tensors
        if t.role.name == "INPUT" and not t.is_view
    }


@pytest.fixture(scope="module")
def opencl():
    made = opencl_device(profile="gpu")
    yield made
    made.close()


@pytest.fixture
def opencl_on_cpu():
    made = opencl_device(profile="cpu")
    yield made
    made.close()


@pytest.fixture
def kernels(monkeypatch):
    """The kernels that were made, by name."""
    seen = []

    def lowered(nodes, profile):
        found = lower_nodes(nodes, profile)
        seen.extend(call.kernel for call in found.calls)
        return found

    monkeypatch.setattr("ggsched_opencl.program.lower_nodes", lowered, raising=False)
    return seen


def check(device, graph, values):
    wanted = run_oracle(graph, values)
    with Scheduler([device]) as scheduler:
        found = scheduler.run(graph, values)
    for tid, value in wanted.items():
        np.testing.assert_allclose(found[tid], value, 2e-5, 2e-5)


STEPS = st.lists(
    st.tuples(st.sampled_from(SAFE), st.integers(0, 3)).map(
        lambda pair: (*pair, {"scale": 0.5, "bias": 0.25} if pair[0] == "scale" else
                      {"min": -0.5, "max": 0.75} if pair[0] == "clamp" else {})
    ),
    min_size=2,
    max_size=8,
)  # fmt: skip


@pytest.mark.opencl
class TestOpenCl:
    @settings(max_examples=6)
    @given(drawn=STEPS, seed=st.integers(0, 99))
    def test_random_chains(self, opencl, drawn, seed):
        graph = chain(drawn)
        check(opencl, graph, values_of(graph, seed))

    def test_is_one_kernel(self, opencl, kernels):
        graph = chain([("nd.relu", 0, {}), ("mul", 1, {}), ("nd.erf", 0, {}), ("add", 0, {}),
                       ("scale", 0, {"scale": 2.0})])  # fmt: skip
        check(opencl, graph, values_of(graph))
        assert kernels == ["chain"]

    def test_a_result_that_others_read_is_written(self, opencl, kernels):
        steps = [("nd.relu", 0, {}), ("nd.tanh", 0, {}), ("nd.abs", 0, {}), ("nd.neg", 0, {})]
        graph = chain(steps, behind=(1,))
        check(opencl, graph, values_of(graph))
        assert kernels == ["chain", "chain"]

    def test_more_operands_than_a_kernel_has(self, opencl, kernels):
        graph = chain([("nd.add", k, {}) for k in range(3)] + [("nd.tanh", 0, {})])
        check(opencl, graph, values_of(graph))
        assert kernels == ["chain", "chain"]

    def test_on_cpus_functions_stay_apart(self, opencl_on_cpu, kernels):
        """See ``CHEAP``: there a loop with several is slower than several loops."""
        graph = chain([("nd.relu", 0, {}), ("mul", 0, {}), ("nd.tanh", 0, {}), ("nd.abs", 0, {}),
                       ("add", 0, {})])  # fmt: skip
        check(opencl_on_cpu, graph, values_of(graph))
        assert kernels == ["chain", "elements", "chain"]

    def test_others_have_kernels_that_load_vectors(self, opencl, kernels):
        graph = chain([("silu", 0, {}), ("scale", 0, {"scale": 2.0}), ("tanh", 0, {})])
        check(opencl, graph, values_of(graph))
        assert "chain" not in kernels


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="uses instructions of x86-64")
def test_cuda_on_the_host(tmp_path):
    device = CudaOnHost(tmp_path, supported_ops("cuda", has_f64=True))
    try:
        steps = [(op, k % 2, {}) for k, op in enumerate(SAFE) if op not in ("scale", "clamp")]
        graph = chain([("nd.leaky_relu", 0, {"alpha": 0.25}), *steps])
        check(device, graph, values_of(graph))
        names = {name for name, _ in device._libraries}
        assert any(name.startswith("nd-chain-") for name in names)
        assert len(names) < len(graph.nodes) // 2
    finally:
        device.close()


@NEEDS_BINDINGS
def test_every_op_compiles_in_a_chain():
    from ggsched_cuda_kernels.sources import options_for

    text = "+".join(f"{op}_v_0" if operands(op) > 1 else f"{op}_v" for op in EXPRESSIONS
                    if operands(op) < 3 and not EXPRESSIONS[op].params)  # fmt: skip
    name = f"nd-chain-nd.elu_1+nd.clip_v_0_2+{text}-f32"
    types = dict.fromkeys(("A_T", "B_T", "C_T", "Y_T"), "f32")
    defines = {"VW": GPU.vector, "LANES": GPU.lanes, "OPERANDS": 3, **types}
    options = options_for(ARCHS[0], tuple((k, str(v)) for k, v in defines.items()))
    assert compiler().compiles(source(name, "cuda"), options)


def test_the_text_of_a_chain():
    defines = chain_source("nd.leaky_relu_0+scale_v+mul_v_1")
    assert "const float A = X0; const float P0 = Q0; V = (float)(A < 0 ? A * P0 : A);" in defines
    assert "const float A = V; const float P0 = Q1; const float P1 = Q2;" in defines
    assert "const float A = V; const float B = X1; V = (float)(A * B);" in defines
