"""Mutants whose artifacts do not agree with each other, see ``ggsched.sanitize.relations``.

Each operator has the name of the relation that it breaks. Commands follow the artifacts that they
are compared with, so that nothing but the relation can find most mutants.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace as with_facts
from itertools import combinations, pairwise
from typing import Any, Final

from msgspec.structs import replace

from ggsched.ids import show
from ggsched.ir.fusion import PATTERNS
from ggsched.plan.bundle import Plan
from ggsched.plan.command import CopyRows, Launch
from ggsched.plan.fusions import Fusion
from ggsched.plan.memory import Arena
from ggsched.plan.splits import HOST
from ggsched.topology.caps import DeviceFacts
from ggsched_testing.plan_mutants import Mutants


def arena_names(plan: Plan) -> Mutants:
    """Exchange or share the names of two arenas, or of the tensors in them; change a name."""
    kept = [a for a in plan.memory.arenas if a.kind in ("weight", "state")]
    for arena in kept:
        other = replace(arena, name=arena.name + "'")
        yield f"another name for {show('arena', arena.id)}", _with_arenas(plan, other)
    for one, other in combinations(kept, 2):
        both = f"{show('arena', one.id)} and {show('arena', other.id)}"
        turned = replace(one, name=other.name), replace(other, name=one.name)
        yield f"exchange the names of {both}", _with_arenas(plan, *turned)
        yield f"one name for {both}", _with_arenas(plan, turned[0])
        yield f"one tensor for {both}", _renamed(_with_arenas(plan, turned[0]), turned[:1])


def arena_kinds(plan: Plan) -> Mutants:
    """Put values into memory of another kind or device."""
    used = {region.arena for region in plan.memory.regions}
    for arena in plan.memory.arenas:
        kinds = ("input", "output", "staging") if arena.device == HOST else ("compute", "cache")
        for kind in kinds if arena.id in used else ():
            if kind != arena.kind:
                what = f"{show('arena', arena.id)} is {kind} memory"
                yield what, _with_arenas(plan, replace(arena, kind=kind))
        for device in range(len(plan.devices)) if arena.device != HOST else ():
            if device != arena.device and arena.id in used:
                what = f"{show('arena', arena.id)} is on {show('device', device)}"
                yield what, _with_arenas(plan, replace(arena, device=device))


def arena_lengths(plan: Plan) -> Mutants:
    """Give a weight or state more memory than it has bytes."""
    for arena in plan.memory.arenas:
        if arena.kind in ("weight", "state"):
            longer = replace(arena, nbytes=arena.nbytes + arena.alignment)
            yield f"{show('arena', arena.id)} is too long", _with_arenas(plan, longer)


def value_homes(plan: Plan) -> Mutants:
    """Call a value what it is not, or put its home elsewhere."""
    kinds = ("home", "replica", "input")
    for value in plan.splits.values:
        for kind in kinds:
            if kind != value.kind and (kind != "input" or value.device != HOST):
                what = f"{show('value', value.id)} is {kind} memory"
                yield what, _in_splits(plan, "values", replace(value, kind=kind))
        for device in range(len(plan.devices)) if value.kind == "home" else ():
            if device != value.device:
                homes = {**plan.placement.homes, value.storage: device}
                placement = replace(plan.placement, homes=homes)
                what = f"{show('value', value.id)} has its home on {show('device', device)}"
                yield what, replace(plan, placement=placement)
        if value.kind != "home":
            named = replace(value, bound="somebody")
            what = f"{show('value', value.id)} is bound"
            yield what, _in_splits(plan, "values", named)


def memory_sizes(plan: Plan) -> Mutants:
    """Let a device have one byte less than the plan takes, or allocate one byte less at once."""
    used, largest = Counter[int](), Counter[int]()
    for a in plan.memory.arenas:
        is_imported = a.kind == "weight" and plan.devices[a.device].imports_host_memory
        if a.device != HOST and not is_imported:
            used[a.device] += a.nbytes
            largest[a.device] = max(largest[a.device], a.nbytes)
    for device, nbytes in used.items():
        for field, most in (("memory_nbytes", nbytes), ("max_allocation_nbytes", largest[device])):
            if most > 1:
                what = f"{field} of {show('device', device)} is {most - 1}"
                yield what, _with_facts(plan, device, **{field: most - 1})


def takeovers(plan: Plan) -> Mutants:
    """Forget that a result overwrites an operand, or say so of a value that lies elsewhere."""
    memory = plan.memory
    for value, taken in memory.overwrites.items():
        left = {v: t for v, t in memory.overwrites.items() if v != value}
        what = f"{show('value', value)} does not say that it overwrites"
        used = any({value, taken} <= {*bound} for bound in plan.splits.bindings)
        if memory.regions[value].nbytes and used:
            yield what, replace(plan, memory=replace(memory, overwrites=left))
    for value, region in enumerate(memory.regions):
        other = next((v for v, r in enumerate(memory.regions) if r.arena != region.arena), None)
        if other is not None:
            said = {**memory.overwrites, value: other}
            what = f"{show('value', value)} overwrites {show('value', other)}"
            yield what, replace(plan, memory=replace(memory, overwrites=said))


def memory_bounds(plan: Plan) -> Mutants:
    """Let a bound be larger than its arena, or that of a weight, or none with hints."""
    memory = plan.memory
    for arena in memory.arenas:
        longer = {arena.id: arena.nbytes + 1}
        changed = replace(memory, lower_bound={**memory.lower_bound, **longer})
        yield f"the bound of {show('arena', arena.id)} is too high", replace(plan, memory=changed)
        for bound in (longer, {arena.id: memory.lower_bound.get(arena.id, arena.nbytes + 1)}):
            changed = replace(memory, hinted_bound=bound)
            what = f"{show('arena', arena.id)} has {bound} bytes with hints"
            yield what, replace(plan, memory=changed)


def split_order(plan: Plan) -> Mutants:
    """Exchange two splits; leave out or repeat a node between two; end early."""
    for one, other in pairwise(plan.splits.splits):
        turned = (
            replace(one, first=other.first, end=other.end, device=other.device),
            replace(other, first=one.first, end=one.end, device=one.device),
        )
        mutant = _in_splits(plan, "splits", *turned)
        yield f"exchange {show('split', one.id)} and the next", mutant
        number = {one.id: other.id, other.id: one.id}
        commands = [
            replace(c, split=number.get(c.split, c.split)) if isinstance(c, Launch) else c
            for c in plan.commands
        ]
        what = f"exchange {show('split', one.id)} and the next, launches too"
        yield what, replace(mutant, commands=tuple(commands))
        later = replace(other, first=other.first - 1)
        yield f"{show('split', other.id)} begins early", _in_splits(plan, "splits", later)
    for split in plan.splits.splits:
        if split.end - split.first > 1:
            for changed in (
                replace(split, first=split.first + 1),
                replace(split, end=split.end - 1),
            ):
                what = f"{show('split', split.id)} lacks a node"
                yield what, _in_splits(plan, "splits", changed)


def split_devices(plan: Plan) -> Mutants:
    """Put a split, a choice or a transfer on another device than what runs it."""
    for device in range(len(plan.devices)):
        on = show("device", device)
        for split in plan.splits.splits:
            if split.device != device:
                changed = replace(split, device=device)
                yield f"{show('split', split.id)} on {on}", _in_splits(plan, "splits", changed)
        for node, choice in enumerate(plan.placement.choices):
            if choice.device != device:
                choices = list(plan.placement.choices)
                choices[node] = replace(choice, device=device)
                placement = replace(plan.placement, choices=tuple(choices))
                yield f"{show('node', node)} on {on}", replace(plan, placement=placement)
        for t in plan.splits.transfers:
            if t.by != device:
                moved = replace(t, by=device)
                yield f"transfer {t.id} by {on}", _in_splits(plan, "transfers", moved)


def transfer_order(plan: Plan) -> Mutants:
    """Let a fill stand later; exchange the places of two transfers."""
    for t in plan.splits.transfers:
        for before in range(1, len(plan.splits.splits) + 1) if not t.has_source else ():
            later = replace(t, before=before)
            yield f"transfer {t.id} before {before}", _in_splits(plan, "transfers", later)
    for one, other in pairwise(plan.splits.transfers):
        if one.before != other.before:
            turned = replace(one, before=other.before), replace(other, before=one.before)
            what = f"exchange the places of transfers {one.id} and {other.id}"
            yield what, _in_splits(plan, "transfers", *turned)


def host_views(plan: Plan) -> Mutants:
    """Let the device that holds rows have no host view, or move them itself."""
    for t in plan.splits.transfers:
        if t.rows is not None and t.rows.through_host_view:
            here = plan.splits.values[t.src].device
            without = _with_facts(plan, here, is_host=False)
            yield f"{show('device', here)} has no host view", without
            yield (
                f"transfer {t.id} by its source",
                _in_splits(plan, "transfers", replace(t, by=here)),
            )


def next_run(plan: Plan) -> Mutants:
    """Let a wait be for this run instead of the next, or the other way round."""
    for command in plan.commands:
        hazard = command.effects.hazard
        if hazard is not None and not hazard.earlier == hazard.later == -1:
            turned = hazard._replace(next_run=not hazard.next_run)
            commands = list(plan.commands)
            commands[command.id] = replace(command, hazard=turned)
            what = f"next_run of {show('command', command.id)} is {turned.next_run}"
            yield what, replace(plan, commands=tuple(commands))


def stream_counts(plan: Plan) -> Mutants:
    """Let a device have one stream less than the plan uses."""
    for device, count in Counter(s.device for s in plan.streams.streams).items():
        if count > 1:
            what = f"{show('device', device)} has {count - 1} streams"
            yield what, _with_facts(plan, device, max_streams=count - 1)


def group_patterns(plan: Plan) -> Mutants:
    """Give a group another pattern, a node less or a node more."""
    grouped = {n for f in plan.fusions for n in f.nodes}
    free = [n for n in range(len(plan.nodes)) if n not in grouped]
    for i, f in enumerate(plan.fusions):
        for pattern in (*PATTERNS, "nothing"):
            if pattern != f.pattern:
                yield f"group {i} is {pattern}", _with_group(plan, i, pattern=pattern)
        yield f"group {i} lacks a node", _with_group(plan, i, nodes=f.nodes[1:])
        for n in [n for n in free if n < f.nodes[-1]][-1:]:
            yield f"group {i} and {show('node', n)}", _with_group(plan, i, nodes=(n, *f.nodes))


def group_order(plan: Plan) -> Mutants:
    """Exchange two groups; name the last node of a group first."""
    for i, (one, other) in enumerate(pairwise(plan.fusions)):
        fusions = (*plan.fusions[:i], other, one, *plan.fusions[i + 2 :])
        yield f"exchange groups {i} and {i + 1}", replace(plan, fusions=fusions)
    for i, f in enumerate(plan.fusions):
        yield f"turn group {i}", _with_group(plan, i, nodes=(f.nodes[-1], *f.nodes[:-1]))


def group_links(plan: Plan) -> Mutants:
    """Let nodes of the right ops be a group that have nothing to do with each other."""
    grouped = {n for f in plan.fusions for n in f.nodes}
    patterns = {pattern.ops: pattern.name for pattern in PATTERNS.values()}
    for launch in plan.commands:
        for a, b in pairwise(launch.effects.steps):
            pattern = patterns.get((plan.nodes[a.node].op, plan.nodes[b.node].op))
            bound = plan.splits.bindings
            is_linked = bound[a.node][-1] in bound[b.node] or {a.node, b.node} & grouped
            if pattern is not None and not is_linked and a.node < b.node:
                groups = (*plan.fusions, Fusion(pattern, (a.node, b.node)))
                fusions = tuple(sorted(groups, key=lambda f: f.nodes[-1]))
                what = f"{show('node', a.node)} and {show('node', b.node)} are {pattern}"
                yield what, replace(plan, fusions=fusions)
    for i, f in enumerate(plan.fusions):
        for k, n in enumerate(f.nodes[:-1]):
            read = {v for member in f.nodes for v in plan.splits.bindings[member]}
            others = (m for m in range(f.nodes[-1]) if m not in grouped)
            others = (m for m in others if plan.splits.bindings[m][-1] not in read)
            for m in [m for m in others if plan.nodes[m].op == plan.nodes[n].op][:1]:
                nodes = (*f.nodes[:k], m, *f.nodes[k + 1 :])
                yield f"group {i} has {show('node', m)}", _with_group(plan, i, nodes=nodes)
        for one, other in combinations(f.nodes[:-1], 2):
            if plan.nodes[one].op == plan.nodes[other].op:
                turned = {one: other, other: one}
                nodes = tuple(turned.get(n, n) for n in f.nodes)
                yield f"turn members of group {i}", _with_group(plan, i, nodes=nodes)


def bound_tensors(plan: Plan) -> Mutants:
    """Exchange the names of two tensors throughout, take a name away, or mean other bytes."""
    kept = [a for a in plan.memory.arenas if a.kind in ("weight", "state")]
    for one, other in combinations(kept, 2):
        turned = replace(one, name=other.name), replace(other, name=one.name)
        what = f"exchange {one.name!r} and {other.name!r} throughout"
        yield what, _renamed(_with_arenas(plan, *turned), turned)
    for arena in kept:
        kind = "state" if arena.kind == "weight" else "weight"
        what = f"{show('arena', arena.id)} is {kind} memory"
        yield what, _with_arenas(plan, replace(arena, kind=kind))
        plain = replace(arena, kind="compute", name="")
        what = f"{show('arena', arena.id)} is compute memory throughout"
        yield what, _renamed(_with_arenas(plan, plain), (plain,))
    for value in plan.splits.values:
        for changes in ({"storage": value.storage + (1 << 20)}, {"end": value.end + (1 << 40)}):
            what = f"{show('value', value.id)} has {changes}"
            yield what, _in_splits(plan, "values", replace(value, **changes))


def storage_homes(plan: Plan) -> Mutants:
    """Give a home to what is not a tensor."""
    homes = {**plan.placement.homes, 1 << 20: 0}
    yield "a home of no tensor", replace(plan, placement=replace(plan.placement, homes=homes))


def row_lengths(plan: Plan) -> Mutants:
    """Change the length of a row in transfer and command alike."""
    for command in plan.commands:
        if not isinstance(command, CopyRows) or command.cache is not None:
            continue
        t = plan.splits.transfers[command.transfer]
        for nbytes in (command.row_nbytes // 2, command.row_nbytes * 2):
            if t.rows is None or command.src.nbytes % max(1, nbytes):
                continue
            changed = _in_splits(plan, "transfers", replace(t, rows=replace(t.rows, nbytes=nbytes)))
            commands = list(plan.commands)
            commands[command.id] = replace(command, row_nbytes=nbytes)
            what = f"rows of {nbytes} bytes in {show('command', command.id)}"
            yield what, replace(changed, commands=tuple(commands))


def node_devices(plan: Plan) -> Mutants:
    """Let a device no longer offer an op that one of its nodes has."""
    for node, choice in enumerate(plan.placement.choices):
        op = plan.nodes[node].op
        ops = frozenset(k for k in plan.devices[choice.device].ops if k.partition(":")[0] != op)
        what = f"{show('device', choice.device)} lacks {op}"
        yield what, _with_facts(plan, choice.device, ops=ops)


RELATION_MUTATIONS: Final[Mapping[str, Callable[[Plan], Mutants]]] = {
    f.__name__: f
    for f in (
        arena_names,
        arena_kinds,
        arena_lengths,
        value_homes,
        memory_sizes,
        takeovers,
        memory_bounds,
        split_order,
        split_devices,
        transfer_order,
        host_views,
        next_run,
        stream_counts,
        group_patterns,
        group_order,
        group_links,
        bound_tensors,
        storage_homes,
        row_lengths,
        node_devices,
    )
}
"""By the name of the relation that they break."""


def _with_arenas(plan: Plan, *changed: Arena) -> Plan:
    by_id = {a.id: a for a in (*plan.memory.arenas, *changed)}
    return replace(plan, memory=replace(plan.memory, arenas=tuple(by_id.values())))


def _renamed(plan: Plan, arenas: Sequence[Arena]) -> Plan:
    """Return the plan in which the values of arenas are bound to the arenas' names."""
    names = {arena.id: arena.name for arena in arenas}
    pairs = zip(plan.splits.values, plan.memory.regions, strict=True)
    changed = [replace(v, bound=names[r.arena]) for v, r in pairs if r.arena in names]
    return _in_splits(plan, "values", *changed)


def _in_splits(plan: Plan, field: str, *changed: Any) -> Plan:
    """Return the plan with other values, transfers or splits of the same ids."""
    by_id = {item.id: item for item in (*getattr(plan.splits, field), *changed)}
    return replace(plan, splits=replace(plan.splits, **{field: tuple(by_id.values())}))


def _with_group(plan: Plan, i: int, **changes: Any) -> Plan:
    changed = replace(plan.fusions[i], **changes)
    return replace(plan, fusions=(*plan.fusions[:i], changed, *plan.fusions[i + 1 :]))


def _with_facts(plan: Plan, device: int, **changes: Any) -> Plan:
    devices: list[DeviceFacts] = list(plan.devices)
    devices[device] = with_facts(devices[device], **changes)
    return replace(plan, devices=tuple(devices))
