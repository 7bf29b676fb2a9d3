"""Turns: the parts of a joined graph that go from device to device and back, stage by stage.

Where attention lives on one device and experts on another, each part comes back to a device once
for each layer. Part after part leaves every device waiting then: a stream keeps its order, and the
second layer of the first part, which waits for the other device, stands before the first layer of
the second part. In turns it stands behind it, as with interleaved stages.
"""

from collections.abc import Sequence

from ggsched.errors import GraphError
from ggsched.ir.join import Joined
from ggsched.ir.schedule import apply_schedule, rounds
from ggsched.plan.bundle import Plan


def interleave(joined: Joined, plan: Plan) -> Joined | None:
    """Return the joined graph with as many parts in turns as there are devices.

    Each device takes up one stage of these parts, then its next stage of them; so as many slots of
    what is handed over are in use.

    None where no part comes back to a device that it has left, where the parts are spread in
    different ways, or where the order would change what is computed.

    Args:
        joined: The parts.
        plan: Its plan, part after part, which says where the nodes run.
    """
    stage_of, devices = _stages(joined, plan)
    if len(set(devices)) == len(devices):
        return None
    stages_of = [
        [s for s, d in enumerate(devices) if d == device] for device in sorted(set(devices))
    ]
    schedule = rounds(len(joined.firsts), stages_of, len(stages_of))
    try:
        return apply_schedule(joined, stage_of, schedule)
    except GraphError:  # a state that a later stage writes and another part's earlier one reads
        return None


def _stages(joined: Joined, plan: Plan) -> tuple[list[int], Sequence[int]]:
    """Return the stage of each node, counted within its part, and the device of each stage.

    No stages where two parts disagree.
    """
    seen: list[list[int]] = [[] for _ in joined.firsts]
    stage_of: list[int] = []
    for choice, part in zip(plan.placement.choices, joined.part_of, strict=True):
        own = seen[part]
        if not own or own[-1] != choice.device:
            own.append(choice.device)
        stage_of.append(len(own) - 1)
    longest = max(seen, key=len, default=[])
    agree = all(longest[: len(own)] == own for own in seen)
    return stage_of, longest if agree else ()
