"""Equal devices of different machines have rates of their own."""

from dataclasses import replace

import pytest

from ggsched.calibrate.identity import device_identity
from ggsched.topology.cost import machine_of
from ggsched_testing.plan_builder import fake_device

FACTS = fake_device("cpu:0")


@pytest.mark.parametrize(
    ("name", "machine"),
    [
        ("cuda:0", ""),
        ("cuda:0/1", ""),
        ("ray://red/cuda:0", "ray://red"),
        ("ray://red/cuda:0/1", "ray://red"),
    ],
)
def test_the_machine_of_a_name(name, machine):
    assert machine_of(replace(FACTS, name=name)) == machine


def test_devices_of_a_machine_share_an_identity_and_those_of_two_do_not():
    names = ("ray://red/cpu:0", "ray://red/cpu:0/1", "ray://blue/cpu:0", "cpu:0", "cpu:1")
    a, b, c, d, e = (device_identity(replace(FACTS, name=name)) for name in names)
    assert a == b
    assert d == e
    assert len({a, c, d}) == 3
