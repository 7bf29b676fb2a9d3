"""User-defined ops on devices: the kit's cases, plans over two devices, plans in files."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st

from ggsched.backend.user_kernels import user_op_keys
from ggsched.errors import DeviceFault, PlanError, UsageError
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.user_ops import SourceKernel
from ggsched.passes import make_plan
from ggsched.passes.cost.work_size import node_work
from ggsched.passes.place import Constraints
from ggsched.plan.codec import plan_from_json, plan_to_json
from ggsched.plan.text import missing_ops, plan_text
from ggsched.sanitize import check_plan
from ggsched.scheduler import Scheduler
from ggsched.topology.model import CopyPath, Topology
from ggsched_testing.conformance import run_conformance
from ggsched_testing.generators.strategies import graphs, seeds
from ggsched_testing.generators.topologies import ALL_OPS, constraints, fake_device
from ggsched_testing.generators.values import ATOL, RTOL, DrawnGraph, values_for
from ggsched_testing.oracle.interpreter import run_oracle
from tests.backends import user_ops
from tests.backends.user_ops import AFFINE, RIGHT, registered
from tests.properties.test_end_to_end import run_and_compare
from tests.support.verified_plans import verified_plan

OPENCL = pytest.mark.opencl
BACKENDS = ["cpu", "sim", pytest.param("opencl", marks=OPENCL)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", RIGHT)
def test_right_ones_pass(name, backend):
    if backend == "opencl":
        pytest.importorskip("pyopencl", reason="pyopencl is in the extra 'opencl'")
    if backend not in {"sim", *RIGHT[name]["kernels"]}:
        pytest.skip("it has no kernel for this backend")
    with registered(name, RIGHT[name]):
        report = run_conformance(backend, op=name)
    assert [r.case.name for r in report.results if r.verdict != "pass"] == []
    assert len(report.results) == 7


# --- wrong kernels --------------------------------------------------------------------------


def writes_an_operand(x, w, *, out, gain, shift):
    x *= w


def writes_half(x, w, *, out, gain, shift):
    full = np.empty_like(out)
    user_ops.affine(x, w, out=full, gain=gain, shift=shift)
    out[: (len(out) + 1) // 2] = full[: (len(out) + 1) // 2]


def adds_to_what_is_there(x, w, *, out, gain, shift):
    out += x * w


def is_off(x, w, *, out, gain, shift):
    user_ops.affine(x, w, out=out, gain=gain * 1.01, shift=shift)


def is_not_elementwise(x, w, *, out, gain, shift):
    for i in range(len(out)):  # reads a row of x after the result was written there
        out[i] = 0
        out[i] = x[i] * w * np.float32(gain) + np.float32(shift)


def reads_all_rows(table, ids, *, out):
    np.take(table, ids, axis=0, out=out)
    out += np.float32(0) * table.sum()


def opencl(body):
    source = user_ops.OPENCL.replace("if (i < n) out[i] = x[i] * w[i % k] * gain + shift;", body)
    assert source != user_ops.OPENCL
    return {"opencl": SourceKernel(source, "affine", user_ops.ARGS)}


PLAIN = "x[i] * w[i % k] * gain + shift;"
WRONG = {
    "writes an operand": ("affine", {"cpu": writes_an_operand}, "lch2_affine_operands"),
    "writes half": ("affine", {"cpu": writes_half}, "lch1_affine_complete"),
    "adds": ("affine", {"cpu": adds_to_what_is_there}, "lch1_affine_complete"),
    "is off": ("affine", {"cpu": is_off}, "lch3_affine_samples"),
    "in place": ("affine", {"cpu": is_not_elementwise}, "lch2_affine_in_place"),
    "all rows": ("take", {"cpu": reads_all_rows}, "lch3_take_rows"),
}
WRONG_SOURCES = {
    "writes an operand": (
        f"if (i < n) {{ out[i] = {PLAIN} ((__global float *)w)[0] = 1; }}",
        "lch2_affine_operands",
    ),
    "beyond the end": (f"if (i <= n) out[i] = {PLAIN}", "lch2_affine_operands"),
    "not the last": (f"if (i + 1 < n) out[i] = {PLAIN}", "lch1_affine_complete"),
    "adds": (f"if (i < n) out[i] += {PLAIN}", "lch1_affine_complete"),
}


def findings(backend, name, kernels):
    with registered(name, {**RIGHT[name], "kernels": kernels}):
        return {r.case.name for r in run_conformance(backend, op=name).findings}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_kernels_are_rejected(wrong):
    name, kernels, expected = WRONG[wrong]
    assert expected in findings("cpu", name, kernels)


@pytest.mark.opencl
@pytest.mark.opencl
@pytest.mark.parametrize("wrong", WRONG_SOURCES)
def test_wrong_sources_are_rejected(wrong):
    pytest.importorskip("pyopencl", reason="pyopencl is in the extra 'opencl'")
    body, expected = WRONG_SOURCES[wrong]
    assert expected in findings("opencl", "affine", opencl(body))


@pytest.mark.parametrize("gain", [1.0, 1.01])
def test_what_it_is_decomposed_into(gain):
    def decomposed(g, x, w, **params):
        return decomposed_affine(g, x, w, params["gain"] * gain, params["shift"])

    with registered("affine", {**AFFINE, "decompose": decomposed}):
        found = {r.case.name for r in run_conformance("sim", op="affine").findings}
    assert found == (set() if gain == 1.0 else {"lch3_affine_decomposition"})


def test_a_backend_without_a_kernel():
    with (
        registered("affine", {**AFFINE, "kernels": {}}),
        pytest.raises(UsageError, match="cpu:0 has no kernel for it"),
    ):
        run_conformance("cpu", op="affine")


# --- plans ----------------------------------------------------------------------------------


def affine_shape(x, w, gain, shift):
    return x


def decomposed_affine(g, x, w, gain, shift):
    return g.add(g.mul(g.mul(x, w), gain), shift)


def chain():
    g = GraphBuilder("chain")
    x, w = g.input("x", (6, 8)), g.weight("w", (8,))
    y = g.op("affine", g.silu(x), w, gain=0.5)
    return g.build(g.op("affine", g.add(y, x), w, shift=2))


def drawn_values(graph):
    return values_for(DrawnGraph(graph, {}), 0)


def machine(*kernels):
    """Return devices that have the ops which are registered now, by name of their backend."""
    devices = []
    for i, has_kernel in enumerate(kernels):
        ops = ALL_OPS | (user_op_keys(None) if has_kernel else frozenset())
        devices.append(fake_device(f"fake:{i}", ops=ops))
    return Topology(tuple(devices), {(0, 1): CopyPath(0, 1, 0), (1, 0): CopyPath(1, 0, 0)})


@pytest.mark.parametrize(
    "devices", [["cpu:0"], ["cpu:0", "cpu:1"], ["sim:0", "cpu:0"]], ids="+".join
)
def test_results(devices):
    with registered("affine", AFFINE):
        graph = chain()
        given = drawn_values(graph)
        with Scheduler(devices, weights={"w": given["w"]}) as scheduler:
            result = scheduler.run(graph, {"x": given["x"]})
        for tid, wanted in run_oracle(graph, given).items():
            np.testing.assert_allclose(result[tid], wanted, RTOL, ATOL)


@pytest.mark.parametrize(
    "devices", [["cpu:0"], ["sim:0"], pytest.param(["opencl:0"], marks=OPENCL)]
)
@pytest.mark.parametrize("is_decomposed", [False, True])
def test_in_place(devices, is_decomposed):
    """``inplace`` is no parameter of the op: kernel, reference and decomposition do not get it."""
    if devices == ["opencl:0"]:
        pytest.importorskip("pyopencl", reason="pyopencl is in the extra 'opencl'")
    definition = {**AFFINE, "dtype": lambda x, w, gain, shift: x, "shape": affine_shape}
    if is_decomposed:
        definition |= {"kernels": {}, "decompose": decomposed_affine}
    with registered("affine", definition):
        g = GraphBuilder("in place")
        x, w = g.input("x", (6, 8)), g.weight("w", (8,))
        graph = g.build(g.op("affine", g.silu(x), w, gain=0.5, inplace=True))
        given = drawn_values(graph)
        with Scheduler(devices, weights={"w": given["w"]}) as scheduler:
            result = scheduler.run(graph, {"x": given["x"]})
        for tid, wanted in run_oracle(graph, given).items():
            np.testing.assert_allclose(result[tid], wanted, RTOL, ATOL)


def test_a_device_without_a_kernel_gets_no_node():
    """The plan says what that costs."""
    with registered("affine", AFFINE):
        graph = chain()
        plan = verified_plan(graph, machine(False, True), Constraints(pins={0: 0, 2: 0}))
        assert [c.device for c in plan.placement.choices] == [0, 1, 0, 1]
        assert list(missing_ops(plan)) == ["fake:0 has no 'affine': 3 more splits"]
        assert "fake:0 has no 'affine': 3 more splits" in plan_text(plan)
        everywhere = verified_plan(graph, machine(True, True))
        assert list(missing_ops(everywhere)) == []


def test_no_device_with_a_kernel():
    with registered("affine", AFFINE), pytest.raises(PlanError, match="no device supports affine"):
        make_plan(chain(), machine(False, False))


@settings(max_examples=30)
@given(data=st.data(), seed=seeds())
def test_random_graphs_over_several_devices(data, seed):
    with registered("affine", AFFINE), registered("take", RIGHT["take"]):
        ops = ["affine", "take", "add", "mul_mat", "silu", "cpy", "set_rows"]
        drawn = data.draw(graphs(max_nodes=8, ops=ops))
        facts = [replace(d, ops=d.ops | user_op_keys(None)) for d in machine(True, True).devices]
        topology = replace(machine(True, True), devices=tuple(facts))
        plan = make_plan(drawn.graph, topology, data.draw(constraints(drawn.graph, topology)))
        assert check_plan(plan, graph=drawn.graph).is_clean
        run_and_compare(drawn, topology, plan, seed)


def test_random_graphs_contain_them():
    with registered("affine", AFFINE):
        drawn = find(
            graphs(ops=["affine", "add"]),
            lambda d: sum(n.op == "affine" for n in d.graph.nodes) > 1,
            settings=settings(derandomize=True, database=None),
        )
    assert {n.op for n in drawn.graph.nodes} <= {"affine", "add"}


def test_a_plan_in_a_file_names_the_version():
    with registered("affine", AFFINE):
        plan = make_plan(chain(), machine(True, True))
        text = plan_to_json(plan)
        assert plan_from_json(text) == plan
    with pytest.raises(PlanError, match=r"op 'affine', version '1': it is not registered"):
        plan_from_json(text)
    with (
        registered("affine", AFFINE, version="2"),
        pytest.raises(PlanError, match="version '2' is"),
    ):
        plan_from_json(text)


def test_a_cost_of_its_own():
    with registered("affine", AFFINE), registered("other", {**AFFINE, "flops": None}):
        g = GraphBuilder()
        x, w = g.input("x", (6, 8)), g.weight("w", (8,))
        graph = g.build(g.op("affine", x, w), g.op("other", x, w))
        assert [node_work(graph, n).flops for n in graph.nodes] == [144.0, 96.0]


def test_an_error_of_a_kernel_names_the_node():
    def fails(x, w, *, out, gain, shift):
        raise ValueError("no such thing")

    with registered("affine", {**AFFINE, "kernels": {"cpu": fails}}):
        graph = chain()
        given = drawn_values(graph)
        with (
            Scheduler(["cpu:0"], weights={"w": given["w"]}) as scheduler,
            pytest.raises(DeviceFault, match=r"n1 affine failed.*no such thing"),
        ):
            scheduler.run(graph, {"x": given["x"]})
