"""Choices of devices, layers and homes stay as the table says, unless ADR 86 says why not."""

import json
from pathlib import Path

import pytest

from tests.models.placement_cases import CASES, chosen

FROZEN = json.loads((Path(__file__).parent.parent / "data" / "placements.json").read_bytes())


def test_the_table_has_all_cases():
    assert list(FROZEN) == list(CASES)


@pytest.mark.parametrize("name", CASES)
def test_a_choice_stays(name):
    assert chosen(name) == FROZEN[name]
