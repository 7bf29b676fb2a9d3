"""Topology files that were recorded on machines that are not here are read as they are."""

import pytest

from ggsched.topology.codec import topology_from_text, topology_to_text
from tests.meta.repository import ROOT

RECORDED = sorted((ROOT / "tests" / "data" / "topologies").glob("*.json"))


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_it_is_read(path):
    topology = topology_from_text(path.read_bytes(), path.name)
    assert topology_from_text(topology_to_text(topology)) == topology
    assert all(device.ops for device in topology.devices)


def test_there_are_some():
    assert RECORDED
