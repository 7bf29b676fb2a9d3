"""Relations: do the artifacts of a plan agree with each other, and with the facts of its devices?

Other rules compare commands with artifacts and artifacts with the graph. An artifact that is wrong
in the same way as the command that follows it, or that no command follows, passes those. Here each
fact that two artifacts state is compared. ``RELATIONS`` and ``GRAPH_RELATIONS`` name all relations;
``ggsched_testing.plan_mutants_relations`` has edits that break each of them.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final, NamedTuple

from ggsched.ids import show
from ggsched.ir.fusion import PATTERNS
from ggsched.ir.graph import Graph
from ggsched.ir.intervals import overlap
from ggsched.ir.ops import OPS
from ggsched.ir.tensor import Role
from ggsched.plan.bundle import Plan
from ggsched.plan.effects import Step
from ggsched.plan.fusions import Fusion
from ggsched.plan.memory import Arena
from ggsched.plan.splits import HOST, Value
from ggsched.sanitize.report import Finding, instead
from ggsched.topology.caps import lacking
from ggsched.topology.model import Topology

_HOST_COMMAND: Final = -1


class Mismatch(NamedTuple):
    """A fact that two artifacts state differently.

    Attributes:
        subject: What the fact is about, e.g. ``the name of a3``.
        found: What the one says.
        due: What follows from the other.
        command: Id of the command that states it, or -1.
    """

    subject: str
    found: object
    due: object
    command: int = -1


def find_disagreements(plan: Plan, without: Collection[str] = ()) -> list[Finding]:
    """Return what the artifacts of a plan, whose ids exist, state differently.

    Args:
        without: Relations that are not looked at.
    """
    wanted = {name: find for name, find in RELATIONS.items() if name not in without}
    return [_finding(name, m) for name, find in wanted.items() for m in find(plan)]


def find_disagreements_with(graph: Graph, plan: Plan) -> list[Finding]:
    """Return what the artifacts of a plan state differently from its graph."""
    return [_finding(name, m) for name, find in GRAPH_RELATIONS.items() for m in find(plan, graph)]


def find_missing_paths(plan: Plan, topology: Topology) -> list[Finding]:
    """Return transfers between devices that the machine has no path for."""
    values, findings = plan.splits.values, []
    for t in plan.splits.transfers:
        pair = values[t.src].device, values[t.dst].device
        if t.pattern is not None or HOST in pair or (t.rows and t.rows.through_host_view):
            continue
        path = topology.copy_paths.get(pair)
        if path is None or path.by != t.by:
            who = f"transfer {t.id} is a copy by {show('device', t.by)}"
            what = f"{who}, and there is no such path from device {pair[0]} to {pair[1]}"
            findings.append(Finding("region", what, -1, "copy it through host memory"))
    return findings


def _finding(relation: str, m: Mismatch) -> Finding:
    return instead("relation", f"{m.subject} is", m.found, m.due, m.command, relation=relation)


# --- memory ---------------------------------------------------------------------------------------


def arena_names(plan: Plan) -> Iterator[Mismatch]:
    """Memory of weights and states holds the one tensor that it is named after."""
    kept = {arena.id for arena in plan.memory.arenas if arena.kind in ("weight", "state")}
    storages: dict[str, int] = {}
    for value, arena in _placed(plan):
        if not value.bound:
            continue
        kept.discard(arena.id)
        if arena.name != value.bound:
            yield Mismatch(_of(arena, "name", value), repr(arena.name), repr(value.bound))
        storage = storages.setdefault(value.bound, value.storage)
        if storage != value.storage:
            ids = show("tensor", value.storage), show("tensor", storage)
            yield Mismatch(f"the tensor {value.bound!r} of {_name(value)}", *ids)
    for i in sorted(kept):
        yield Mismatch(f"what {show('arena', i)} holds", "nothing", "the tensor of its name")


def arena_kinds(plan: Plan) -> Iterator[Mismatch]:
    """The kind and the device of an arena are those of the values in it."""
    for value, arena in _placed(plan):
        kinds: tuple[str, ...] = ("compute",) if value.device != HOST else (value.kind,)
        kinds = ("weight", "state") if value.bound else kinds
        if arena.kind not in kinds:
            yield Mismatch(_of(arena, "kind", value), arena.kind, " or ".join(kinds))
        if arena.device != value.device:
            yield Mismatch(_of(arena, "device", value), arena.device, value.device)


def arena_lengths(plan: Plan) -> Iterator[Mismatch]:
    """A bound value fills its arena."""
    for value, region in zip(plan.splits.values, plan.memory.regions, strict=True):
        whole = region._replace(offset=0, nbytes=plan.memory.arenas[region.arena].nbytes)
        if value.bound and region != whole:
            yield Mismatch(f"the place of {value.bound!r}", region.text, whole.text)


def value_homes(plan: Plan) -> Iterator[Mismatch]:
    """A home is where the placement says, a replica is elsewhere, and host memory is unbound."""
    for value in plan.splits.values:
        home, is_on_host = plan.placement.homes.get(value.storage), value.device == HOST
        if is_on_host == (value.kind in ("home", "replica")):
            subject = f"the kind of {_name(value)} on device {value.device}"
            yield Mismatch(subject, value.kind, "host memory" if is_on_host else "home or replica")
        if value.kind == "home" and value.device != home:
            yield Mismatch(f"the device of {_name(value)}, a home,", value.device, home)
        if value.kind == "replica" and value.device == home:
            yield Mismatch(f"the device of {_name(value)}, a replica,", home, "another device")
        if value.kind != "home" and value.bound:
            yield Mismatch(f"{_name(value)} of {value.bound!r}", f"{value.kind} memory", "a home")


def memory_sizes(plan: Plan) -> Iterator[Mismatch]:
    """A device has the memory that the plan takes; weights may stay in host memory it imports."""
    used: Counter[int] = Counter()
    for arena in plan.memory.arenas:
        if arena.device == HOST:
            continue
        facts = plan.devices[arena.device]
        if arena.kind == "weight" and facts.imports_host_memory:
            continue
        used[arena.device] += arena.nbytes
        if arena.nbytes > facts.max_allocation_nbytes:
            subject = f"the length of {show('arena', arena.id)} on {facts.name}"
            yield Mismatch(subject, arena.nbytes, f"at most {facts.max_allocation_nbytes}")
    for device, nbytes in used.items():
        facts = plan.devices[device]
        if nbytes > facts.memory_nbytes:
            subject = f"the memory taken of {facts.name}"
            yield Mismatch(subject, nbytes, f"at most {facts.memory_nbytes}")


def takeovers(plan: Plan) -> Iterator[Mismatch]:
    """A result lies on another operand's bytes if, and only if, the memory plan says so."""
    regions, overwrites = plan.memory.regions, plan.memory.overwrites
    for value, taken in overwrites.items():
        new, old = regions[value], regions[taken]
        if new.arena != old.arena or not old.offset <= new.offset <= new.end <= old.end:
            due = f"within {show('value', taken)} at {old.text}"
            yield Mismatch(f"the place of {show('value', value)}", new.text, due)
    for *operands, result in (bound for bound in plan.splits.bindings if len(bound) > 1):
        region = regions[result]
        for value in operands:
            near = regions[value]
            if value == result or near.arena != region.arena or not overlap(near, region):
                continue
            if overwrites.get(result) != value:
                subject = f"the place of {show('value', result)}"
                yield Mismatch(subject, region.text, f"apart from {show('value', value)}")


def memory_bounds(plan: Plan) -> Iterator[Mismatch]:
    """Bounds are of arenas without a name, at most as long, and higher with hints than without."""
    arenas, plain = plan.memory.arenas, plan.memory.lower_bound
    for i, bound in plain.items():
        if arenas[i].name or not 0 <= bound <= arenas[i].nbytes:
            most = 0 if arenas[i].name else arenas[i].nbytes
            yield Mismatch(f"the bound of {show('arena', i)}", bound, f"at most {most}")
    for i, bound in plan.memory.hinted_bound.items():
        if not plain.get(i, bound) < bound <= arenas[i].nbytes:
            due = f"above {plain.get(i)}, at most {arenas[i].nbytes}"
            yield Mismatch(f"the bound with hints of {show('arena', i)}", bound, due)


# --- the program ----------------------------------------------------------------------------------


def split_order(plan: Plan) -> Iterator[Mismatch]:
    """Splits hold all nodes once, in the order of their ids."""
    at = 0
    for split in plan.splits.splits:
        if split.first != at:
            subject = f"the first node of {show('split', split.id)}"
            yield Mismatch(subject, show("node", split.first), show("node", at))
        at = split.end
    if at != len(plan.nodes):
        yield Mismatch("the end of the last split", at, len(plan.nodes))


def split_devices(plan: Plan) -> Iterator[Mismatch]:
    """Nodes are on the device of their split, transfers on one of their ends."""
    device_of = [s.device for s in plan.streams.streams]
    choices, of_node = plan.placement.choices, plan.streams.of_node
    for split in plan.splits.splits:
        for node in range(split.first, split.end):
            for found in (choices[node].device, device_of[of_node[node]]):
                if found != split.device:
                    subject = f"the device of {show('node', node)} of {show('split', split.id)}"
                    yield Mismatch(subject, found, split.device)
    values = plan.splits.values
    for t, stream in zip(plan.splits.transfers, plan.streams.of_transfer, strict=True):
        ends = values[t.src].device, values[t.dst].device
        if device_of[stream] != t.by:
            yield Mismatch(f"the stream's device of transfer {t.id}", device_of[stream], t.by)
        if t.by not in ends or t.by == HOST:
            yield Mismatch(f"the device of transfer {t.id}", t.by, f"one of {ends}")


def transfer_order(plan: Plan) -> Iterator[Mismatch]:
    """Transfers are listed in the order of the splits that they stand before, fills before all."""
    last = 0
    for t in plan.splits.transfers:
        if t.before < last if t.has_source else t.before:
            due = f"at least {last}" if t.has_source else 0
            yield Mismatch(f"the split after transfer {t.id}", t.before, due)
        last = max(last, t.before)


def host_views(plan: Plan) -> Iterator[Mismatch]:
    """Rows are read through the host view of host memory, by the device that they go to."""
    values = plan.splits.values
    for t in plan.splits.transfers:
        if t.rows is None or not t.rows.through_host_view:
            continue
        source, there = plan.devices[values[t.src].device], values[t.dst].device
        if not source.is_host:
            subject = f"the source of transfer {t.id}, which has no host view,"
            yield Mismatch(subject, source.name, "host memory")
        if t.by != there:
            yield Mismatch(f"the device of transfer {t.id} from a host view", t.by, there)


def next_run(plan: Plan) -> Iterator[Mismatch]:
    """The second access of a hazard is of the next run if it stands before the first one.

    The host writes before all commands of a run and reads outputs after them.
    """
    for command in plan.commands:
        hazard = command.effects.hazard
        if hazard is None or hazard.earlier == hazard.later == _HOST_COMMAND:
            continue
        crosses = hazard.later <= hazard.earlier
        if hazard.later == _HOST_COMMAND:
            crosses = hazard.kind != "RAW"
        elif hazard.earlier == _HOST_COMMAND:
            crosses = hazard.kind == "WAR"
        if hazard.next_run != crosses:
            subject = f"next_run of {show('command', command.id)}"
            yield Mismatch(subject, hazard.next_run, crosses, command.id)


def stream_counts(plan: Plan) -> Iterator[Mismatch]:
    """A device has as many streams as the plan uses."""
    counts = Counter(stream.device for stream in plan.streams.streams)
    for device, count in counts.items():
        facts = plan.devices[device]
        if count > facts.max_streams:
            yield Mismatch(f"the number of streams of {facts.name}", count, facts.max_streams)


# --- groups ---------------------------------------------------------------------------------------


def group_patterns(plan: Plan) -> Iterator[Mismatch]:
    """The ops of a group are those of its pattern."""
    for fusion in plan.fusions:
        pattern = PATTERNS.get(fusion.pattern)
        ops = tuple(plan.nodes[n].op for n in fusion.nodes)
        if pattern is None or ops != pattern.ops:
            due = "a known pattern" if pattern is None else " ".join(pattern.ops)
            yield Mismatch(_group(fusion), " ".join(ops), due)


def group_order(plan: Plan) -> Iterator[Mismatch]:
    """Groups are ordered by their last nodes; each lies in one split, on one stream."""
    if not plan.fusions:
        return
    split_of = {n: s.id for s in plan.splits.splits for n in range(s.first, s.end)}
    stream_of = dict(enumerate(plan.streams.of_node))
    previous = -1
    for fusion in plan.fusions:
        last = fusion.nodes[-1]
        if last != max(*fusion.nodes, previous):
            due = show("node", max(*fusion.nodes, previous))
            yield Mismatch(f"the last node of {_group(fusion)}", show("node", last), due)
        previous = max(last, previous)
        for subject, of in (("split", split_of), ("stream", stream_of)):
            places = {of.get(n, -1) for n in fusion.nodes}
            if len(places) > 1:
                yield Mismatch(f"the {subject} of {_group(fusion)}", sorted(places), "one")


def group_links(plan: Plan) -> Iterator[Mismatch]:
    """In a group each result is the operand that the pattern says, equal operands are equal."""
    if not plan.fusions:
        return
    of_node = {s.node: s for c in plan.commands for s in c.effects.steps if s.node >= 0}
    for fusion in plan.fusions:
        pattern = PATTERNS.get(fusion.pattern)
        steps = [of_node[n] for n in fusion.nodes if n in of_node]
        if pattern is None or len(steps) != len(pattern.ops):
            continue
        for link in pattern.links:
            user, made = steps[link.user], _operand(plan, steps[link.maker], -1)
            read = [_operand(plan, user, k) for k in link.operands]
            if made not in read:
                subject = f"what {show('node', user.node)} of {_group(fusion)} reads"
                yield Mismatch(subject, ", ".join(read), made)
        for (a, i), (b, k) in pattern.same:
            one, other = _operand(plan, steps[a], i), _operand(plan, steps[b], k)
            if one != other:
                subject = f"operand {k} of {show('node', steps[b].node)} of {_group(fusion)}"
                yield Mismatch(subject, other, one)


# --- the graph ------------------------------------------------------------------------------------


def bound_tensors(plan: Plan, graph: Graph) -> Iterator[Mismatch]:
    """A value lies in a storage; homes of weights and states are bound, whole, of their kind."""
    for value, arena in _placed(plan):
        if not 0 <= value.storage < len(graph.tensors) or graph.tensors[value.storage].is_view:
            yield Mismatch(f"the storage of {_name(value)}", value.storage, "a root tensor")
            continue
        root = graph.tensors[value.storage]
        is_kept = value.kind == "home" and root.role in (Role.WEIGHT, Role.STATE)
        if value.bound != (due := root.name if is_kept else ""):
            yield Mismatch(f"the name of {_name(value)}", repr(value.bound), repr(due))
        if is_kept and arena.kind != root.role.value:
            yield Mismatch(_of(arena, "kind", value), arena.kind, root.role.value)
        is_inside = 0 <= value.start <= value.end <= root.nbytes
        if not is_inside or (value.kind in ("home", "input") and value.nbytes != root.nbytes):
            held, whole = f"[{value.start}:{value.end}]", f"[0:{root.nbytes}]"
            yield Mismatch(f"the bytes of {_name(value)}", held, whole)


def storage_homes(plan: Plan, graph: Graph) -> Iterator[Mismatch]:
    """Only storages have a home."""
    for tid in plan.placement.homes:
        if not 0 <= tid < len(graph.tensors) or graph.tensors[tid].is_view:
            yield Mismatch("what has a home", f"tensor {tid}", "a root tensor")


def row_lengths(plan: Plan, graph: Graph) -> Iterator[Mismatch]:
    """A row is as long as the stride of the weight of which a node takes rows."""
    rows = {t.dst: (t.id, t.rows.nbytes) for t in plan.splits.transfers if t.rows is not None}
    for node in graph.nodes if rows else ():
        taken = OPS[node.op].rows
        bound = plan.splits.bindings[node.id]
        if taken is None or taken[0] >= len(bound) or bound[taken[0]] not in rows:
            continue
        (transfer, nbytes), weight = rows[bound[taken[0]]], graph.tensors[node.inputs[taken[0]]]
        if nbytes != weight.strides[0]:
            subject = f"the length of a row of transfer {transfer}"
            yield Mismatch(subject, nbytes, weight.strides[0])


def node_devices(plan: Plan, graph: Graph) -> Iterator[Mismatch]:
    """A device offers the ops of its nodes."""
    for node, choice in zip(graph.nodes, plan.placement.choices, strict=True):
        facts, dtype = plan.devices[choice.device], graph.tensors[node.tensors[0]].dtype.name
        if missing := lacking(facts, node.op, dtype, node.params.get("of")):
            subject = f"the device of {show('node', node.id)}"
            yield Mismatch(subject, facts.name, f"one with {missing}")


RELATIONS: Final[Mapping[str, Callable[[Plan], Iterator[Mismatch]]]] = {
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
    )
}
"""What a plan states twice."""

GRAPH_RELATIONS: Final[Mapping[str, Callable[[Plan, Graph], Iterator[Mismatch]]]] = {
    f.__name__: f for f in (bound_tensors, storage_homes, row_lengths, node_devices)
}
"""What a plan and its graph state."""


def _placed(plan: Plan) -> Iterator[tuple[Value, Arena]]:
    arenas = plan.memory.arenas
    for value, region in zip(plan.splits.values, plan.memory.regions, strict=True):
        yield value, arenas[region.arena]


def _of(arena: Arena, fact: str, value: Value) -> str:
    return f"the {fact} of {show('arena', arena.id)}, which holds {_name(value)},"


def _name(value: Value) -> str:
    return show("value", value.id)


def _group(fusion: Fusion) -> str:
    return f"group {fusion.pattern} of {', '.join(show('node', n) for n in fusion.nodes)}"


def _operand(plan: Plan, step: Step, k: int) -> str:
    """Return value and bytes of an operand; empty if a node has fewer."""
    if k >= len(step.operands):
        return ""
    return f"{show('value', plan.splits.bindings[step.node][k])} at {step.operands[k].text}"
