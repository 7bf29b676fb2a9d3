"""Plans cut by machines: what is refused, what a reader sees, machines that wait for each other."""

import msgspec
import pytest

from ggsched import GraphBuilder
from ggsched.errors import PlanError, UsageError
from ggsched.passes import make_plan
from ggsched.passes.machines import cut_by_machine
from ggsched.passes.place import Constraints
from ggsched.plan.parts import Receive, Send
from ggsched.run.executor import Executor
from ggsched.run.resources import Resources
from ggsched.run.store import TensorStore
from ggsched.sanitize.from_parts import check_parts
from ggsched.testing.generators.topologies import ALL_OPS
from ggsched.testing.plan_builder import fake_device
from ggsched.topology.model import CopyPath, Topology
from ggsched_cpu import open_backend


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
    assert check_parts(plan, parts).is_clean


def test_machines_that_wait_for_each_other_are_found():
    plan, parts = the_parts()
    commands = list(parts[1].commands)
    sent = next(i for i, c in enumerate(commands) if isinstance(c, Send))
    waits = next(i for i, c in enumerate(parts[0].commands) if isinstance(c, Receive))
    mine = list(parts[0].commands)
    first = next(i for i, c in enumerate(mine) if isinstance(c, Send))
    mine.insert(waits, mine.pop(first))  # receives before it sends
    report = check_parts(plan, (msgspec.structs.replace(parts[0], commands=tuple(mine)), parts[1]))
    assert {f.kind for f in report.findings} == {"progress"}
    assert "machine 0 waits for ever: receive #1" in report.to_text()
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
    report = check_parts(
        plan, (msgspec.structs.replace(parts[0], commands=tuple(commands)), parts[1])
    )
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
