"""Which runs of different plans may follow each other while the first is under way.

Plans share weights, which no run writes, and states. All else is a plan's own. So where each state
is touched by one stream, the same one in all plans under way, the order of that stream is all the
order that they need (STR-1).
"""

from collections.abc import Mapping

from ggsched.plan.bundle import Plan
from ggsched.plan.command import CopyRows, HostSync

StateStreams = Mapping[str, tuple[int, int]]
"""For each state the device of the stream that touches it, and which one of that device it is."""


def state_streams(plan: Plan) -> StateStreams | None:
    """Return the one stream that touches each state of a plan.

    None where a state is touched by several streams, where a device does not order the copies of a
    stream against its launches (``copy_order``), and where rows of experts are copied: caches of
    those are shared among plans, and the host decides about them.
    """
    streams, arenas = plan.streams.streams, plan.memory.arenas
    if any(plan.devices[s.device].copy_order != "stream" for s in streams):
        return None
    seen: dict[int, int] = {}
    places = []
    for s in streams:
        places.append((s.device, seen.get(s.device, 0)))
        seen[s.device] = places[-1][1] + 1
    found: dict[str, tuple[int, int]] = {}
    for c in plan.commands:
        if isinstance(c, CopyRows):
            return None
        effects = c.effects
        touched = (*effects.reads, *effects.writes, *effects.host_reads, *effects.host_writes)
        for arena in {region.arena for region in touched}:
            kind, name = arenas[arena].kind, arenas[arena].name
            if kind == "cache":
                return None
            if kind == "state" and found.setdefault(name, places[c.stream]) != places[c.stream]:
                return None
    return found


def first_at_end(plan: Plan) -> int:
    """Return the number of the first command that is for the sake of the next run alone."""
    count = len(plan.commands)
    while count and (hazard := plan.commands[count - 1].effects.hazard) and hazard.next_run:
        count -= 1
    return count


def first_wait_at_end(plan: Plan) -> int:
    """Return the number of the first of the host's waits that a run ends in.

    Whatever else the run enqueues stands in front of it. Where the host waits earlier too, it does
    so while the run is enqueued.
    """
    count = first_at_end(plan)
    while count and isinstance(plan.commands[count - 1], HostSync):
        count -= 1
    return count


def takes_turns(plan: Plan) -> bool:
    """Whether a run of the plan behind another one needs memory of its own to go on meanwhile.

    Not where there are outputs: the host waits for these, and so for nearly all that a run does.
    """
    waits = first_at_end(plan) < len(plan.commands)
    return waits and not plan.outputs and state_streams(plan) is not None
