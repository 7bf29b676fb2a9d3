"""Plans as JSON: nothing is lost, nothing unexpected is accepted."""

import json

import msgspec
import pytest

from ggsched.errors import PlanError
from ggsched.plan.bundle import FORMAT
from ggsched.plan.codec import plan_from_json, plan_to_json
from ggsched.plan.command import Wait
from ggsched.plan.effects import Hazard, Step
from ggsched.plan.memory import Region
from ggsched.topology.cost import GUESSES
from tests.plan.examples import example

OPTIONAL = {"rates": GUESSES, "planning_s": 0.0, "trades": (), "fusions": (), "graph_text": ""}


@pytest.fixture(scope="module")
def plan():
    return example().plan


def test_round_trip_restores_every_type(plan):
    again = plan_from_json(plan_to_json(plan))
    assert again == plan
    wait = next(c for c in again.commands if isinstance(c, Wait))
    assert type(wait.hazard) is Hazard
    launch = next(c for c in again.commands if hasattr(c, "steps"))
    assert type(launch.steps[0]) is Step
    assert type(launch.steps[0].operands[0]) is Region
    assert all(type(key) is int for key in again.placement.homes)
    assert type(again.devices[0].ops) is frozenset


def test_text_is_accepted_too(plan):
    assert plan_from_json(plan_to_json(plan).decode()) == plan


def test_equal_plans_have_equal_bytes(plan):
    homes = dict(reversed(plan.placement.homes.items()))
    turned = msgspec.structs.replace(
        plan, placement=msgspec.structs.replace(plan.placement, homes=homes)
    )
    assert turned == plan
    assert plan_to_json(turned) == plan_to_json(plan)


def test_it_is_plain_json(plan):
    data = json.loads(plan_to_json(plan))
    assert data["format"] == FORMAT
    assert {c["type"] for c in data["commands"]} >= {"upload", "launch", "record", "wait"}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "truncated"),
        (b"{", "truncated"),
        (b"[1, 2]", "Expected `object`"),
        (b"null", "Expected `object`"),
        (b"{}", "missing required field `format`"),
        (b'{"format": 1}', "Expected `str`"),
        (b'{"format": "ggsched-plan/1"}', "format 'ggsched-plan/1' instead of"),
        (b'{"format": "ggsched-plan/3"}', "missing required field"),
        (b"\xff\xfe", "malformed"),
        (b"[" * 100_000, "not a plan"),
        ("\ud800", "not a plan"),
    ],
)
def test_what_is_no_plan_is_refused(data, reason):
    with pytest.raises(PlanError, match="^plan: ") as info:
        plan_from_json(data)
    assert reason in info.value.one_line()
    assert "\n" not in info.value.one_line()


def _broken(plan, *path, value):
    data = json.loads(plan_to_json(plan))
    at = data
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return json.dumps(data).encode()


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        (("commands", 0, "type"), "teleport", "Invalid value 'teleport'"),
        (("commands", 0, "src"), [1, 2], "length"),
        (("commands", 0, "src"), {"arena": 1}, "Expected `array`"),
        (("commands", 0, "id"), "0", "$.commands[0].id"),
        (("memory", "arenas", 0, "kind"), "attic", "Invalid enum value 'attic'"),
        (("placement", "choices", 0, "cause"), "whim", "Invalid enum value 'whim'"),
        (("placement", "homes"), {"x": 1}, "Expected `int`"),
        (("devices", 0, "alignment"), 3, "not a power of two"),
        (("devices", 0, "max_streams"), 0, "at least one stream"),
    ],
)
def test_what_has_a_wrong_part_is_refused(plan, path, value, reason):
    with pytest.raises(PlanError) as info:
        plan_from_json(_broken(plan, *path, value=value))
    assert reason in info.value.one_line()


def test_every_field_is_needed(plan):
    whole = json.loads(plan_to_json(plan))
    for field in whole:
        data = {key: value for key, value in whole.items() if key != field}
        if field in OPTIONAL:
            assert getattr(plan_from_json(json.dumps(data)), field) == OPTIONAL[field]
            continue
        with pytest.raises(PlanError):
            plan_from_json(json.dumps(data))
