"""The head of the page: what runs where, what limits a run, and what would help."""

from collections import defaultdict
from itertools import chain
from typing import Any

from ggsched.plan.bundle import Plan
from ggsched.plan.stats import device_name
from ggsched.report.splits import layers_text
from ggsched.trace.utilization import Account, DeviceAccount
from ggsched.units import seconds_text

Data = dict[str, Any]


def places_data(plan: Plan) -> list[Data]:
    """Return what each device of a plan computes and holds, in the order of devices."""
    nodes: dict[int, list[str]] = defaultdict(list)
    for split in plan.splits.splits:
        nodes[split.device] += [info.label for info in plan.nodes[split.first : split.end]]
    held: dict[str, int] = defaultdict(int)
    for arena in plan.memory.arenas:
        if arena.kind in ("weight", "state"):
            held[device_name(plan, arena.device)] += arena.nbytes
    return [
        {
            "device": facts.name,
            "nodes": len(nodes[number]),
            "layers": layers_text(
                nodes[number], chain(*(nodes[n] for n in range(len(plan.devices)) if n != number))
            ),
            "resident": held[facts.name],
        }
        for number, facts in enumerate(plan.devices)
        if nodes[number] or held[facts.name]
    ]


def limit_text(made: Account) -> str:
    """Say in one sentence what limits the runs of an account."""
    if not made.devices or not made.window_s > 0:
        return "No device did anything."
    device = max(made.devices, key=lambda d: d.busy_s)
    shares = device.shares()
    share = f"{shares['busy']:.0%} of the time"
    if shares["busy"] >= 0.5:
        return f"{device.device} computes {share}: its speed limits the run."
    return f"{device.device} computes only {share}: {_waiting(made, device)}."


def _waiting(made: Account, device: DeviceAccount) -> str:
    """Say what a device waits for most."""
    waits = {
        "copy": device.copy_s,
        "peer": device.peer_s,
        "host": device.host_s,
        "done": device.done_s,
    }
    part = max(waits, key=lambda name: waits[name])
    took = seconds_text(waits[part])
    if part == "copy" and made.paths:
        path = max(made.paths, key=lambda p: p.seconds)
        return f"it waits {took} for copies, most of them {path.path}"
    if part == "peer":
        return f"it waits {took} for other devices, whose results it needs"
    if part == "host":
        return f"it waits {took} for the host to enqueue work"
    return f"it is done {took} before the run ends"
