"""The documentation of the format names every command and every field, and no others."""

import json
import re
from dataclasses import fields, is_dataclass
from pathlib import Path

import msgspec
import pytest

from ggsched.plan.codec import plan_schema, plan_to_json, schema_text
from ggsched.plan.effects import Hazard, Step
from ggsched.plan.memory import Region
from tests.plan.examples import example

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
PAGE = (REFERENCE / "plan-format.md").read_text(encoding="utf-8")
CAPABILITIES = (REFERENCE / "capabilities.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^###? (\w+)\n(.*?)(?=^##|\Z)", PAGE + CAPABILITIES, re.M | re.S))
OBJECTS = sorted(name for name, s in plan_schema()["$defs"].items() if s["type"] == "object")


def test_schema_file_is_current():
    text = (REFERENCE / "plan.schema.json").read_text(encoding="utf-8")
    again = "from ggsched.plan.codec import schema_text; print(schema_text(), end='')"
    assert text == schema_text(), f'python -c "{again}" > docs/reference/plan.schema.json'


@pytest.mark.parametrize("name", OBJECTS)
def test_every_field_is_documented(name):
    schema = plan_schema()["$defs"][name]
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*) \|", SECTIONS[name], re.M)
    assert [field for field, _ in rows] == [f for f in schema["properties"] if f != "type"]
    optional = {field for field, what in rows if "optional" in what}
    required = set(schema["required"]) - {"type"}
    assert optional == {field for field, _ in rows} - required
    if "type" in schema["properties"]:
        (tag,) = schema["properties"]["type"]["enum"]
        assert f'`"type": "{tag}"`' in SECTIONS[name]


@pytest.mark.parametrize("kind", [Region, Step, Hazard])
def test_arrays_are_documented(kind):
    assert f"**{kind.__name__}**: `[{', '.join(kind._fields)}]`" in PAGE


def test_a_real_plan_has_the_documented_shape():
    def check(value, schema):
        schema = plan_schema()["$defs"][schema["$ref"].rpartition("/")[2]]
        for name, part in schema.get("properties", {}).items():
            assert name in value
            if "$ref" in part and isinstance(value[name], dict):
                check(value[name], part)

    data = json.loads(plan_to_json(example().plan))
    check(data, {"$ref": "#/$defs/Plan"})
    commands = {c["type"]: c for c in data["commands"]}
    for c in example(copy_order="barrier").plan.commands:
        documented = SECTIONS[type(c).__name__]
        assert all(f"| `{f}` |" in documented for f in msgspec.structs.asdict(c))
    assert set(commands) >= {"upload", "launch", "wait"}


def test_device_facts_are_those_of_the_topology():
    facts = type(example().topology.devices[0])
    assert is_dataclass(facts)
    rows = re.findall(r"^\| `(\w+)` \|", SECTIONS["DeviceFacts"], re.M)
    assert rows == [f.name for f in fields(facts)]
