"""Does everything exist that a plan names? For plans that come from files."""

from collections.abc import Iterator

from ggsched.errors import PlanError
from ggsched.ids import show
from ggsched.plan.bundle import Plan
from ggsched.plan.splits import HOST


def verify_references(plan: Plan) -> None:
    """Check the ids in a plan's artifacts; those in its commands are left to others.

    Raises:
        PlanError: ids that are not dense, tables of different lengths, a device, value, node or
            arena that is named and does not exist.
    """
    for problem, where in _problems(plan):
        raise PlanError(problem, where=where)


def _problems(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield what is wrong and where. Later checks rely on earlier ones."""
    yield from _numbering(plan)
    yield from _lengths(plan)
    yield from _places(plan)
    values, nodes = range(len(plan.splits.values)), range(len(plan.nodes))
    for t in plan.splits.transfers:
        if t.src not in values or t.dst not in values:
            yield f"from value {t.src} to {t.dst}", f"transfer {t.id}"
        if t.rows is not None and t.rows.ids not in values:
            yield f"rows by value {t.rows.ids}", f"transfer {t.id}"
    for slot in (*plan.inputs, *plan.outputs):
        if slot.value not in values:
            yield f"in value {slot.value}", repr(slot.name)
    for node, bound in enumerate(plan.splits.bindings):
        if any(v not in values for v in bound):
            yield f"bound to values {bound}", show("node", node)
    for s in plan.splits.splits:
        if s.first not in nodes or not s.first < s.end <= len(nodes):
            yield f"nodes [{s.first}, {s.end}) of {len(nodes)}", show("split", s.id)
    yield from _groups(plan)
    for v, taken in plan.memory.overwrites.items():
        if v not in values or taken not in values:
            yield f"value {v} overwrites {taken}", "memory"


def _groups(plan: Plan) -> Iterator[tuple[str, str]]:
    grouped: set[int] = set()
    for f in plan.fusions:
        if not f.nodes or any(n not in range(len(plan.nodes)) for n in f.nodes):
            yield f"a group of nodes {f.nodes}", f.pattern
        if grouped & set(f.nodes) or len(set(f.nodes)) < len(f.nodes):
            yield f"nodes {f.nodes} belong to two groups", f.pattern
        grouped |= set(f.nodes)


def _numbering(plan: Plan) -> Iterator[tuple[str, str]]:
    numbers = {
        "value": [v.id for v in plan.splits.values],
        "transfer": [t.id for t in plan.splits.transfers],
        "split": [s.id for s in plan.splits.splits],
        "stream": [s.id for s in plan.streams.streams],
        "arena": [a.id for a in plan.memory.arenas],
    }
    for kind, ids in numbers.items():
        for i, number in enumerate(ids):
            if number != i:
                yield f"has the id {number}", f"{kind} {i}"


def _lengths(plan: Plan) -> Iterator[tuple[str, str]]:
    tables = (
        ("choices", len(plan.placement.choices), len(plan.nodes)),
        ("bindings", len(plan.splits.bindings), len(plan.nodes)),
        ("regions", len(plan.memory.regions), len(plan.splits.values)),
        ("streams of nodes", len(plan.streams.of_node), len(plan.nodes)),
        ("streams of transfers", len(plan.streams.of_transfer), len(plan.splits.transfers)),
    )
    for name, found, wanted in tables:
        if found != wanted:
            yield f"{found} {name} instead of {wanted}", "plan"


def _places(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield unknown devices, streams and arenas."""
    devices, streams = range(len(plan.devices)), range(len(plan.streams.streams))
    arenas = range(len(plan.memory.arenas))
    named = [
        *((a.device, show("arena", a.id)) for a in plan.memory.arenas if a.device != HOST),
        *((v.device, show("value", v.id)) for v in plan.splits.values if v.device != HOST),
        *((s.device, show("split", s.id)) for s in plan.splits.splits),
        *((s.device, show("stream", s.id)) for s in plan.streams.streams),
        *((c.device, show("node", i)) for i, c in enumerate(plan.placement.choices)),
        *((d, f"home of tensor {t}") for t, d in plan.placement.homes.items()),
    ]
    for device, where in named:
        if device not in devices:
            yield f"on device {device}", where
    for stream in (*plan.streams.of_node, *plan.streams.of_transfer):
        if stream not in streams:
            yield f"uses stream {stream}", "plan"
    for gain in plan.streams.gains:
        if gain.split not in range(len(plan.splits.splits)):
            yield f"gain of split {gain.split}", "streams"
    for v, region in enumerate(plan.memory.regions):
        if region.arena not in arenas:
            yield f"in arena {region.arena}", show("value", v)
    for arena in (*plan.memory.lower_bound, *plan.memory.hinted_bound):
        if arena not in arenas:
            yield f"lower bound of arena {arena}", "memory"
