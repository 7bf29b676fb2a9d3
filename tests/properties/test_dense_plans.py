"""Plans with very many crossings: each node on a device at random, states written in between."""

import random

import pytest

from ggsched.ir import Graph, GraphBuilder
from ggsched.passes import Constraints
from ggsched.sanitize import check_plan
from ggsched.topology import CopyPath, Topology
from ggsched_testing.generators.topologies import ALL_OPS
from ggsched_testing.plan_builder import fake_device
from ggsched_testing.plan_mutants import ALL_MUTATIONS
from tests.sanitize.brute import racing_pairs
from tests.support.profile import some_of
from tests.support.verified_plans import verified_plan

DEVICES = 3
NODES = 30


def dense_graph(rng: random.Random) -> Graph:
    """Sums of what was there before, and rows of two states."""
    g = GraphBuilder("dense")
    shape = (4, 8)
    values = [g.input("x", shape), g.input("y", shape)]
    states = [g.state("kv0", shape), g.state("kv1", shape)]
    for _ in range(NODES):
        if rng.random() < 0.25:
            row = rng.randrange(4)
            source = g.scale(g.rows(rng.choice(values), row, row + 1), 2.0)
            kept = g.op("cpy", source, g.rows(rng.choice(states), row, row + 1))
            values.append(g.repeat(kept, shape))
        else:
            a, b = rng.choice(values[-4:]), rng.choice([*values, *states])
            values.append(g.add(a, b))
    return g.build(values[-1], values[len(values) // 2])


def machine(rng: random.Random, *, peers: bool = False) -> Topology:
    devices = tuple(
        fake_device(
            f"gpu:{i}",
            ops=ALL_OPS,
            copy_order=rng.choice(("stream", "barrier", "host")),
            reads_peers=peers,
        )
        for i in range(DEVICES)
    )
    pairs = [(a, b) for a in range(DEVICES) for b in range(DEVICES) if a != b]
    copies = {(a, b): CopyPath(a, b, rng.choice((a, b))) for a, b in pairs if rng.random() < 0.8}
    return Topology(devices, copies, {p: "native" for p in pairs if rng.random() < 0.8})


CASES = [(0, False), (0, True), (1, False), (2, False), (3, False), (1, True)]


@pytest.mark.parametrize(("seed", "peers"), some_of(2, CASES))
def test_dense_plans_and_their_mutants(seed, peers):
    """Where devices read each other's buffers, some operands lie on another device."""
    rng = random.Random(seed)
    graph, topology = dense_graph(rng), machine(rng, peers=peers)
    written = {graph.tensors[n.output].storage for n in graph.nodes}
    home = {storage: rng.randrange(DEVICES) for storage in sorted(written)}
    pins = {n.id: home[graph.tensors[n.output].storage] for n in graph.nodes}
    wanted = Constraints(pins=pins, reads_peers=True)
    plan = verified_plan(graph, topology, wanted)
    assert check_plan(plan).is_clean, check_plan(plan).to_text()
    values, choices = plan.splits.values, plan.placement.choices
    far = [
        v
        for n, bound in enumerate(plan.splits.bindings)
        for v in bound
        if values[v].device != choices[n].device
    ]
    assert bool(far) == peers
    for name, mutate in ALL_MUTATIONS.items():
        for what, mutant in mutate(plan):
            if name != "alias_values" or rng.random() < 0.05:
                needless = check_plan(mutant).is_clean and not racing_pairs(mutant, 2)
                assert not check_plan(mutant).is_clean or needless, f"{name}: {what}"
