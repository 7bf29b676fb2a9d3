"""Machines and graphs for tests of the passes."""

from typing import get_args

from hypothesis import strategies as st

from ggsched.passes.place import Constraints
from ggsched.topology.caps import CopyOrder
from ggsched.topology.model import CopyPath, Topology
from ggsched_testing.generators.topologies import ALL_OPS
from ggsched_testing.plan_builder import fake_device

N = 16
NBYTES = 4 * N


def device(name, *, lacks=(), **facts):
    """Return a device that supports every op but those of some names."""
    ops = frozenset(key for key in ALL_OPS if key.partition(":")[0] not in lacks)
    kind = "cpu" if name.startswith("cpu") else "gpu"
    return fake_device(name, **{"kind": kind, "ops": ops, **facts})


def machine(*devices, copies=None, waits=None):
    """Return a topology; copies along all paths by their source and native waits by default."""
    facts = tuple(device(d) if isinstance(d, str) else d for d in devices)
    pairs = [(a, b) for a in range(len(facts)) for b in range(len(facts)) if a != b]
    paths = {(a, b): CopyPath(a, b, a) for a, b in pairs} if copies is None else copies
    with_events = [p for p in pairs if all(facts[d].has_events for d in p)]
    return Topology(facts, paths, dict.fromkeys(with_events, "native") if waits is None else waits)


@st.composite
def connected(draw):
    """Draw a machine of devices with events that wait for each other without the host."""
    count = draw(st.integers(2, 4))
    facts = tuple(
        fake_device(
            f"fake:{i}",
            ops=ALL_OPS,
            snapshots_uploads=draw(st.booleans()),
            copy_order=draw(st.sampled_from(get_args(CopyOrder))),
        )
        for i in range(count)
    )
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    copies = {
        (a, b): CopyPath(a, b, draw(st.sampled_from((a, b))))
        for a, b in pairs
        if draw(st.integers(0, 3))
    }
    return Topology(facts, copies, dict.fromkeys(pairs, "native"))


def pinned(*devices, **homes):
    """Return constraints that pin the first nodes to these devices, and homes by name."""
    return Constraints(homes=homes, pins=dict(enumerate(devices)))
