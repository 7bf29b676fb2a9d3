"""Allocate: an arena and an offset for each value.

Each weight and each state is an arena of its own, because it outlives the plan and may be memory
that somebody else owns (a mapped file). All other values of a device share one compute arena; two
of them may share bytes when their lives do not meet. A result takes over the bytes of an operand
that dies with it where the op allows it. Reuse follows the order that the data flow gives on the
streams (``visibility``), so no wait is needed for memory's sake inside a run; hazards are computed
afterwards all the same, from the physical ranges. Only the slots of a staging ring are shared
whatever the streams do: the waits for it are what a ring of that length costs.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Final

from ggsched.ir.graph import Graph, Node
from ggsched.ir.ops import OPS
from ggsched.ir.tensor import Role
from ggsched.passes.memory.concurrent_bound import Bound
from ggsched.passes.memory.fusion_retention import Retention
from ggsched.passes.memory.packing import MemoryBlock, Packed, pack_bounded
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
        retention: Bytes that are left alone longer than values live, where that fits.
    """

    order: ReuseOrder
    rings: Mapping[int, Slot] = field(default_factory=dict)
    effort: int = 0
    retention: Retention = field(default_factory=Retention)

    def without_hints(self) -> "ReusePolicy":
        """Return the policy that leaves no bytes alone."""
        return replace(self, retention=Retention())


def allocate(
    graph: Graph,
    topology: Topology,
    splits: Splits,
    live: Liveness,
    policy: ReusePolicy,
) -> Memory:
    """Return arenas, a region for each value, and who took over whose bytes.

    Args:
        splits: Values, and who touches them.
        live: Lives of the values in program order.
        policy: When values may share bytes.
    """
    overwrites, without_hints = _overwrites(graph, splits, live, policy)
    arenas: list[Arena] = []
    regions: list[Region] = [Region(0, 0, 0)] * len(splits.values)
    bounds: dict[int, int] = {}
    hinted: dict[int, int] = {}
    alignments = {i: d.alignment for i, d in enumerate(topology.devices)} | {HOST: HOST_ALIGNMENT}
    groups: defaultdict[tuple[int, ArenaKind], list[Value]] = defaultdict(list)
    for v in splits.values:
        if v.bound:
            is_weight = graph.tensors[v.storage].role is Role.WEIGHT
            kind: ArenaKind = "weight" if is_weight else "state"
            alignment, number, nbytes = alignments[v.device], len(arenas), v.end - v.start
            regions[v.id] = Region(number, 0, nbytes)
            arenas.append(Arena(number, kind, v.device, nbytes, alignment, v.bound))
        elif v.ring < 0:
            groups[v.device, _ARENA_KINDS[v.kind]].append(v)
    for (device, kind), values in sorted(groups.items()):
        alignment = alignments[device]
        # The host uses its slots before the first step and after the last one.
        lasting = kind in ("input", "output")
        order = Sequential(live.lives) if lasting else policy.order
        packer = _Packer(order, overwrites, policy, live.lives)
        total, bound = packer.pack(values, alignment, len(arenas), regions)
        bounds[len(arenas)] = bound
        if policy.retention.held and kind == "compute":
            least = _live_nbytes(values, live.lives, without_hints, alignment)
            if least < bound:
                bounds[len(arenas)], hinted[len(arenas)] = least, bound
        arenas.append(Arena(len(arenas), kind, device, total, alignment))
    _add_rings(topology, splits, arenas, regions)
    _add_caches(topology, splits, arenas)
    return Memory(tuple(arenas), tuple(regions), overwrites, bounds, hinted)


@dataclass(frozen=True, slots=True)
class _Packer:
    order: ReuseOrder
    overwrites: Mapping[int, int]
    policy: ReusePolicy
    lives: Sequence[Life]

    def pack(
        self, values: list[Value], alignment: int, arena: int, regions: list[Region]
    ) -> tuple[int, int]:
        """Give each value its region; return the arena's size and its lower bound."""
        members, sizes = self._blocks(values, alignment)
        packed = self._packed(members, sizes)
        if packed.total > packed.bound.nbytes:
            apart = self._packed_by_writer(members, sizes)
            if apart is not None and apart.total < packed.total:
                packed = apart._replace(bound=packed.bound)
        nbytes = {v.id: v.end - v.start for v in values}
        for ids, offset in zip(members, packed.offsets, strict=True):
            region = Region(arena, offset, nbytes[ids[0]])
            for v in ids:
                if nbytes[v] != region[2]:
                    region = Region(arena, offset, nbytes[v])
                regions[v] = region
        return packed.total, packed.bound.nbytes

    def _packed(self, members: list[list[int]], sizes: list[int]) -> Packed:
        windows, apart = self.order.live_ranges(members)
        if self.policy.retention.until:
            windows, apart = self.policy.retention.extend(members, windows, apart)
        blocks = [MemoryBlock(*life, nbytes) for life, nbytes in zip(windows, sizes, strict=True)]
        return pack_bounded(blocks, apart, effort=self.policy.effort)

    def _packed_by_writer(self, members: list[list[int]], sizes: list[int]) -> Packed | None:
        """Return a packing in which only blocks that the same lane writes first share bytes.

        A lane that runs ahead, such as the copies into a stage of a pipeline, knows of nothing that
        later stages have finished. Each of its births therefore extends the windows of all blocks
        of the device, until there are too many pairs to look at. Among the blocks of one lane the
        windows are short.
        """
        by_lane: dict[int, list[int]] = {}
        for k, lane in enumerate(self.order.writers(members)):
            by_lane.setdefault(lane, []).append(k)
        if len(by_lane) < 2:
            return None
        offsets, total = [0] * len(members), 0
        for _, ids in sorted(by_lane.items()):
            part = self._packed([members[k] for k in ids], [sizes[k] for k in ids])
            for k, offset in zip(ids, part.offsets, strict=True):
                offsets[k] = total + offset
            total += part.total
        return Packed(offsets, total, Bound(0, False))

    def _blocks(self, values: list[Value], alignment: int) -> tuple[list[list[int]], list[int]]:
        """Return the values that have the same bytes one after another, and how many bytes."""
        block_of: dict[int, int] = {}
        slot_of: dict[Slot, int] = {}
        members: list[list[int]] = []
        sizes: list[int] = []
        overwrites, rings, lives = self.overwrites, self.policy.rings, self.lives
        for v in values:
            number = v.id
            taken = overwrites.get(number)
            block = len(members)
            if taken is not None:
                block = block_of[taken]
            elif rings and (slot := rings.get(number)) is not None:
                known = slot_of.get(slot, block)
                is_over = known < block and lives[members[known][-1]].death < lives[number].birth
                block = slot_of[slot] = known if is_over else block
            nbytes = -(-(v.end - v.start) // alignment) * alignment
            if block == len(members):
                members.append([number])
                sizes.append(nbytes)
            else:
                members[block].append(number)
                sizes[block] = max(sizes[block], nbytes)
            block_of[number] = block
        return members, sizes


def _live_nbytes(
    values: Sequence[Value], lives: Sequence[Life], overwrites: Mapping[int, int], alignment: int
) -> int:
    """Return the most bytes that live at one step in program order; no packing needs less.

    Values whose lives meet in program order never share bytes, whatever the streams are.
    """
    change: Counter[int] = Counter()
    for v in values:
        birth, death = lives[v.id]
        nbytes = -(-(v.end - v.start) // alignment) * alignment
        change[birth + (v.id in overwrites)] += nbytes  # at its birth they count as the operand's
        change[death + 1] -= nbytes
    return max(accumulate(nbytes for _, nbytes in sorted(change.items())), default=0)


def _overwrites(
    graph: Graph, splits: Splits, live: Liveness, policy: ReusePolicy
) -> tuple[dict[int, int], dict[int, int]]:
    """Return for each value that takes over a dying operand's bytes that operand's value.

    The second result is what the first one would be without hints.
    """
    taken: dict[int, int] = {}
    without_hints: dict[int, int] = {}
    values, lives = splits.values, live.lives
    held, hints, rings = live.held, policy.retention.held, policy.rings
    is_last = policy.order.is_last
    may_overwrite = {op: OPS[op].may_overwrite for op in {node.op for node in graph.nodes}}
    for node, step, bound in zip(graph.nodes, live.node_step, splits.bindings, strict=True):
        candidates = may_overwrite[node.op]
        if not candidates or node.modes[-1] != "w":
            continue
        result = bound[-1]
        if lives[result][0] != step or values[result].bound or values[result].kind != "home":
            continue
        if result in rings:
            continue
        for k in candidates:
            operand = bound[k] if k < len(bound) else result
            if (
                operand != result
                and lives[operand][1] == step
                and operand not in held.get(node.id, ())
                and operand not in rings
                and is_last(operand, result, step)
                and _can_take(graph, node, k, values, bound)
            ):
                without_hints.setdefault(result, operand)
                if operand not in hints.get(node.id, ()):
                    taken[result] = operand
                    break
    return taken, without_hints


def _can_take(
    graph: Graph, node: Node, k: int, values: Sequence[Value], bound: Sequence[int]
) -> bool:
    """Whether the result may lie exactly on operand ``k``."""
    operand, result = graph.tensors[node.inputs[k]], graph.tensors[node.output]
    value = values[bound[k]]
    if value.bound or value.ring >= 0 or value.device != values[bound[-1]].device:
        return False
    if operand.dtype is not result.dtype or operand.shape != result.shape:
        return False
    offset, end = operand.offset, operand.offset + operand.nbytes
    if operand.strides != result.strides or offset != value.start or end != value.end:
        return False
    if bound.count(value.id) == 1:
        return True
    others = (graph.tensors[t] for t, v in zip(node.inputs, bound, strict=False) if v == value.id)
    return all(
        (t.offset, t.shape, t.strides) == (offset, operand.shape, operand.strides) for t in others
    ) and all(i in OPS[node.op].may_overwrite for i, v in enumerate(bound[:-1]) if v == value.id)


def _add_rings(
    topology: Topology, splits: Splits, arenas: list[Arena], regions: list[Region]
) -> None:
    """Add an arena for the staging ring of each device, and the regions of the values in it.

    A slot holds the weights of one block at a time, row for row as they lie at home, so that
    kernels need not know. All slots have the length of the longest.
    """
    fills: dict[tuple[int, int, int], list[int]] = {}
    for t in splits.transfers:
        target = splits.values[t.dst]
        if target.ring >= 0:
            fills.setdefault((target.device, target.ring, t.before), []).append(target.id)
    for device in sorted({device for device, _, _ in fills}):
        alignment = topology.devices[device].alignment
        inside: dict[int, tuple[int, int]] = {}
        longest = slots = 0
        for (where, slot, _), values in fills.items():
            if where != device:
                continue
            at = 0
            for v in values:
                inside[v] = slot, at
                at += -(-splits.values[v].nbytes // alignment) * alignment
            longest, slots = max(longest, at), max(slots, slot + 1)
        arena = len(arenas)
        for v, (slot, offset) in inside.items():
            regions[v] = Region(arena, slot * longest + offset, splits.values[v].nbytes)
        arenas.append(Arena(arena, "compute", device, slots * longest, alignment))


def _add_caches(topology: Topology, splits: Splits, arenas: list[Arena]) -> None:
    """Add an arena for each weight of which a device keeps rows from run to run.

    Where in it each row lies is decided when the plan runs.
    """
    known: set[tuple[int, str]] = set()
    for t in splits.transfers:
        if t.rows is None or not t.rows.cached:
            continue
        device, name = splits.values[t.dst].device, splits.values[t.src].bound
        if (device, name) not in known:
            known.add((device, name))
            nbytes, alignment = t.rows.cached * t.rows.nbytes, topology.devices[device].alignment
            arenas.append(Arena(len(arenas), "cache", device, nbytes, alignment, name))
