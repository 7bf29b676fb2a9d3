"""Calls that one OpenCL kernel runs as steps, on PoCL by one group, which meets itself."""

import re
import struct
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggsched.backend.program import Operand
from ggsched.errors import DeviceFault
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import BF16, F32, Q8_0
from ggsched_kernels import CPU, KernelCall, lower_nodes, source
from ggsched_kernels.calls import CODE, FAULT, CodeOf, Constant, StreamCall, f32, i32, i64
from ggsched_kernels.fault_words import NOT_MET, FaultCodes
from ggsched_kernels.merged import LEAST_CALLS, MERGEABLE, merged, phases, runs
from ggsched_llm.graph import build_model_graph
from ggsched_opencl import driver
from ggsched_opencl.program import OpenClProgram
from ggsched_testing.eager import bound_nodes, run_direct
from ggsched_testing.generators.strategies import graphs, seeds, values_for
from tests.backends import opencl_devices
from tests.backends.against_oracle import tame
from tests.backends.opencl_devices import TIMEOUT_S
from tests.backends.test_opencl_units import UNITS, decoder_step
from tests.kernels.test_fibers import Memory
from tests.support.shapes import SMALL, spec_of

pytestmark = pytest.mark.opencl

ONE = replace(CPU, merged_groups=1)


@pytest.fixture(scope="module")
def device():
    made = opencl_devices.opencl_device()
    yield made
    made.close()


def call(source="norm", lanes=1, args=(), groups=(1, 1, 1)):
    return KernelCall(source, (), "norm_rows", args, groups, lanes, "n")


# --- which calls, and their table ---------------------------------------------------------------


some_calls = st.lists(
    st.one_of(
        st.builds(call, st.sampled_from(["norm", "rows", "matmul"]), st.sampled_from([1, 32])),
        st.just(StreamCall(print, (), (), {}, "user")),
    ),
    max_size=30,
)


@given(calls=some_calls, least=st.integers(2, 8))
def test_runs_are_the_calls_in_order_and_long_or_single(calls, least):
    found = runs(calls, least)
    assert [c for run in found for c in run] == calls
    for run in found:
        assert len(run) == 1 or len(run) >= least
        if len(run) > 1:
            assert {c.source for c in run} <= MERGEABLE
            assert len({c.lanes for c in run}) == 1


places = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 3)), max_size=2)


@given(drawn=st.lists(st.tuples(places, places), max_size=14), looked_at=st.integers(1, 9))
def test_phases_keep_the_order_of_what_depends(drawn, looked_at):
    memory = SimpleNamespace()

    def operands(some):
        return tuple(Operand(memory, at, n, F32, (n,), (1,)) for at, n in some)

    calls = [
        replace(call(groups=(i + 1, 1, 1)), reads=operands(r), writes=operands(w))
        for i, (r, w) in enumerate(drawn)
    ]
    with patch("ggsched_kernels.merged._LOOKED_AT", looked_at):
        found = phases(calls)
    assert sorted(c.groups for phase in found for c in phase) == [c.groups for c in calls]
    level = {c.groups[0] - 1: i for i, phase in enumerate(found) for c in phase}
    touched = [({*span(r)}, {*span(w)}) for r, w in drawn]
    for b, (reads, writes) in enumerate(touched):
        for a, (other_reads, other_writes) in enumerate(touched[:b]):
            apart = not (other_writes & (reads | writes) or other_reads & writes)
            if not (apart and reads and other_reads):
                assert level[a] < level[b]


def span(some):
    return (i for at, n in some for i in range(at, at + n))


@given(drawn=st.lists(st.tuples(places, places, st.booleans()), max_size=9))
def test_products_load_early_what_no_earlier_step_writes(drawn):
    """Groups that load a weight before they meet would read what others have not written yet."""
    memory = SimpleNamespace()

    def operands(some):
        return tuple(Operand(memory, at, n, F32, (n,), (1,)) for at, n in some)

    calls = []
    for weights, w, is_product in drawn:
        source, reads = ("matvec_rows" if is_product else "norm"), operands([*weights, (20, 1)])
        early = operands(weights)
        made = replace(call(source), reads=reads, writes=operands(w), early_reads=early)
        calls.append(made)
    found = merged(calls or [call()])
    written = set[int]()
    for one, flags in zip(found.calls, found.flags, strict=True):
        own = {i for o in one.early_reads for i in range(o.offset, o.offset + o.nbytes)}
        assert bool(flags & 4) == (one.source == "norm" or bool(own & written))
        written |= {i for o in one.writes for i in range(o.offset, o.offset + o.nbytes)}


@pytest.mark.parametrize("is_made", [False, True])
def test_a_weight_that_a_step_makes_is_not_loaded_early(is_made):
    g = GraphBuilder()
    w, x = g.weight("w", (64, 64), BF16), g.input("x", (1, 64))
    if is_made:
        w = g.cont(w)
    made = merged(calls_of(g.build(g.mul_mat(w, x)), replace(UNITS, merged_groups=2)))
    assert "STREAMED" in dict(made.calls[-1].defines)
    assert made.calls[-1].early_reads
    assert bool(made.flags[-1] & 4) == is_made


values = st.one_of(
    st.builds(i32, st.integers(-9, 9)), st.builds(i64, st.integers(-9, 9)),
    st.builds(f32, st.floats(-9, 9)), st.binary(min_size=56, max_size=56),
    st.sampled_from([FAULT, CODE, CodeOf("other"), Constant(b"12")]),
)  # fmt: skip


@pytest.mark.parametrize("name", sorted(MERGEABLE))
def test_functions_of_merged_kernels_know_no_group(name):
    """Which group it is are arguments of what was the kernel."""
    text = source(name, "opencl")
    for body in re.findall(r"^FN (?:[^\n]*}$|.*?^})", text, re.M | re.S):
        assert not re.search(r"\b(GROUPS?|ROW|PART)\b", body), body


@given(every=st.lists(st.lists(values, max_size=6), min_size=1, max_size=4))
def test_a_table_has_what_each_call_is_given(every):
    calls = [call(args=tuple(args), groups=(i + 1, 2, 3)) for i, args in enumerate(every)]
    made = merged(calls)

    def value_of(arg, label):
        if isinstance(arg, bytes):
            return arg
        return i32(7) if arg is CODE or isinstance(arg, CodeOf) else i64(1 << 40)

    table = made.table(value_of)
    assert len(table) == len(calls) * made.step_nbytes
    for i, one in enumerate(calls):
        step = table[i * made.step_nbytes :]
        head = struct.unpack_from("<6i", step)
        assert head[:4] == (made.kinds[i], i + 1, 2, 3)
        at = struct.calcsize("<6i")
        for arg in one.args:
            value = value_of(arg, one.label)
            assert step[at : at + len(value)] == value
            at += -(-len(value) // 8) * 8


# --- results ------------------------------------------------------------------------------------


def results(device, graph, profile, given):
    device.profile = profile
    found = run_direct(device, graph, given)
    return [found[tid] for tid in graph.outputs]


def calls_of(graph, profile):
    memory = {t.id: Memory(t.nbytes) for t in graph.tensors if not t.is_view}
    return lower_nodes(bound_nodes(graph, memory), profile).calls


def small_step(dtype):
    sizes = {"n_layer": 2, "n_vocab": 40, "n_embd": 128, "n_head": 2, "n_head_kv": 1, "n_ff": 96}
    spec = spec_of(replace(SMALL, **sizes), dtype)
    return build_model_graph(spec, n_tokens=1, n_kv=32, n_out=1, n_ctx=32)


@pytest.mark.parametrize("dtype", [Q8_0, pytest.param(BF16, marks=pytest.mark.slow)], ids=str)
def test_a_step_of_a_model_is_one_kernel_with_the_same_result(device, dtype):
    graph = small_step(dtype)
    given = tame(graph)
    (whole,) = runs(calls_of(graph, CPU))
    assert len(whole) > 2 * LEAST_CALLS
    for wanted, found in zip(
        results(device, graph, CPU, given), results(device, graph, ONE, given), strict=True
    ):
        np.testing.assert_array_equal(found, wanted)
    assert set(device.merging._found.values()) == {True}


@settings(max_examples=3)  # each is a program
@given(drawn=graphs(max_nodes=8), seed=seeds())
def test_drawn_graphs_give_the_same_results(device, drawn, seed):
    given = values_for(drawn, seed)
    pieces = partial(runs, least=2)
    with patch("ggsched_opencl.program.runs", pieces):
        found = results(device, drawn.graph, ONE, given)
    for a, b in zip(found, results(device, drawn.graph, CPU, given), strict=True):
        np.testing.assert_array_equal(a, b)


@settings(max_examples=10)
@given(drawn=graphs(max_nodes=12), seed=seeds())
def test_calls_of_a_phase_may_run_in_any_order(device, drawn, seed):
    """What they read and write is all that they touch; scratch memory is shared too."""
    given = values_for(drawn, seed)

    def backwards(program, run):
        return [program._add(c) or c for phase in phases(run) for c in reversed(phase)]

    with (
        patch("ggsched_opencl.program.runs", partial(runs, least=2)),
        patch.object(OpenClProgram, "_merge", backwards),
    ):
        found = results(device, drawn.graph, ONE, given)
    for a, b in zip(found, results(device, drawn.graph, CPU, given), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow  # PoCL takes long for many barriers
def test_steps_of_many_lanes(device, monkeypatch):
    monkeypatch.setattr("ggsched_opencl.program.runs", partial(runs, least=2))
    profile = replace(UNITS, lanes=32)
    graph = decoder_step(BF16, 1)
    given = tame(graph)
    wanted = results(device, graph, profile, given)
    found = results(device, graph, replace(profile, merged_groups=1, merged_lanes=32), given)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("is_timed", [False, True])
def test_streams_that_take_times_run_the_same_kernels(device, monkeypatch, is_timed):
    """Results would have other bits by groups of another size (LCH-4)."""
    graph = small_step(Q8_0)
    memory = {t.id: device.allocate(t.nbytes) for t in graph.tensors if not t.is_view}
    merging, single = [], []
    monkeypatch.setattr(OpenClProgram, "_merge", lambda _, run: merging.extend(run) or True)
    monkeypatch.setattr(OpenClProgram, "_add", lambda _, call: single.append(call))
    device.profile = replace(ONE, merged_lanes=32)
    stream = device.create_stream()
    if is_timed:
        stream.__take_times__()
    device.compile(bound_nodes(graph, memory), stream).close()
    assert bool(merging) != is_timed
    assert {call.lanes for call in merging + single} == {32}
    stream.close()


def test_memory_of_a_merged_kernel_is_kept_until_it_is_complete(device):
    """The driver keeps arguments of commands, but not what a table has addresses of."""
    graph = small_step(Q8_0)
    memory = {t.id: device.allocate(t.nbytes) for t in graph.tensors if not t.is_view}
    device.profile = ONE
    stream = device.create_stream()
    program = device.compile(bound_nodes(graph, memory), stream)
    own = [*program._constants.values()]
    for buffer in memory.values():
        stream.fill(buffer, 0, buffer.nbytes, bytes(1))
    gate = driver.make_gate(device.context)
    stream.queue.hold(gate)
    stream.launch(program)
    program.close()
    held = [handle for _, _, kept in device._draining for handle in kept]
    driver.open_gate(gate)
    stream.sync(TIMEOUT_S)
    assert own
    assert {*map(id, own)} <= {*map(id, held)}
    assert device.is_drained()
    stream.close()


# --- whether groups meet ------------------------------------------------------------------------


def test_more_groups_than_the_device_keeps_are_not_waited_for_long(device):
    """Groups of a processor run to their end; those that wait in vain say so, and no other launch
    is tried with as many.
    """
    graph = small_step(Q8_0)
    many = 4 * device._handle.max_compute_units + 1
    made = merged(calls_of(graph, CPU))
    kernel = device.take_kernel(made.name, (), "merged")
    assert not device.merging._meet(kernel, many, made.lanes)
    assert device.merging._meet(kernel, 1, made.lanes)


def test_groups_that_the_driver_refuses_do_not_meet(device, monkeypatch):
    def refuse(*command):
        raise driver.errors()("clEnqueueNDRangeKernel", -5)

    monkeypatch.setattr(driver, "enqueue_kernel", refuse)
    made = merged(calls_of(small_step(Q8_0), CPU))
    kernel = device.take_kernel(made.name, (), "merged")
    assert not device.merging._meet(kernel, 1, made.lanes)


def test_calls_stay_apart_where_groups_do_not_meet(device, monkeypatch):
    monkeypatch.setattr(device.merging, "_found", {})
    monkeypatch.setattr(device.merging, "_meet", lambda *_: False)
    graph = small_step(Q8_0)
    given = tame(graph)
    for a, b in zip(
        results(device, graph, ONE, given), results(device, graph, CPU, given), strict=True
    ):
        np.testing.assert_array_equal(a, b)
    assert set(device.merging._found.values()) == {False}


def test_groups_that_wait_in_vain_poison_their_stream_alone(device, monkeypatch):
    """The counts are zero again, and the device is usable."""
    monkeypatch.setattr("ggsched_opencl.program.MAX_POLLS", struct.pack("<I", 1 << 9))
    monkeypatch.setattr(device.merging, "do_meet", lambda *_: True)
    graph = small_step(Q8_0)
    memory = {t.id: device.allocate(t.nbytes) for t in graph.tensors if not t.is_view}
    device.profile = replace(ONE, merged_groups=4 * device._handle.max_compute_units + 1)
    stream = device.create_stream()
    for buffer in memory.values():
        stream.fill(buffer, 0, buffer.nbytes, bytes(1))
    made, make = [], driver.make_filled_buffer
    with patch.object(driver, "make_filled_buffer", lambda *of: made.append(make(*of)) or made[-1]):
        program = device.compile(bound_nodes(graph, memory), stream)
    assert made[-1].size == 64
    stream.launch(program)
    with pytest.raises(DeviceFault, match="some groups did not get onto the device"):
        stream.sync(TIMEOUT_S)
    counts = memoryview(bytearray(64))
    driver.read_back(device._migrating, made[-1], counts)
    assert not any(counts)
    program.close()
    stream.close()
    given = tame(graph)
    for a, b in zip(
        results(device, graph, ONE, given), results(device, graph, CPU, given), strict=True
    ):
        np.testing.assert_array_equal(a, b)


def test_groups_that_did_not_meet_are_a_fault():
    codes = FaultCodes("s")
    codes.argument("n3 mul_mat")
    fault = codes.fault([1, 5, NOT_MET])
    assert "n3 mul_mat failed" in str(fault)
    assert "step 5" in str(fault)


def test_a_merged_kernel_waits_for_that_of_another_queue(device, monkeypatch):
    """Two that are on the device at the same time might keep each other's groups away."""
    from ggsched_opencl import merging

    waited, state = [], {"first": 1, "second": 1}
    monkeypatch.setattr(merging.driver, "enqueue_wait", lambda q, e: waited.append((q, e)))
    monkeypatch.setattr(merging.driver, "flush", lambda q: None)
    monkeypatch.setattr(merging.driver, "enqueue_kernel", lambda q, kernel, *_: kernel)
    monkeypatch.setattr(merging, "status_of", state.get)
    queues = ["a", "b"]
    one = merging.Merging(None, None)
    one.enqueue(queues[0], "first", (), ())
    one.enqueue(queues[0], "second", (), ())
    assert waited == []
    one.enqueue(queues[1], "third", (), ())
    assert waited == [("b", "second")]
    state["third"] = 0
    one.enqueue(queues[0], "fourth", (), ())
    assert waited == [("b", "second")]
    state["fourth"] = 1
    monkeypatch.setattr(merging.driver, "make_filled_buffer", lambda *_: None)
    monkeypatch.setattr(merging.driver, "set_argument", lambda *_: None)
    monkeypatch.setattr(merging.driver, "read_back", lambda *_: None)
    probing = merging.Merging(None, "c")
    probing._newest = one._newest
    probing._meet("fifth", 1, 1)  # else it would find that groups do not meet, once for all
    assert waited[1:] == [("c", "fourth")]
