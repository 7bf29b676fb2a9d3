"""Where the bytes of a tensor are, when, and which other values use the same bytes."""

from dataclasses import dataclass

from ggsched.ids import show
from ggsched.ir.intervals import overlap
from ggsched.plan.bundle import Plan
from ggsched.plan.splits import HOST, Value


@dataclass(frozen=True, slots=True)
class Place:
    """One value of a storage.

    Attributes:
        value: Its id, as printed.
        kind: ``home``, ``replica``, or host memory: ``input``, ``output``, ``staging``.
        device: Name of the device, or ``"host"``.
        region: The bytes, as ``a3[0:4096]``.
        nbytes: How many.
        first: What writes or needs them first: a node or a transfer, or ``"always"``.
        last: What uses them last.
        shared_with: Values that have some of the same bytes at other times, as printed.
    """

    value: str
    kind: str
    device: str
    region: str
    nbytes: int
    first: str
    last: str
    shared_with: tuple[str, ...]


def places_of(plan: Plan, storage: int) -> tuple[Place, ...]:
    """Return every value of a storage, in the order of their ids.

    Args:
        storage: Id of the root tensor.
    """
    uses = _uses(plan)
    return tuple(_place(plan, v, uses[v.id]) for v in plan.splits.values if v.storage == storage)


def _place(plan: Plan, value: Value, uses: list[str]) -> Place:
    region = plan.memory.regions[value.id]
    lasts = bool(value.bound) or value.kind in ("input", "output")
    return Place(
        show("value", value.id),
        value.kind,
        "host" if value.device == HOST else plan.devices[value.device].name,
        f"{show('arena', region.arena)}[{region.offset}:{region.end}]",
        region.nbytes,
        "always" if lasts or not uses else uses[0],
        "always" if lasts or not uses else uses[-1],
        tuple(
            show("value", other)
            for other, others in enumerate(plan.memory.regions)
            if other != value.id and others.arena == region.arena and overlap(region, others)
        ),
    )


def _uses(plan: Plan) -> list[list[str]]:
    """Return for each value what touches it, in program order."""
    splits = plan.splits
    uses: list[list[str]] = [[] for _ in splits.values]
    at = 0
    ends = [(s.first, s.end) for s in splits.splits] + [(0, 0)]
    for number, (first, end) in enumerate(ends):
        while at < len(splits.transfers) and splits.transfers[at].before == number:
            transfer = splits.transfers[at]
            for value in (transfer.src, transfer.dst):
                uses[value].append(f"the transfer to {show('value', transfer.dst)}")
            at += 1
        for node in range(first, end):
            for value in splits.bindings[node]:
                uses[value].append(show("node", node))
    return uses
