"""Chosen options: what settings ask of a plan, on the machine at hand."""

from typing import Final

from ggsched.config import Settings, Streams
from ggsched.errors import UsageError
from ggsched.passes.options import PlanOptions, StreamPolicy
from ggsched.topology.model import Topology

AUTO_LIMIT: Final = 4
"""Streams per device that ``auto`` considers at most; a device's rates may say fewer."""


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
