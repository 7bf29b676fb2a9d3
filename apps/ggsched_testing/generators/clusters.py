"""Machines of several devices each, and models in stages: what plans for clusters are measured on.

    machines = several_machines(one_machine(8), 16)
    model = staged_model(stages=16, group=8)
    plan = make_plan(*model.micro_batches(4).on(machines.topology))

A machine is a recorded topology or one that is made up; its devices copy to each other and wait for
each other (NVLink), and between machines there are messages only (a network). A model is a
pipeline: each machine has one stage, whose products are shared by its devices (tensor parallelism).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ggsched.ir.builder import GraphBuilder
from ggsched.ir.graph import Graph
from ggsched.ir.join import Joined, join_graphs
from ggsched.ir.tensor import Tensor
from ggsched.passes.memory.rings import Slots
from ggsched.passes.place import Constraints
from ggsched.topology.model import CopyPath, Topology
from ggsched_shard.layout import Layout, Split, Whole
from ggsched_shard.names import part_of
from ggsched_shard.rewrite import Shards, shard_graph
from ggsched_testing.generators.topologies import ALL_OPS
from ggsched_testing.plan_builder import fake_device


@dataclass(frozen=True, slots=True)
class Machines:
    """Several machines as one topology.

    Attributes:
        topology: Devices of all machines, machine by machine; paths within machines only.
        machine_of: The machine of each device.
    """

    topology: Topology
    machine_of: tuple[int, ...]


def one_machine(devices: int = 8) -> Topology:
    """Return a machine whose devices copy to each other and wait for each other."""
    facts = tuple(fake_device(f"gpu:{i}", ops=ALL_OPS) for i in range(devices))
    pairs = [(a, b) for a in range(devices) for b in range(devices) if a != b]
    copies = {(a, b): CopyPath(a, b, b) for a, b in pairs}  # the reader's stream: it need not wait
    return Topology(facts, copies, dict.fromkeys(pairs, "native"))


def several_machines(machine: Topology, count: int) -> Machines:
    """Return a topology ``count`` times, without paths between the machines.

    Devices are called ``m3/gpu:0``. As on a cluster, none is host memory.
    """
    size = len(machine.devices)
    devices = tuple(
        replace(facts, name=f"m{m}/{facts.name}", is_host=False)
        for m in range(count)
        for facts in machine.devices
    )
    copies = {
        (src + at, dst + at): CopyPath(src + at, dst + at, path.by + at)
        for at in range(0, count * size, size)
        for (src, dst), path in machine.copy_paths.items()
    }
    waits = {
        (waiter + at, recorder + at): path
        for at in range(0, count * size, size)
        for (waiter, recorder), path in machine.wait_paths.items()
    }
    machine_of = tuple(i // size for i in range(count * size))
    return Machines(Topology(devices, copies, waits), machine_of)


@dataclass(frozen=True, slots=True)
class StagedModel:
    """A graph of one micro-batch over all devices.

    Attributes:
        graph: Labels of nodes end with ``#`` and the device that runs them.
        homes: The device of each weight and state.
    """

    graph: Graph
    homes: dict[str, int]

    def micro_batches(self, count: int, buffers: int | None = 2) -> tuple[Joined, Constraints]:
        """Return ``count`` micro-batches as one graph, and where everything goes.

        Args:
            count: Number of micro-batches.
            buffers: Pipeline buffers of each boundary; None for as many as micro-batches.
        """
        joined = join_graphs([self.graph] * count, name=f"{count} x {self.graph.name}")
        slots = None if buffers is None else Slots(buffers, joined.firsts)
        pins = {n.id: _device(n.name) for n in joined.graph.nodes}
        return joined, Constraints(self.homes, pins, slots=slots)


def staged_model(
    stages: int, group: int, *, layers: int = 1, tokens: int = 8, width: int = 64
) -> StagedModel:
    """Return a transformer in stages, each shared by a group of devices.

    A layer has a norm (of columns with weights, so that nodes of a stage begin with one that says
    where they run), products for Q, K and V, a cache that they are put into, attention (as sums
    and products: its cost is not what counts here), a product, a residual, and a gated feed-forward
    network: 16 nodes, two of them products whose results are added up over the group.

    Args:
        stages: Number of stages; stage ``s`` is on the devices from ``s * group`` on.
        group: Devices of a stage; divides ``width``.
        layers: Layers of a stage.
        tokens: Rows of a micro-batch.
        width: Columns, of f32.
    """
    g = GraphBuilder(f"{stages} stages of {group}")
    layouts: dict[str, Layout] = {}
    x = g.input("x", (tokens, width))
    groups = tuple(tuple(range(s * group, (s + 1) * group)) for s in range(stages))
    for s, members in enumerate(groups):
        for k in range(layers):
            x = _layer(_Stage(g, layouts, f"s{s}.l{k}", members, stages * group), x, tokens, width)
    shards = Shards(stages * group, layouts, groups)
    sharded = shard_graph(g.build(x), shards).graph
    homes = {name: p for tensor in layouts for name, p in shards.members(tensor)}
    return StagedModel(sharded, homes)


@dataclass(frozen=True, slots=True)
class _Stage:
    """What layers of a stage are written with."""

    g: GraphBuilder
    layouts: dict[str, Layout]
    name: str
    members: Sequence[int]
    everyone: int

    def weight(self, name: str, shape: Sequence[int], axis: int | None) -> Tensor:
        """Add a weight that is split along an axis, or whole on each member."""
        return self.g.weight(self._note(name, shape, axis), shape)

    def state(self, name: str, shape: Sequence[int], axis: int | None) -> Tensor:
        """Add a state, likewise."""
        return self.g.state(self._note(name, shape, axis), shape)

    def _note(self, name: str, shape: Sequence[int], axis: int | None) -> str:
        label, on = f"{self.name}.{name}", tuple(self.members)
        if axis is None or len(on) == 1:
            self.layouts[label] = Whole(on)
        else:
            parts = [0] * self.everyone
            for p in on:
                parts[p] = shape[axis] // len(on)
            self.layouts[label] = Split(axis, (tuple(parts),))
        return label


def _layer(stage: _Stage, x: Tensor, tokens: int, width: int) -> Tensor:
    g, square = stage.g, (width, width)
    with g.scope(stage.name):
        h = g.rms_norm(g.mul(x, stage.weight("norm", (width,), None)))
        q, k, v = (g.mul_mat(stage.weight(f"w{n}", square, 0), h) for n in "qkv")
        cache = g.op("cpy", k, stage.state("cache", (tokens, width), 1))
        attended = g.add(g.mul(q, cache), v)
        x = g.add(g.mul_mat(stage.weight("wo", square, 1), attended), x)
        h = g.rms_norm(g.mul(x, stage.weight("ffn_norm", (width,), None)))
        gate = g.silu(g.mul_mat(stage.weight("gate", square, 0), h))
        h = g.mul(gate, g.mul_mat(stage.weight("up", square, 0), h))
        return g.add(g.mul_mat(stage.weight("down", square, 1), h), x)


def _device(label: str) -> int:
    _, part = part_of(label.rpartition("@")[0] or label)
    return part or 0
