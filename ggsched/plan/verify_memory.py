"""Checks of the memory plan: every value in its place, and nothing alive in two hands."""

from bisect import bisect_left
from collections.abc import Sequence

from ggsched.errors import PlanError
from ggsched.ids import show
from ggsched.ir.graph import Graph
from ggsched.ir.intervals import overlap
from ggsched.ir.tensor import Role
from ggsched.plan.memory import Arena, Life, Memory, Region
from ggsched.plan.splits import HOST, Splits, Value
from ggsched.topology.model import Topology


def verify_memory(
    graph: Graph, topology: Topology, splits: Splits, memory: Memory, lives: Sequence[Life]
) -> None:
    """Check arenas and regions.

    Raises:
        PlanError: an arena that its device cannot allocate, a region that is not aligned, lies
            outside its arena, in the wrong kind of memory or has another length than its value;
            two values that are alive together and share bytes, other than where the memory plan
            says that one takes over the other's bytes.
    """
    for i, arena in enumerate(memory.arenas):
        _verify_arena(topology, i, arena)
    if len(memory.regions) != len(splits.values) or len(lives) != len(splits.values):
        what = f"{len(memory.regions)} regions and {len(lives)} lives"
        raise PlanError(what, where="memory", why=f"there are {len(splits.values)} values")
    members: list[list[int]] = [[] for _ in memory.arenas]
    for value, region in zip(splits.values, memory.regions, strict=True):
        _verify_region(graph, memory, value, region)
        if region.nbytes:
            members[region.arena].append(value.id)
    for v, taken in memory.overwrites.items():
        _verify_takeover(memory, lives, v, taken)
    for arena, inside in zip(memory.arenas, members, strict=True):
        if arena.kind in ("weight", "state"):
            if len(inside) > 1:
                raise PlanError("holds several values", where=show("arena", arena.id))
        else:
            _verify_disjoint(memory, lives, inside)
    _verify_bounds(memory)


def _verify_bounds(memory: Memory) -> None:
    for i, bound in memory.lower_bound.items():
        known = 0 <= i < len(memory.arenas) and not memory.arenas[i].name
        if not known or not 0 <= bound <= memory.arenas[i].nbytes:
            raise PlanError(f"lower bound of {bound} bytes", where=show("arena", max(i, 0)))
    for i, bound in memory.hinted_bound.items():
        if not memory.lower_bound.get(i, bound) < bound <= memory.arenas[i].nbytes:
            raise PlanError(f"bound with hints of {bound} bytes", where=show("arena", max(i, 0)))


def _verify_arena(topology: Topology, i: int, arena: Arena) -> None:
    where = show("arena", i)
    if arena.id != i:
        raise PlanError(f"has the id {arena.id}", where=where, why="ids are dense")
    if arena.nbytes < 0 or arena.alignment < 1 or arena.alignment & (arena.alignment - 1):
        raise PlanError(f"{arena.nbytes} bytes aligned to {arena.alignment}", where=where)
    if bool(arena.name) != (arena.kind in ("weight", "state", "cache")):
        raise PlanError(f"{arena.kind} arena named {arena.name!r}", where=where)
    if arena.kind in ("input", "output", "staging"):
        if arena.device != HOST:
            what = f"{arena.kind} on {show('device', arena.device)}"
            raise PlanError(what, where=where, why="it is host memory")
        return
    if not 0 <= arena.device < len(topology.devices):
        raise PlanError(f"on device {arena.device}, which does not exist", where=where)
    facts = topology.devices[arena.device]
    if arena.alignment % facts.alignment:
        why = f"{facts.name} aligns to {facts.alignment}"
        raise PlanError(f"aligned to {arena.alignment}", where=where, why=why)


def _verify_region(graph: Graph, memory: Memory, value: Value, region: Region) -> None:
    where = show("value", value.id)
    if not 0 <= region.arena < len(memory.arenas):
        raise PlanError(f"in arena {region.arena}, which does not exist", where=where)
    arena = memory.arenas[region.arena]
    if region.offset < 0 or region.end > arena.nbytes:
        what = f"bytes [{region.offset}, {region.end}) of {show('arena', arena.id)}"
        raise PlanError(what, where=where, why=f"it has {arena.nbytes}")
    if region.nbytes != value.nbytes:
        raise PlanError(f"{region.nbytes} bytes instead of {value.nbytes}", where=where)
    if region.offset % arena.alignment:
        why = f"{show('arena', arena.id)} aligns to {arena.alignment}"
        raise PlanError(f"offset {region.offset} is not aligned", where=where, why=why)
    if value.bound:
        kind = "weight" if graph.tensors[value.storage].role is Role.WEIGHT else "state"
        own = arena.kind == kind and arena.name == value.bound and region.offset == 0
        if not own or region.nbytes != arena.nbytes:
            what = f"{kind} {value.bound!r} does not fill an arena of its own"
            raise PlanError(what, where=where)
    else:
        kind = "compute" if value.device != HOST else value.kind
    if arena.kind != kind or arena.device != value.device:
        what = f"{value.kind} of device {value.device} in {arena.kind} {show('arena', arena.id)}"
        raise PlanError(what, where=where, why=f"on device {arena.device}")


def _verify_takeover(memory: Memory, lives: Sequence[Life], v: int, taken: int) -> None:
    count = len(memory.regions)
    if not (0 <= v < count and 0 <= taken < count) or v == taken:
        raise PlanError(f"value {v} overwrites {taken}", where="memory")
    new, old = memory.regions[v], memory.regions[taken]
    inside = new.arena == old.arena and old.offset <= new.offset and new.end <= old.end
    if not inside:
        what = f"overwrites {show('value', taken)}, whose bytes it does not lie in"
        raise PlanError(what, where=show("value", v))
    if lives[taken].death > lives[v].birth:
        what = f"overwrites {show('value', taken)}, which lives until {lives[taken].death}"
        raise PlanError(what, where=show("value", v), why=f"born at {lives[v].birth}")


def _verify_disjoint(memory: Memory, lives: Sequence[Life], inside: list[int]) -> None:
    """Sweep over time with the regions alive, sorted by offset: neighbours must not touch."""
    for v in inside:
        if lives[v].birth > lives[v].death:
            raise PlanError(f"dies before it is born: {lives[v]}", where=show("value", v))
    births = sorted(inside, key=lambda v: lives[v].birth)
    deaths = sorted(inside, key=lambda v: lives[v].death)
    alive: list[tuple[int, int]] = []  # (offset, value)
    dead = 0
    for v in births:
        while lives[deaths[dead]].death < lives[v].birth:
            _remove(memory, alive, deaths[dead])
            dead += 1
        if v in memory.overwrites:
            _remove(memory, alive, memory.overwrites[v])
        region = memory.regions[v]
        at = bisect_left(alive, (region.offset, v))
        for _, other in alive[max(at - 1, 0) : at + 1]:
            near = memory.regions[other]
            if overlap(near, region):
                what = f"shares bytes with {show('value', other)} while both are alive"
                raise PlanError(what, where=show("value", v), why=f"{region} and {near}")
        alive.insert(at, (region.offset, v))


def _remove(memory: Memory, alive: list[tuple[int, int]], v: int) -> None:
    key = (memory.regions[v].offset, v)
    at = bisect_left(alive, key)
    if at < len(alive) and alive[at] == key:
        del alive[at]
