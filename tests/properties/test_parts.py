"""Whatever plan is cut over whatever machines, the parts are in order; broken parts are noticed."""

import msgspec
import pytest
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

from ggsched.plan.command import HostSync
from ggsched.plan.parts import Part, Receive, Send
from ggsched.plan.text import plan_text
from ggsched_cluster.check_parts import check_parts
from ggsched_cluster.machines import cut_by_machine
from ggsched_testing.generators.strategies import graphs
from ggsched_testing.generators.topologies import constraints, topologies
from tests.cluster.machines import apart
from tests.support.verified_plans import verified_plan

EXAMPLES = settings().max_examples
EACH = 20
"""Most mutants of each kind that are taken from one plan."""


@st.composite
def cuts(draw, max_machines=3):
    drawn = draw(graphs())
    topology = draw(topologies(min_devices=2))
    count = len(topology.devices)
    others = st.lists(st.integers(0, max_machines - 1), min_size=count - 2, max_size=count - 2)
    machines = [0, 1, *draw(others)]
    topology = apart(topology, machines)
    plan = verified_plan(drawn.graph, topology, draw(constraints(drawn.graph, topology)))
    return plan, cut_by_machine(plan, machines), machines


@given(cut=cuts())
def test_parts_are_clean(cut):
    plan, parts, machines = cut
    report = check_parts(plan, parts, machines)
    messages = sum(isinstance(c, Send) for part in parts for c in part.commands)
    event(f"messages: {min(messages, 4)}")
    text = "\n\n".join(f"machine {part.machine}\n{part.text}" for part in parts)
    assert report.is_clean, f"{report.to_text()}\n{text}\n{plan_text(plan, verbose=True)}"


@settings(max_examples=max(5, EXAMPLES // 10))
@given(cut=cuts())
def test_parts_survive_json(cut):
    for part in cut[1]:
        assert msgspec.json.decode(msgspec.json.encode(part), type=Part) == part


def _places(parts, kind):
    return [
        (p, i)
        for p, part in enumerate(parts)
        for i, c in enumerate(part.commands)
        if isinstance(c, kind)
    ]


def _with(parts, p, commands):
    changed = msgspec.structs.replace(parts[p], commands=tuple(commands))
    return (*parts[:p], changed, *parts[p + 1 :])


def drop_sends(parts):
    for p, i in _places(parts, Send):
        yield _with(parts, p, parts[p].commands[:i] + parts[p].commands[i + 1 :])


def drop_messages(parts):
    for p, i in _places(parts, Send):
        tag = parts[p].commands[i].tag
        yield tuple(
            msgspec.structs.replace(
                part, commands=tuple(c for c in part.commands if getattr(c, "tag", -1) != tag)
            )
            for part in parts
        )


def send_first(parts):
    """Send before anything has been computed."""
    for p, i in _places(parts, Send):
        c = parts[p].commands
        if any(not isinstance(x, Send | Receive) and x.effects.writes for x in c[:i]):
            yield _with(parts, p, (c[i], *c[:i], *c[i + 1 :]))


def receive_last(parts):
    for p, i in _places(parts, Receive):
        c = parts[p].commands
        yield _with(parts, p, (*c[:i], *c[i + 1 :], c[i]))


def other_bytes(parts):
    for p, i in _places(parts, Send):
        c = parts[p].commands
        src = c[i].src._replace(offset=c[i].src.offset + 1)
        changed = msgspec.structs.replace(c[i], src=src)
        yield _with(parts, p, (*c[:i], changed, *c[i + 1 :]))


def drop_the_wait(parts):
    """Leave out the wait of the host that stands directly before what is sent."""
    for p, i in _places(parts, Send):
        c = parts[p].commands
        before = [k for k in range(i) if isinstance(c[k], HostSync)]
        if before and not any(isinstance(x, HostSync) for x in c[i:]):
            syncs = set(before)
            yield _with(parts, p, [x for k, x in enumerate(c) if k not in syncs])


def forget_an_input(parts):
    for p, part in enumerate(parts):
        if part.inputs:
            changed = msgspec.structs.replace(part, inputs=part.inputs[1:])
            yield (*parts[:p], changed, *parts[p + 1 :])


def move_commands(parts):
    """Let another machine run a command, at the same place in the order of the plan."""
    for p, part in enumerate(parts):
        for i, c in enumerate(part.commands):
            q = (p + 1) % len(parts)
            if q != p and not isinstance(c, Send | Receive):
                there = list(parts[q].commands)
                at = next((k for k, x in enumerate(there) if x.id > c.id), len(there))
                without = _with(parts, p, [*part.commands[:i], *part.commands[i + 1 :]])
                yield _with(without, q, [*there[:at], c, *there[at:]])


MUTATIONS = (
    move_commands,
    drop_sends,
    drop_messages,
    send_first,
    receive_last,
    other_bytes,
    drop_the_wait,
    forget_an_input,
)


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda f: f.__name__)
@settings(
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    max_examples=max(5, EXAMPLES // 10),
)
@given(cut=cuts())
def test_broken_parts_are_noticed(mutate, cut):
    plan, parts, machines = cut
    mutants = list(mutate(parts))
    assume(mutants)
    for mutant in mutants[:: 1 + len(mutants) // EACH]:
        assert not check_parts(plan, mutant, machines).is_clean, plan_text(plan, verbose=True)
