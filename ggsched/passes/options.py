"""Options: what a caller decides about a plan besides where things are."""

from dataclasses import dataclass, field
from typing import Final

from ggsched.config import Settings, Streams
from ggsched.errors import UsageError
from ggsched.topology.model import Topology

AUTO_LIMIT: Final = 4
"""Streams per device that ``auto`` considers at most; a device's rates may say fewer."""


@dataclass(frozen=True, slots=True)
class StreamPolicy:
    """How many streams a device may use.

    Attributes:
        limit: Streams per device at most. The gate considers no more than run at full speed
            beside each other, and none on a device that runs commands while they are enqueued.
        is_forced: Use them wherever nodes are independent, whatever the cost model says.
        has_copy_stream: Let transfers run beside launches, on a stream of their own, where a
            device has events and a stream to spare.
    """

    limit: int = 1
    is_forced: bool = False
    has_copy_stream: bool = False


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What decides between plans that are all correct. Hashable, a part of a plan's key.

    Attributes:
        streams: How many streams a device may use.
        memory_budget: Most bytes of the compute arena, as (device index, bytes), for which waits
            may be added; devices that are not named have no limit but their memory.
        packing_effort: How long to look for a tighter packing, see ``packing.pack``.
        fuse: Whether devices that can compile groups of nodes as one do so.
    """

    streams: StreamPolicy = field(default_factory=StreamPolicy)
    memory_budget: tuple[tuple[int, int], ...] = ()
    packing_effort: int = 0
    fuse: bool = True


def plan_options(settings: Settings, topology: Topology) -> PlanOptions:
    """Return what a plan is made with; ``measure`` begins with what ``auto`` does.

    Raises:
        UsageError: the memory budget names a device that is not there.
    """
    return PlanOptions(
        stream_policy(settings.streams),
        _budget(settings, topology),
        settings.packing_effort,
        settings.fuse,
    )


def stream_policy(streams: Streams) -> StreamPolicy:
    """Return the policy that a setting stands for."""
    if isinstance(streams, int):
        return StreamPolicy(streams, is_forced=streams > 1)
    return StreamPolicy(AUTO_LIMIT)


def _budget(settings: Settings, topology: Topology) -> tuple[tuple[int, int], ...]:
    """Return the budget by device index; what names a device wins over what names none."""
    names = [d.name for d in topology.devices]
    budget: dict[int, int] = {}
    for name, nbytes in sorted(settings.memory_budget):  # the empty name comes first
        if name and name not in names:
            raise UsageError(
                f"the memory budget names {name!r}", hint=f"devices: {', '.join(names)}"
            )
        for device in [names.index(name)] if name else range(len(names)):
            budget[device] = nbytes
    return tuple(sorted(budget.items()))
