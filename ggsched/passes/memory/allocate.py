"""Allocate: an arena and an offset for each value.

Each weight and each state is an arena of its own, because it outlives the plan and may be memory
that somebody else owns (a mapped file). All other values of a device share one compute arena; two
of them may share bytes when their lives do not meet. A result takes over the bytes of an operand
that dies with it where the op allows it. Reuse follows the order that the data flow gives on the
streams (``visibility``), so no wait is needed for memory's sake inside a run; hazards are computed
afterwards all the same, from the physical ranges. Only the slots of a staging ring are shared
whatever the streams do: the waits for it are what a ring of that length costs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ggsched.ir.graph import Graph, Node
from ggsched.ir.ops import OPS
from ggsched.ir.tensor import Role
from ggsched.passes.experts.memory import add_caches, add_rings
from ggsched.passes.memory.fusion_retention import Retention
from ggsched.passes.memory.packing import MemoryBlock, pack_bounded
from ggsched.passes.memory.reuse import ReuseOrder, Sequential
from ggsched.passes.memory.rings import Slot
from ggsched.passes.order.liveness import Liveness
from ggsched.plan.memory import Arena, ArenaKind, Life, Memory, Region
from ggsched.plan.splits import HOST, Splits, Value, ValueKind
from ggsched.topology.model import Topology

HOST_ALIGNMENT = 64
_ARENA_KINDS: Final[Mapping[ValueKind, ArenaKind]] = {
    "home": "compute",
    "replica": "compute",
    "input": "input",
    "output": "output",
    "staging": "staging",
}


@dataclass(frozen=True)
class ReusePolicy:
    """When values may share bytes.

    Attributes:
        order: What is over before what begins.
        rings: The slot of each value that is handed over in turns.
        effort: How long to look for a tighter packing, see ``pack``.
        kept: What neighbours wish for.
    """

    order: ReuseOrder
    rings: Mapping[int, Slot] = field(default_factory=dict)
    effort: int = 0
    kept: Retention = field(default_factory=Retention)


def allocate(
    graph: Graph,
    topology: Topology,
    splits: Splits,
    timeline: Liveness,
    sharing: ReusePolicy,
) -> Memory:
    """Return arenas, a region for each value, and who took over whose bytes.

    Args:
        graph: The graph.
        topology: The machine.
        splits: Values, and who touches them.
        timeline: Lives of the values in program order.
        sharing: When values may share bytes.
    """
    overwrites = _overwrites(graph, splits, timeline, sharing)
    arenas: list[Arena] = []
    regions: list[Region] = [Region(0, 0, 0)] * len(splits.values)
    bounds: dict[int, int] = {}
    groups: dict[tuple[int, ArenaKind], list[Value]] = {}
    for v in splits.values:
        if v.bound:
            root = graph.tensors[v.storage]
            kind: ArenaKind = "weight" if root.role is Role.WEIGHT else "state"
            alignment = topology.devices[v.device].alignment
            regions[v.id] = Region(len(arenas), 0, v.nbytes)
            arenas.append(Arena(len(arenas), kind, v.device, v.nbytes, alignment, v.bound))
        elif v.ring < 0:
            groups.setdefault((v.device, _ARENA_KINDS[v.kind]), []).append(v)
    for (device, kind), values in sorted(groups.items()):
        alignment = HOST_ALIGNMENT if device == HOST else topology.devices[device].alignment
        # The host uses its slots before the first step and after the last one.
        lasting = kind in ("input", "output")
        order = Sequential(timeline.lives) if lasting else sharing.order
        packer = _Packer(order, overwrites, sharing, timeline.lives)
        total, bound = packer.pack(values, alignment, len(arenas), regions)
        bounds[len(arenas)] = bound
        arenas.append(Arena(len(arenas), kind, device, total, alignment))
    add_rings(topology, splits, arenas, regions)
    add_caches(topology, splits, arenas)
    return Memory(tuple(arenas), tuple(regions), overwrites, bounds)


@dataclass(frozen=True, slots=True)
class _Packer:
    order: ReuseOrder
    overwrites: dict[int, int]
    sharing: ReusePolicy
    lives: Sequence[Life]

    def pack(
        self, values: list[Value], alignment: int, arena: int, regions: list[Region]
    ) -> tuple[int, int]:
        """Give each value its region; return the arena's size and its lower bound."""
        members, sizes = self._blocks(values, alignment)
        windows, apart = self.order.live_ranges(members)
        if self.sharing.kept.until:
            windows, apart = self.sharing.kept.granted(members, windows, apart)
        blocks = [MemoryBlock(*life, nbytes) for life, nbytes in zip(windows, sizes, strict=True)]
        packed = pack_bounded(blocks, apart, effort=self.sharing.effort)
        nbytes = {v.id: v.nbytes for v in values}
        for ids, offset in zip(members, packed.offsets, strict=True):
            for v in ids:
                regions[v] = Region(arena, offset, nbytes[v])
        return packed.total, packed.bound.nbytes

    def _blocks(self, values: list[Value], alignment: int) -> tuple[list[list[int]], list[int]]:
        """Return the values that have the same bytes one after another, and how many bytes."""
        block_of: dict[int, int] = {}
        slot_of: dict[Slot, int] = {}
        members: list[list[int]] = []
        sizes: list[int] = []
        for v in values:
            taken = self.overwrites.get(v.id)
            slot = self.sharing.rings.get(v.id)
            block = len(members)
            if taken is not None:
                block = block_of[taken]
            elif slot is not None:
                known = slot_of.get(slot, block)
                is_over = (
                    known < block and self.lives[members[known][-1]].death < self.lives[v.id].birth
                )
                block = slot_of[slot] = known if is_over else block
            if block == len(members):
                members.append([])
                sizes.append(0)
            block_of[v.id] = block
            members[block].append(v.id)
            sizes[block] = max(sizes[block], -(-v.nbytes // alignment) * alignment)
        return members, sizes


def _overwrites(
    graph: Graph, splits: Splits, timeline: Liveness, sharing: ReusePolicy
) -> dict[int, int]:
    """Return for each value that takes over a dying operand's bytes that operand's value."""
    taken: dict[int, int] = {}
    values, lives, bindings = splits.values, timeline.lives, splits.bindings
    held, wished, rings = timeline.held, sharing.kept.held, sharing.rings
    is_last = sharing.order.is_last
    for node, step in zip(graph.nodes, timeline.node_step, strict=True):
        candidates = OPS[node.op].may_overwrite
        if not candidates or node.modes[-1] != "w":
            continue
        bound = bindings[node.id]
        result = bound[-1]
        if lives[result].birth != step or values[result].bound or values[result].kind != "home":
            continue
        for k in candidates:
            operand = bound[k] if k < len(bound) else result
            if (
                operand != result
                and lives[operand].death == step
                and operand not in held.get(node.id, ())
                and operand not in wished.get(node.id, ())
                and operand not in rings
                and is_last(operand, result, step)
                and _can_take(graph, node, k, splits)
            ):
                taken[result] = operand
                break
    return taken


def _can_take(graph: Graph, node: Node, k: int, splits: Splits) -> bool:
    """Whether the result may lie exactly on operand ``k``."""
    bound = splits.bindings[node.id]
    operand, result = graph.tensors[node.inputs[k]], graph.tensors[node.output]
    value = splits.values[bound[k]]
    if value.bound or value.device != splits.values[bound[-1]].device:
        return False
    if operand.dtype is not result.dtype or operand.shape != result.shape:
        return False
    if operand.strides != result.strides or (operand.offset, operand.end) != (
        value.start,
        value.end,
    ):
        return False
    if bound.count(value.id) == 1:
        return True
    others = (graph.tensors[t] for t, v in zip(node.inputs, bound, strict=False) if v == value.id)
    return all(
        (t.offset, t.shape, t.strides) == (operand.offset, operand.shape, operand.strides)
        for t in others
    ) and all(i in OPS[node.op].may_overwrite for i, v in enumerate(bound[:-1]) if v == value.id)
