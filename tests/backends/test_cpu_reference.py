"""Nodes without a compiled kernel: the definition of the op, counted and reported."""

import numpy as np
import pytest
from hypothesis import given

from ggsched.backend import reference
from ggsched.config import Settings
from ggsched.errors import DeviceFault
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import FLOAT_DTYPES
from ggsched.ir.ops import BUILT_IN
from ggsched.plan.text import plan_text
from ggsched.report.text import account_text
from ggsched.scheduler import Scheduler
from ggsched.topology.caps import runs_by_reference
from ggsched.trace.recorder import Recorder
from ggsched.trace.times import timeline_of
from ggsched.trace.utilization import account
from ggsched_cpu import native
from ggsched_cpu.device import CpuDevice, CpuSettings
from ggsched_cpu.supported import BUILT_IN_WITH_KERNEL
from ggsched_testing.eager import bound_nodes, run_direct
from ggsched_testing.generators.strategies import graphs, seeds
from ggsched_testing.generators.values import values_for
from ggsched_testing.oracle.interpreter import run_oracle
from tests.backends.against_oracle import tame, whole
from tests.backends.op_graphs import rows_by_ids
from tests.backends.user_ops import AFFINE, registered

SLOW = CpuDevice(0, CpuSettings(kernels="numpy"))
FAST = CpuDevice(0, CpuSettings(threads=1))
needs_kernels = pytest.mark.skipif(native.library() is None, reason="no compiled kernels here")


def check(graph, values):
    """The results are those of the oracle, bit for bit."""
    wanted = run_oracle(graph, values)
    for tid, found in run_direct(SLOW, graph, values).items():
        np.testing.assert_array_equal(found, wanted[tid])


@given(drawn=graphs(), seed=seeds())
def test_results_are_those_of_the_oracle(drawn, seed):
    check(drawn.graph, values_for(drawn, seed))


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_a_weight_is_decoded_in_parts(monkeypatch, dtype):
    monkeypatch.setattr(reference, "PART_ELEMENTS", 7 * whole(64, dtype) * 2)
    g = GraphBuilder()
    w, x = g.weight("w", (2, 45, whole(64, dtype)), dtype), g.input("x", (4, 3, whole(64, dtype)))
    graph = g.build(g.mul_mat(w, x))
    check(graph, tame(graph))


@pytest.mark.parametrize("op", ["get_rows", "mul_mat_id", "add_id"])
def test_rows_that_no_id_names_may_hold_anything(monkeypatch, op):
    """A plan copies only the rows of an expert that are used."""
    graph = rows_by_ids(op, 2)
    values = tame(graph) | {"ids": np.array([2, 2], np.int32)}
    seen = []
    decoded = reference.decoded
    monkeypatch.setattr(reference, "decoded", lambda a, t: seen.append(a) or decoded(a, t))
    check(graph, values)
    (w,) = (t for t in graph.tensors if t.name == "w")
    assert (1, *w.shape[1:]) in [a.shape for a in seen]
    assert w.shape not in [a.shape for a in seen]


@pytest.mark.parametrize("op", ["get_rows", "set_rows", "mul_mat_id", "add_id"])
@pytest.mark.parametrize("wrong", [-1, 4])
def test_ids_out_of_range_are_a_fault(op, wrong):
    graph = rows_by_ids(op, 2)
    values = tame(graph) | {"ids": np.array([0, wrong], np.int32)}
    with pytest.raises(DeviceFault, match=rf"n0 {op}.*row {wrong} was requested.*4 rows"):
        run_direct(SLOW, graph, values)


# --- counted and reported --------------------------------------------------------------------


def some_without_kernel():
    """Two nodes that have no kernel between two that have one."""
    g = GraphBuilder()
    x = g.input("x", (2, 3))
    order = g.argsort(g.scale(x, 2.0))
    sine = g.op("nd.sin", x)
    return g.build(order, g.op("nd.sin", sine), g.scale(x, 3.0))


X = np.array([[3.0, 1.0, 2.0], [0.0, 5.0, 4.0]], np.float32)


def compiled(graph, device):
    stream = device.create_stream()
    buffers = {t.id: device.allocate(t.nbytes) for t in graph.tensors if not t.is_view}
    program = device.compile(bound_nodes(graph, buffers), stream)
    stream.close()
    return program


@needs_kernels
def test_a_program_names_its_nodes_by_reference():
    graph = some_without_kernel()
    named = {label.split()[1] for label in compiled(graph, FAST).by_reference}
    assert named == {"argsort", "nd.sin"}
    assert len(compiled(graph, SLOW).by_reference) == len(graph.nodes)


def test_a_kernel_of_the_user_is_not_the_reference():
    with registered("affine", AFFINE):
        g = GraphBuilder()
        x, w = g.input("x", (2, 3)), g.input("w", (3,))
        device = CpuDevice(0, CpuSettings(kernels="numpy"))
        assert not compiled(g.build(g.op("affine", x, w)), device).by_reference


@needs_kernels
def test_plan_trace_and_devices_report_them():
    graph, recorder = some_without_kernel(), Recorder()
    with Scheduler(["cpu:0"], settings=Settings(), recorder=recorder) as scheduler:
        scheduler.run(graph, {"x": X})
        text = plan_text(scheduler.plan(graph))
    assert "cpu:0 has no 'argsort': 1 node by the reference arithmetic" in text
    assert "cpu:0 has no 'nd.sin': 2 nodes by the reference arithmetic" in text
    trace = recorder.trace("run")
    made = account(timeline_of(trace), trace.plans)
    assert {op.op for op in made.ops} == {
        "scale", "argsort, by reference", "nd.sin, by reference",
    }  # fmt: skip
    assert "3 nodes without a kernel ran by the reference arithmetic" in account_text(made)


def test_devices_without_kernels_declare_all_ops():
    assert all(runs_by_reference(SLOW.facts, op) for op in (*BUILT_IN, "nd.exp", "nd.conv"))
    assert SLOW.facts.description.startswith("reference arithmetic in numpy")


@needs_kernels
def test_devices_with_kernels_declare_the_rest():
    declared = {op for op in (*BUILT_IN, "nd.exp", "nd.det") if runs_by_reference(FAST.facts, op)}
    assert declared == {*BUILT_IN, "nd.det"} - BUILT_IN_WITH_KERNEL
    assert "argsort" in declared
