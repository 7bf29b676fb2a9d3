"""Which defects of a new plan are found before it runs, by the settings that request checks."""

import msgspec
import pytest

from ggsched import planner
from ggsched.config import Settings
from ggsched.errors import RaceFound
from ggsched.plan.command import Launch, Record, Wait
from ggsched.scheduler import Scheduler
from tests.run.devices import TestDevice
from tests.run.graphs import W, chain

replace = msgspec.structs.replace


def fewer_nodes(plan):
    kept = [c for c in plan.commands if not isinstance(c, Launch)]
    return replace(plan, commands=tuple(replace(c, id=i) for i, c in enumerate(kept)))


def fewer_waits(plan):
    """Nothing but the order of accesses is wrong: waits are records of events that nobody uses."""
    events = len(plan.commands)
    return replace(
        plan,
        commands=tuple(
            Record(c.id, c.stream, events + c.id) if isinstance(c, Wait) else c
            for c in plan.commands
        ),
    )


@pytest.mark.parametrize(
    ("breaks", "verify", "sanitize", "is_found"),
    [
        (fewer_nodes, False, "off", False),
        (fewer_nodes, True, "off", True),
        (fewer_nodes, False, "plan", True),
        (fewer_waits, True, "off", False),
        (fewer_waits, False, "plan", True),
    ],
)
def test_what_is_found(breaks, verify, sanitize, is_found, monkeypatch):
    make_plan = planner.make_plan
    monkeypatch.setattr(
        planner, "make_plan", lambda *args, **options: breaks(make_plan(*args, **options))
    )
    devices = [TestDevice(f"test:{i}", is_async=True) for i in range(2)]
    graph, wanted = chain(1)
    settings = Settings(verify=verify, sanitize=sanitize, rates="off")
    with Scheduler(devices, weights={"w": W}, settings=settings) as scheduler:
        if is_found:
            with pytest.raises(RaceFound):
                scheduler.plan(graph, wanted)
        else:
            assert scheduler.plan(graph, wanted).commands
