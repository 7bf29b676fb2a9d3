"""What it costs that a device has no kernel for an op."""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from ggsched.plan.bundle import Plan
from ggsched.topology.caps import runs_by_reference


def missing_ops(plan: Plan) -> Iterator[str]:
    """Yield a line for each op that splits the work of a device which has no kernel for it.

    The splits are those that would not be there if nodes of the op ran between their neighbours.
    Ops that are decomposed have a line each with the nodes that they became; so have ops that a
    device computes by their reference arithmetic.
    """
    decomposed = Counter(
        (plan.devices[c.device].name, c.detail.partition(",")[0])
        for c in plan.placement.choices
        if c.cause == "decomposed"
    )
    for (name, op), count in sorted(decomposed.items()):
        yield f"{name} has no {op!r}: decomposed into {count} {'node' if count == 1 else 'nodes'}"
    devices = [choice.device for choice in plan.placement.choices]
    placed = Counter((device, n.op) for device, n in zip(devices, plan.nodes, strict=True))
    for (device, op), count in sorted(placed.items()):
        facts = plan.devices[device]
        if runs_by_reference(facts, op):
            nodes = "1 node" if count == 1 else f"{count} nodes"
            yield f"{facts.name} has no {op!r}: {nodes} by the reference arithmetic"
    for device, facts in enumerate(plan.devices):
        supported = {key.partition(":")[0] for key in facts.ops}
        libraries = {key.removesuffix("*") for key in supported if key.endswith(".*")}
        used = {n.op for n in plan.nodes if not n.op.startswith(tuple(libraries))}
        for op in sorted(used - supported):
            moved = list(devices)
            for i, node in enumerate(plan.nodes):
                if node.op == op and i and moved[i - 1] == device:
                    moved[i] = device
            more = _changes(devices) - _changes(moved)
            if more > 0:
                what = "split" if more == 1 else "splits"
                yield f"{facts.name} has no {op!r}: {more} more {what}"


def _changes(devices: list[int]) -> int:
    return sum(a != b for a, b in pairwise(devices))


__all__ = ["missing_ops"]
