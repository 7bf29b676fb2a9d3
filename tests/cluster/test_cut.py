"""Plans cut by machines: what is refused, what a reader sees, machines that wait for each other."""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import msgspec
import numpy as np
import pytest

from ggsched import GraphBuilder
from ggsched.backend.base import host_facts
from ggsched.backend.probe import probe
from ggsched.errors import PlanError, UsageError
from ggsched.ir.join import join_graphs
from ggsched.passes import make_plan
from ggsched.passes.memory.rings import Slots
from ggsched.passes.place import Constraints
from ggsched.plan.command import Download, HostSync, Launch, Upload
from ggsched.plan.parts import Receive, Send, local_plan
from ggsched.run.capture_plan import plan_capture
from ggsched.run.executor import Executor
from ggsched.run.resources import Resources
from ggsched.run.store import TensorStore
from ggsched.topology.model import CopyPath, Topology
from ggsched_cluster.check_parts import check_parts
from ggsched_cluster.machines import cut_by_machine
from ggsched_cpu import open_backend
from ggsched_testing.generators.topologies import ALL_OPS
from ggsched_testing.plan_builder import fake_device
from tests.backends.device_settings import KERNELS, FarDevice
from tests.cluster.machines import MachineThread, Post, apart
from tests.support.verified_plans import verified_plan


def there_and_back():
    """A graph whose three nodes run on machines 0, 1 and 0."""
    g = GraphBuilder("there and back")
    x = g.input("x", (4, 8))
    y = g.silu(g.gelu(g.silu(x)))
    return g.build(y)


def machine_of_two(**paths):
    devices = tuple(fake_device(f"fake:{i}", ops=ALL_OPS) for i in range(2))
    return Topology(devices, **paths)


PINS = Constraints(pins={0: 0, 1: 1, 2: 0})


def the_parts():
    plan = make_plan(there_and_back(), machine_of_two(), PINS)
    return plan, cut_by_machine(plan, [0, 1])


def test_each_machine_gets_its_commands_once_and_messages_between():
    plan, parts = the_parts()
    assert [part.machine for part in parts] == [0, 1]
    assert [part.inputs for part in parts] == [("x",), ()]
    assert [part.outputs for part in parts] == [plan.outputs and (plan.outputs[0].tensor,), ()]
    first, second = (
        [c.text for c in part.commands if isinstance(c, Send | Receive)] for part in parts
    )
    assert [t.split()[0] for t in first] == ["send", "receive"]
    assert [t.split()[0] for t in second] == ["receive", "send"]
    assert "send #0 " in parts[0].text
    assert "from machine 1" in parts[0].text
    own = [c.id for part in parts for c in part.commands if not isinstance(c, Send | Receive)]
    assert sorted(own) == list(range(len(plan.commands)))
    assert check_parts(plan, parts, [0, 1]).is_clean


def test_bytes_that_a_machine_has_are_not_sent_again():
    """Two devices of a machine upload what came in one message."""
    topology = Topology(tuple(fake_device(f"fake:{i}", ops=ALL_OPS) for i in range(3)))
    g = GraphBuilder("two readers")
    y = g.silu(g.input("x", (4, 8)))
    graph = g.build(g.silu(y), g.gelu(y))
    plan = make_plan(graph, topology, Constraints(pins={0: 0, 1: 1, 2: 2}))
    first, second = (c for c in plan.commands if isinstance(c, Upload) and c.stream != 0)
    commands = list(plan.commands)
    commands[second.id] = msgspec.structs.replace(second, src=first.src)
    parts = cut_by_machine(msgspec.structs.replace(plan, commands=tuple(commands)), [0, 1, 1])
    assert [sum(isinstance(c, Send) for c in part.commands) for part in parts] == [1, 0]


def test_machines_that_wait_for_each_other_are_found():
    plan, parts = the_parts()
    commands = list(parts[1].commands)
    sent = next(i for i, c in enumerate(commands) if isinstance(c, Send))
    waits = next(i for i, c in enumerate(parts[0].commands) if isinstance(c, Receive))
    mine = list(parts[0].commands)
    first = next(i for i, c in enumerate(mine) if isinstance(c, Send))
    mine.insert(waits, mine.pop(first))  # receives before it sends
    turned = msgspec.structs.replace(parts[0], commands=tuple(mine)), parts[1]
    report = check_parts(plan, turned, [0, 1])
    assert {f.kind for f in report.findings} == {"progress"}
    assert "machine 0 waits forever: receive #1" in report.to_text()
    assert sent


@pytest.mark.parametrize("change", ["length", "partner", "twice"])
def test_halves_that_do_not_match_are_found(change):
    plan, parts = the_parts()
    commands = list(parts[0].commands)
    i = next(i for i, c in enumerate(commands) if isinstance(c, Send))
    send = commands[i]
    if change == "length":
        commands[i] = msgspec.structs.replace(send, src=send.src._replace(nbytes=4))
    elif change == "partner":
        commands[i] = msgspec.structs.replace(send, machine=2)
    else:
        commands.insert(i, send)
    changed = msgspec.structs.replace(parts[0], commands=tuple(commands)), parts[1]
    report = check_parts(plan, changed, [0, 1])
    assert "message #0 does not have a sender and a receiver" in report.to_text()


def test_a_copy_between_machines_is_refused():
    paths = {(0, 1): CopyPath(0, 1, 0), (1, 0): CopyPath(1, 0, 1)}
    plan = make_plan(there_and_back(), machine_of_two(copy_paths=paths), PINS)
    with pytest.raises(PlanError, match=r"needs several machines: copy .*fake:0, fake:1"):
        cut_by_machine(plan, [0, 1])


def test_a_wait_for_an_event_of_another_machine_is_refused():
    waits = {(0, 1): "native", (1, 0): "native"}
    plan = make_plan(there_and_back(), machine_of_two(wait_paths=waits), PINS)
    with pytest.raises(PlanError, match="needs several machines: wait e0"):
        cut_by_machine(plan, [0, 1])


def test_a_part_needs_a_network():
    with_host_memory = open_backend()
    devices = [with_host_memory.open_device(i) for i in range(2)]
    topology = Topology(tuple(d.facts for d in devices))
    plan = make_plan(there_and_back(), topology, PINS)
    part = cut_by_machine(plan, [0, 1])[0]
    commands = tuple(c for c in part.commands if isinstance(c, Send | Receive))
    store = TensorStore(devices, {}, timeout_s=5)
    try:
        resources = Resources(there_and_back(), plan, store)
        resources.plan = msgspec.structs.replace(plan, commands=commands)
        with pytest.raises(UsageError, match="a part of a plan needs a network"):
            Executor(there_and_back(), resources.plan, resources, timeout_s=5)
        resources.close()
    finally:
        store.close()
        for device in devices:
            device.close()


def test_messages_stay_outside_of_captured_commands():
    """Parts run captured where devices offer it, and messages go out and in between replays."""
    ops = [f"{op}:f32" for op in KERNELS]
    devices = [
        FarDevice(host_facts("far", ops, name=f"far:{i}", is_host=False), KERNELS) for i in range(2)
    ]
    g = GraphBuilder("adds")
    x = g.input("x", (8,))
    y = x
    for _ in range(6):
        y = g.add(y, y)
    graph = g.build(y)
    topology = apart(probe(devices), [0, 1])
    pins = Constraints(pins=dict(enumerate([0, 0, 1, 1, 0, 0])))
    plan = verified_plan(graph, topology, pins)
    post, parts = Post(), []
    try:
        for part in cut_by_machine(plan, [0, 1]):
            found = plan_capture(local_plan(plan, part, plan.devices), {0, 1})
            inside = {i for s in found.segments for i in range(s.start, s.stop)}
            assert len(found.segments) == (2 if part.machine == 0 else 1)
            assert not any(isinstance(part.commands[i], Send | Receive) for i in inside)
            parts += [MachineThread(graph, plan, part, [0, 1], devices, {}, post)]
        with ThreadPoolExecutor(2) as pool:
            for run in range(4):
                values = {"x": np.full(8, run + 1, np.float32)}
                results = list(pool.map(lambda part, v=values: part.run(v), parts))
                np.testing.assert_array_equal(results[0][graph.outputs[0]], 64 * values["x"])
        assert [p.executor.captured.report.replays for p in parts] == [2 * 3, 3]
    finally:
        for part in parts:
            part.close()
        for device in devices:
            device.close()


def two_stages(batches):
    """Parts of a pipeline over two machines."""
    g = GraphBuilder("stages")
    x = g.input("x", (4, 8))
    for name in ("a", "b"):
        x = g.silu(g.mul_mat(g.weight(name, (8, 8)), x))
    joined = join_graphs([g.build(x)] * batches)
    where = Constraints(homes={"a": 0, "b": 1}).with_slots(Slots(2, joined.firsts))
    plan = make_plan(joined.graph, machine_of_two(), where)
    return plan, cut_by_machine(plan, [0, 1])


def test_the_next_micro_batch_is_enqueued_before_the_host_waits_for_one():
    plan, parts = two_stages(4)
    assert check_parts(plan, parts, [0, 1]).is_clean
    sender = next(p.commands for p in parts if isinstance(p.commands[-1], Send))
    for before, wait in pairwise(c for c in sender if isinstance(c, HostSync)):
        between = sender[sender.index(before) : sender.index(wait)]
        if wait is not next(c for c in reversed(sender) if isinstance(c, HostSync)):
            assert sum(isinstance(c, Launch) for c in between) == 1
    ahead = sender[: next(i for i, c in enumerate(sender) if isinstance(c, HostSync))]
    assert sum(isinstance(c, Launch) for c in ahead) == 2


def test_a_wait_that_stands_too_late_is_found():
    """Behind the download that writes over what is sent."""
    plan, parts = two_stages(4)
    k = next(k for k, p in enumerate(parts) if isinstance(p.commands[-1], Send))
    commands = list(parts[k].commands)
    send = next(c for c in commands if isinstance(c, Send))
    wait = commands[commands.index(send) - 1]
    for c in (wait, send):
        commands.remove(c)
    over = next(
        i
        for i, c in enumerate(commands)
        if isinstance(c, Download) and c.dst == send.src and c.id > wait.id
    )
    commands[over + 1 : over + 1] = [wait, send]
    broken = [*parts]
    broken[k] = msgspec.structs.replace(parts[k], commands=tuple(commands))
    assert not check_parts(plan, broken, [0, 1]).is_clean


def test_what_the_run_before_reads_is_not_overwritten_ahead_of_a_wait():
    """Copies of machine 1 keep no order with launches: only the wait for what is sent does."""
    g = GraphBuilder("next run")
    s = g.state("s", (4, 8))
    here = g.add(s, g.weight("w", (4, 8)))
    g.set_rows(g.state("t", (4, 8)), g.input("x", (1, 8)), g.weight("ids", (1,), "i32"))
    graph = g.build(here)
    facts = [fake_device(f"fake:{i}", ops=ALL_OPS, copy_order=o)
             for i, o in enumerate(("stream", "barrier"))]  # fmt: skip
    topology = apart(Topology(tuple(facts)), [0, 1])
    pins = Constraints(pins={0: 0, 1: 1}, homes={"s": 1, "t": 1})
    plan = verified_plan(graph, topology, pins)
    parts = cut_by_machine(plan, [0, 1])
    report = check_parts(plan, parts, [0, 1])
    assert report.is_clean, report.to_text()
    commands = parts[1].commands
    sends = next(i for i, c in enumerate(commands) if isinstance(c, Send))
    reads = next(i for i, c in enumerate(commands) if isinstance(c, Upload))
    assert sends < reads
