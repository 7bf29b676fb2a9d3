"""Numbers about a plan: what it moves, where it waits, how much memory it takes."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

import msgspec

from ggsched.collector import collector_paused
from ggsched.plan.bundle import Plan
from ggsched.plan.effects import Effects
from ggsched.plan.splits import HOST


class PlanStats(msgspec.Struct, frozen=True):
    """Numbers about a plan; bytes throughout, devices by name.

    Attributes:
        nodes: Nodes of the graph.
        transfers: Transfers, one command each.
        streams: Streams that are used, by device.
        commands: Number of commands by kind, as tagged in the JSON form.
        waits: Waits of streams for events.
        barriers: Barriers between copies and launches.
        host_syncs: Waits of the host.
        copied: Bytes moved in one run, by path, e.g. ``"host->opencl:0"``; rows that are chosen
            when it runs are left out.
        chosen: Bytes of which rows are chosen when it runs, all of them, by path.
        peer_reads: Bytes that launches read where they lie on another device, by path.
        compute: Bytes of compute arenas by device, after alignment.
        lower_bound: Bytes that must be live at once, by device, below which no packing can go.
        hinted_bound: The same for packings that follow all retention hints, see ``Memory``.
        weights: Bytes of weights by device.
        states: Bytes of states by device.
        host: Bytes of host memory: inputs, outputs and staging.
        waste: Bytes of all packed compute arenas over their bound with hints; 1.0 is perfect
            packing.
        planning_s: Seconds that planning took.
    """

    nodes: int
    splits: int
    transfers: int
    streams: dict[str, int]
    commands: dict[str, int]
    waits: int
    barriers: int
    host_syncs: int
    copied: dict[str, int]
    chosen: dict[str, int]
    peer_reads: dict[str, int]
    compute: dict[str, int]
    lower_bound: dict[str, int]
    hinted_bound: dict[str, int]
    weights: dict[str, int]
    states: dict[str, int]
    host: int
    waste: float
    planning_s: float


@collector_paused()
def plan_stats(plan: Plan) -> PlanStats:
    """Return the numbers about a plan."""
    memory, streams = plan.memory, plan.streams.streams
    kinds = Counter(type(command).__struct_config__.tag for command in plan.commands)
    commands = {str(kind): count for kind, count in sorted(kinds.items(), key=str)}
    host = sum(arena.nbytes for arena in memory.arenas if arena.device == HOST)
    compute = _by_device(plan, "compute")
    hinted = _bounds(plan, memory.lower_bound | memory.hinted_bound)
    least = sum(hinted.values())
    effects = [command.effects for command in plan.commands]
    return PlanStats(
        nodes=len(plan.nodes),
        splits=len(plan.splits.splits),
        transfers=len(plan.splits.transfers),
        streams=dict(sorted(Counter(device_name(plan, s.device) for s in streams).items())),
        commands=commands,
        waits=sum(bool(e.waits) and not e.blocks_host for e in effects),
        barriers=sum(e.is_barrier for e in effects),
        host_syncs=sum(e.blocks_host for e in effects),
        copied=_moved(plan, effects, rows=False),
        chosen=_moved(plan, effects, rows=True),
        peer_reads=_peer_reads(plan, effects),
        compute=compute,
        lower_bound=_bounds(plan, memory.lower_bound),
        hinted_bound=hinted,
        weights=_by_device(plan, "weight"),
        states=_by_device(plan, "state"),
        host=host,
        waste=_packed(plan) / least if least else 1.0,
        planning_s=plan.planning_s,
    )


def device_name(plan: Plan, device: int) -> str:
    """Return the name of a device of the plan; ``"host"`` for host memory."""
    return "host" if device == HOST else plan.devices[device].name


def _moved(plan: Plan, effects: Iterable[Effects], *, rows: bool) -> dict[str, int]:
    """Return the bytes moved by path: all that is moved, or that ids choose from."""
    arenas = plan.memory.arenas
    moved: Counter[tuple[int, int]] = Counter()
    for e in effects:
        traffic = e.traffic
        if traffic is not None and traffic.src is not None and bool(traffic.row_nbytes) == rows:
            path = (arenas[traffic.src].device, arenas[traffic.dst].device)
            moved[path] += traffic.nbytes
    return _by_path(plan, moved)


def _peer_reads(plan: Plan, effects: Iterable[Effects]) -> dict[str, int]:
    """Return the bytes that nodes read from memory of other devices, by path."""
    arenas, streams = plan.memory.arenas, plan.streams.streams
    read: Counter[tuple[int, int]] = Counter()
    for e in effects:
        if e.engine != "compute":
            continue
        here = streams[e.streams[0]].device
        for _, operands, modes in e.steps:
            for region, mode in zip(operands, modes, strict=True):
                there = arenas[region.arena].device
                if mode == "r" and there not in (here, HOST):
                    read[there, here] += region.nbytes
    return _by_path(plan, read)


def _by_path(plan: Plan, nbytes: Mapping[tuple[int, int], int]) -> dict[str, int]:
    return {
        f"{device_name(plan, src)}->{device_name(plan, dst)}": count
        for (src, dst), count in sorted(nbytes.items())
    }


def _bounds(plan: Plan, of_arena: Mapping[int, int]) -> dict[str, int]:
    arenas = plan.memory.arenas
    found = ((arenas[i].device, n) for i, n in of_arena.items() if arenas[i].kind == "compute")
    return {device_name(plan, d): n for d, n in sorted(_summed(found).items())}


def _packed(plan: Plan) -> int:
    arenas, bounds = plan.memory.arenas, plan.memory.lower_bound
    return sum(a.nbytes for a in arenas if a.kind == "compute" and a.id in bounds)


def _by_device(plan: Plan, kind: str) -> dict[str, int]:
    found = ((a.device, a.nbytes) for a in plan.memory.arenas if a.kind == kind)
    return {device_name(plan, d): n for d, n in sorted(_summed(found).items())}


def _summed(pairs: Iterable[tuple[int, int]]) -> Mapping[int, int]:
    out: dict[int, int] = defaultdict(int)
    for key, number in pairs:
        out[key] += number
    return out
