"""The planner that the benchmarks compare with: it synchronises as ggml does, and is right too."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import F32
from ggsched.passes import Constraints, make_plan
from ggsched.plan.command import HostSync, Wait
from ggsched.plan.text import plan_text
from ggsched.sanitize import check_plan
from ggsched.topology.model import CopyPath, Topology
from ggsched_testing.generators.strategies import graphs
from ggsched_testing.generators.topologies import ALL_OPS, constraints
from ggsched_testing.plan_builder import fake_device
from tests.support.model_mixes import (
    LAYERS,
    MIXES,
    decode_graph,
    large_models,
    large_spec,
    mix,
    topology,
)
from tests.support.split_sync import split_sync_plan


@st.composite
def machines(draw):
    """Draw one or two GPUs and a CPU; there may be copy paths, which either end executes."""
    count = draw(st.integers(1, 2))
    kinds = ["gpu"] * count + ["cpu"]
    devices = [fake_device(f"fake:{i}", kind=kind, ops=ALL_OPS) for i, kind in enumerate(kinds)]
    pairs = [(a, b) for a in range(len(kinds)) for b in range(len(kinds)) if a != b]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True))
    copies = {pair: CopyPath(*pair, draw(st.sampled_from(pair))) for pair in chosen}
    return Topology(tuple(devices), copies, dict.fromkeys(pairs, "native"))


@given(drawn=graphs(max_nodes=24), machine=machines(), data=st.data())
def test_no_race(drawn, machine, data):
    wanted = data.draw(constraints(drawn.graph, machine))
    plan = split_sync_plan(drawn.graph, machine, wanted)
    assert not disorder(plan), f"{check_plan(plan).to_text()}\n{plan_text(plan)}"


@pytest.mark.parametrize("executor", [0, 1])
def test_what_is_copied_is_overwritten_behind_the_copy(executor):
    """By the source, in place, while the destination may still be copying: found by the above."""
    b = GraphBuilder("in place")
    x = b.input("x", (4,), F32)
    for inplace in (True, False, True):
        last = b.add(x, x, inplace=inplace)
    graph = b.build(last)
    gpus = tuple(fake_device(f"gpu:{i}", kind="gpu", ops=ALL_OPS) for i in range(2))
    waits = {(0, 1): "native", (1, 0): "native"}
    machine = Topology(gpus, {(0, 1): CopyPath(0, 1, executor)}, waits)
    plan = split_sync_plan(graph, machine, Constraints(pins={0: 0, 1: 1, 2: 0}))
    assert not disorder(plan)
    assert _count(plan, Wait) == 1 + executor, "the source waits if it does not copy itself"


def test_more_syncs_than_ours_for_each_machine():
    hparams = large_models()[1]
    spec = large_spec(hparams)
    graph = decode_graph(spec, 64)
    assert hparams.n_layer == LAYERS
    for name in MIXES:
        machine, wanted = mix(name, spec)
        theirs, ours = split_sync_plan(graph, machine, wanted), make_plan(graph, machine, wanted)
        assert not disorder(theirs)
        host, waits = ([_count(plan, kind) for plan in (ours, theirs)] for kind in (HostSync, Wait))
        assert host[0] == 1
        assert host[0] + waits[0] <= host[1] + waits[1]


def test_a_copy_between_accelerators_is_awaited_by_an_event():
    gpus = [fake_device(f"gpu:{i}", kind="gpu", ops=ALL_OPS) for i in range(2)]
    copies = {(a, b): CopyPath(a, b, a) for a, b in ((0, 1), (1, 0))}
    machine = Topology(tuple(gpus), copies, {(0, 1): "native", (1, 0): "native"})
    spec = large_spec(large_models()[0])
    _, wanted = mix("gpu + cpu, half", spec)
    plan = split_sync_plan(decode_graph(spec, 64), machine, wanted)
    assert not disorder(plan)
    assert _count(plan, Wait) == 1


def disorder(plan):
    """Return the findings, except for hazards: a boundary waits whether there is one or not."""
    return [f for f in check_plan(plan, without=("memory_sizes",)).findings if f.kind != "hazard"]


def _count(plan, kind):
    return sum(isinstance(c, kind) for c in plan.commands)


def test_machines_of_the_tables_have_what_they_say():
    assert [d.kind for d in topology().devices] == ["gpu", "cpu"]
