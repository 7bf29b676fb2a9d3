"""Assign: choose the stream of each node and each transfer.

By default a device has one stream. With more, the nodes of a split are scheduled on them in program
order: a node goes on where the operand that it waits for longest was made, if nothing came after
that there, else to the stream on which it can start first; a change of stream costs an event. That
is list scheduling (Graham 1966) with program order as the list, so forks and joins of any shape are
found without naming them. A split keeps several streams only where the cost model says that they
pay (the gate), unless the caller insists. A device may propose lanes for its nodes (STR-7); they
are taken if the cost model predicts that they are as fast as ours, and have to pass the same gate.
Waits follow from the data, so no proposal can make a plan wrong. Copies into a staging ring get a
stream of their own.
"""

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from ggsched.ir.graph import Graph
from ggsched.ir.schedule import predecessors
from ggsched.passes.cost.work_size import node_works, work_costs
from ggsched.passes.options import StreamPolicy
from ggsched.plan.fusions import Fusion
from ggsched.plan.splits import HOST, Split, Splits
from ggsched.plan.streams import Gain, Streams, StreamSpec
from ggsched.topology.cost import MachineRates, Rates
from ggsched.topology.model import Topology

_NONE: Final[Mapping[int, Sequence[int]]] = MappingProxyType({})
_WORTH_IT: Final = 0.9
"""The gate opens below this share of the sequential time: a prediction is not exact."""

_PER_CHANGE: Final = 3
"""And for a gain of more than this factor times what the changes of stream cost.

They cost it even where nothing runs at the same time, because others hold the cores. Then a plan
with several streams loses a third at most of what it was to gain.
"""


def assign(
    graph: Graph,
    topology: Topology,
    splits: Splits,
    policy: StreamPolicy,
    rates: MachineRates,
    fusions: Sequence[Fusion] = (),
    lanes_of: Sequence[int] = (),
    proposals: Mapping[int, Sequence[int]] = _NONE,
) -> Streams:
    """Return a stream for each node and each transfer; nodes of a group share theirs.

    Args:
        graph: What is planned.
        splits: What runs where.
        policy: How many streams a device may use where nodes of a split are independent.
        rates: What things cost.
        fusions: Groups of nodes that run as one.
        lanes_of: The lane of each node, if there are several: a device that has events and as many
            streams has one for each.
        proposals: A lane for each node of the graph, by device; see ``Constraints.lanes``.
    """
    groups = {n: f.nodes for f in fusions for n in f.nodes}
    used = sorted({s.device for s in splits.splits} | {t.by for t in splits.transfers})
    copiers = _copiers(topology, splits)
    specs: list[StreamSpec] = []
    streams_of: dict[int, list[int]] = {}
    for device in used:
        streams_of[device] = [len(specs)]
        specs.append(StreamSpec(len(specs), device))
    if lanes_of:
        _add_lanes(topology, copiers, max(lanes_of), streams_of, specs)
    of_node = [
        streams_of[s.device][lanes_of[n] if len(streams_of[s.device]) > 1 else 0]
        for s in splits.splits
        for n in range(s.first, s.end)
    ]
    gains: list[Gain] = []
    for s in splits.splits if policy.limit > 1 else ():
        facts = topology.devices[s.device]
        limit = min(policy.limit, max(1, facts.max_streams - (s.device in copiers)))
        if not policy.is_forced:
            limit = min(limit, rates.devices[s.device].parallel if facts.is_async else 1)
        if limit < 2 or not facts.has_events or s.end - s.first < 2:
            continue
        proposal = _checked(proposals.get(s.device, ()), graph)[s.first : s.end]
        gain, lanes = _consider(graph, s, rates, limit, policy.is_forced, groups, proposal)
        gains.append(gain)
        if gain.is_taken:
            own = streams_of[s.device]
            while len(own) <= max(lanes):
                own.append(len(specs))
                specs.append(StreamSpec(len(specs), s.device))
            of_node[s.first : s.end] = [own[lane] for lane in lanes]
    if policy.has_copy_stream:
        copying = _copy_streams(topology, splits, streams_of, specs)
        of_transfer = [copying.get(t.by, streams_of[t.by][0]) for t in splits.transfers]
    else:
        of_transfer = [*_transfers(splits, streams_of, of_node)]
    for device, transfers in copiers.items():
        if sum(s.device == device for s in specs) < topology.devices[device].max_streams:
            for number in transfers:
                of_transfer[number] = len(specs)
            specs.append(StreamSpec(len(specs), device))
    return Streams(tuple(specs), tuple(of_node), tuple(of_transfer), tuple(gains))


def _add_lanes(
    topology: Topology,
    copiers: Collection[int],
    last: int,
    streams_of: Mapping[int, list[int]],
    specs: list[StreamSpec],
) -> None:
    """Add streams for the lanes behind the first one to devices that can have them."""
    for device, own in streams_of.items():
        facts = topology.devices[device]
        if facts.has_events and facts.max_streams - (device in copiers) > last:
            for _ in range(last):
                own.append(len(specs))
                specs.append(StreamSpec(len(specs), device))


def _copiers(topology: Topology, splits: Splits) -> dict[int, list[int]]:
    """Return the transfers into staging rings by the device that has a stream for them alone.

    There they wait for the ring and for ids only, and computing goes on meanwhile.
    """
    copiers: dict[int, list[int]] = {}
    for t in splits.transfers:
        facts = topology.devices[t.by]
        if splits.values[t.dst].ring >= 0 and facts.has_events:
            copiers.setdefault(t.by, []).append(t.id)
    return dict(sorted(copiers.items()))


def _consider(
    graph: Graph,
    split: Split,
    machine: MachineRates,
    limit: int,
    is_forced: bool,
    groups: Mapping[int, tuple[int, ...]],
    proposal: Sequence[int],
) -> tuple[Gain, list[int]]:
    """Return what several streams are predicted to gain, and a lane for each node of a split."""
    rates = machine.devices[split.device]
    nodes = graph.nodes[split.first : split.end]
    units = _units(split, groups)
    works = node_works(graph, nodes)
    alone = _unit_costs(units, work_costs(rates, works), rates)
    before = _unit_predecessors(units, predecessors(graph, nodes))
    total = sum(alone)
    if not is_forced and _longest_path(before, alone) >= _WORTH_IT * total:
        return Gain(split.id, limit, total, total, False), []
    costs = _unit_costs(units, work_costs(rates, works, limit), rates)
    event_s, proposed_s = rates.event_s + rates.launch_s, None
    of_unit, seconds = _list_schedule(before, costs, event_s, limit)
    numbers: dict[int, int] = {}
    hint = [numbers.setdefault(proposal[u[-1]], len(numbers) % limit) for u in units if proposal]
    if len(numbers) > 1:
        hint, proposed_s = _list_schedule(before, costs, event_s, limit, hint)
        if proposed_s <= seconds:
            of_unit, seconds = hint, proposed_s
    lanes = [0] * len(nodes)
    for unit, lane in zip(units, of_unit, strict=True):
        for i in unit:
            lanes[i] = lane
    is_taken = len(set(lanes)) > 1
    if is_taken and not is_forced:
        change_s = rates.event_s + 2 * machine.enqueue_s  # the host enqueues a record and a wait
        least = _PER_CHANGE * _changes(before, of_unit) * change_s
        is_taken = seconds < _WORTH_IT * total and total - seconds > least
    return Gain(split.id, limit, total, seconds, is_taken, proposed_s), lanes


def _checked(lanes: Sequence[int], graph: Graph) -> Sequence[int]:
    """Return lanes that a device proposes, or none if they are not one for each node."""
    is_one = len(lanes) == len(graph.nodes) and all(type(n) is int and n >= 0 for n in lanes)
    return lanes if is_one else ()


def _units(split: Split, groups: Mapping[int, tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Return what is scheduled as one: each node or group, in the order in which they run."""
    units = []
    for n in range(split.first, split.end):
        group = groups.get(n, (n,))
        if n == group[-1]:
            units.append(tuple(i - split.first for i in group))
    return units


def _unit_costs(units: Sequence[tuple[int, ...]], costs: list[float], rates: Rates) -> list[float]:
    if len(units) == len(costs):
        return costs
    return [sum([costs[i] for i in unit]) - (len(unit) - 1) * rates.node_s for unit in units]


def _unit_predecessors(
    units: Sequence[tuple[int, ...]], before: list[list[int]]
) -> list[list[int]]:
    if len(units) == len(before):
        return before
    unit_of = {i: number for number, unit in enumerate(units) for i in unit}
    return [
        sorted({unit_of[p] for i in unit for p in before[i]} - {number})
        for number, unit in enumerate(units)
    ]


def _longest_path(before: Sequence[Sequence[int]], costs: Sequence[float]) -> float:
    """Return when the last node could end at best: no number of streams does better."""
    ends: list[float] = []
    for earlier, cost in zip(before, costs, strict=True):
        ends.append(cost + max([ends[p] for p in earlier], default=0.0))
    return max(ends, default=0.0)


def _list_schedule(
    before: Sequence[Sequence[int]],
    costs: Sequence[float],
    change_s: float,
    limit: int,
    fixed: Sequence[int] = (),
) -> tuple[list[int], float]:
    """Return a lane for each node, the fixed one if it has one, and when the last of them ends."""
    lanes: list[int] = []
    ends: list[float] = []
    free = [0.0] * limit
    last = [-1] * limit
    for i, cost in enumerate(costs):
        best, best_start = 0, float("inf")
        for lane in fixed[i : i + 1] or range(limit):
            start = free[lane]
            for p in before[i]:
                ready = ends[p] if lanes[p] == lane else ends[p] + change_s
                if ready > start:
                    start = ready
            if start < best_start - 1e-12 or (start <= best_start and last[lane] in before[i]):
                best, best_start = lane, start
        lanes.append(best)
        ends.append(best_start + cost)
        free[best], last[best] = ends[-1], i
    return lanes, max(ends, default=0.0)


def _changes(before: Sequence[Sequence[int]], lanes: Sequence[int]) -> int:
    """Return how often a node waits for what another lane computed."""
    return sum(
        len({lanes[p] for p in earlier} - {lane})
        for earlier, lane in zip(before, lanes, strict=True)
    )


def _copy_streams(
    topology: Topology,
    splits: Splits,
    streams_of: dict[int, list[int]],
    specs: list[StreamSpec],
) -> dict[int, int]:
    """Add a stream for the transfers of each device that can have one."""
    computing = {s.device for s in splits.splits}
    own: dict[int, int] = {}
    for device in sorted({t.by for t in splits.transfers} & computing):
        facts = topology.devices[device]
        if facts.has_events and facts.max_streams > len(streams_of[device]):
            own[device] = len(specs)
            specs.append(StreamSpec(len(specs), device))
    return own


def _transfers(
    splits: Splits, streams_of: dict[int, list[int]], of_node: Sequence[int]
) -> tuple[int, ...]:
    """Return a stream for each transfer: that of a node at its other end, if on its device."""
    maker: dict[int, int] = {}
    reader: dict[int, int] = {}
    for i, bound in enumerate(splits.bindings):
        maker[bound[-1]] = i
        for value in bound[:-1]:
            reader.setdefault(value, i)
    out = []
    for t in splits.transfers:
        own = streams_of[t.by]
        stream = own[0]
        if splits.values[t.src].device in (HOST, t.by) or splits.values[t.dst].device == t.by:
            near = maker.get(t.src) if splits.values[t.src].device == t.by else reader.get(t.dst)
            if near is not None and of_node[near] in own:
                stream = of_node[near]
        out.append(stream)
    return tuple(out)
