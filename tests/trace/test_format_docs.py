"""The page of the format names every record and every field, and no others."""

import re
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from ggsched.trace.export import Header
from ggsched.trace.schema import FORMAT, Access, Actor, Entry

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "trace-format.md"
TEXT = PAGE.read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^###? (\w+)\n(.*?)(?=^##|\Z)", TEXT, re.M | re.S))


@pytest.mark.parametrize("kind", [Header, Actor, *get_args(Entry)], ids=lambda k: k.__name__)
def test_every_field_is_documented(kind):
    section = SECTIONS[kind.__name__]
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \|", section, re.M))
    info = msgspec.inspect.type_info(kind)
    assert list(rows) == [field.name for field in info.fields]
    for field in info.fields:
        assert ("optional" in rows[field.name]) == (not field.required), field.name
    if info.tag:
        assert f'`"type": "{info.tag}"`' in section


def test_accesses_and_version():
    assert f"**Access**: `[{', '.join(Access._fields)}]`" in TEXT
    assert FORMAT in TEXT
