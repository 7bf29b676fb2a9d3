"""Transfers between host slots and memory of a device that is host memory too.

Where the host and a device see the same bytes (BUF-4), the host can write an input where the device
reads it, and read an output where the device has left it. Access of the host is ordered as with the
transfer: it writes before anything of the run is enqueued, and reads after it has waited for all.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ggsched.backend.base_buffer import BaseBuffer
from ggsched.ir.intervals import overlap
from ggsched.plan.bundle import Plan
from ggsched.plan.command import Command, Download, HostSync, Upload
from ggsched.plan.memory import Region
from ggsched.run.following import first_at_end
from ggsched.run.resources import Resources


def needless_transfers(plan: Plan, resources: Resources) -> Mapping[int, tuple[Region, Region]]:
    """Return the transfers that need not be made: by number, the host's and the device's region.

    Only of plans of one stream, at whose end the host waits for all of it, so that nothing is under
    way when the next run begins. The region of the device is the plan's own, in front of an upload
    nothing of the run has touched it, behind a download nothing writes there, and the host slot is
    an input or an output and nothing else.

    Args:
        resources: What it is bound to.
    """
    if len(plan.streams.streams) != 1 or not _ends_in_a_wait(plan):
        return {}
    regions = plan.memory.regions
    inputs = {regions[slot.value] for slot in plan.inputs}
    outputs = {regions[slot.value] for slot in plan.outputs}
    uses = _uses(plan.commands)
    found: dict[int, tuple[Region, Region]] = {}
    for n, c in enumerate(plan.commands):
        if not isinstance(c, Upload | Download):
            continue
        is_upload = isinstance(c, Upload)
        host, own = (c.src, c.dst) if is_upload else (c.dst, c.src)
        is_slot = (host in inputs) != (host in outputs)
        if not is_slot or not _is_own_host_memory(resources, own):
            continue
        is_in_way = any(
            u.number < n if is_upload else u.number > n and u.writes
            for u in uses[own.arena]
            if overlap(own, u.region)
        )
        if not is_in_way and sum(overlap(host, u.region) for u in uses[host.arena]) == 1:
            found[n] = host, own
    return found


class _Use(NamedTuple):
    """That a command touches a region."""

    number: int
    region: Region
    writes: bool


def _uses(commands: Sequence[Command]) -> Mapping[int, list[_Use]]:
    """Return what is touched, by arena, in the order of the commands."""
    found: dict[int, list[_Use]] = defaultdict(list)
    for n, c in enumerate(commands):
        effects = c.effects
        for region in (*effects.reads, *effects.host_reads):
            found[region.arena].append(_Use(n, region, writes=False))
        for region in (*effects.writes, *effects.host_writes):
            found[region.arena].append(_Use(n, region, writes=True))
    return found


def _ends_in_a_wait(plan: Plan) -> bool:
    """Whether the host waits at the end for all that the run enqueues, and nothing is left over."""
    commands = plan.commands
    last = next((c for c in reversed(commands) if isinstance(c, HostSync)), None)
    if last is None or first_at_end(plan) < len(commands):
        return False
    covered = last.id if last.event is None else -1
    for c in commands:
        if last.event in c.effects.records:
            covered = c.id
    return not any(c.effects.steps for c in commands[covered + 1 :])


def _is_own_host_memory(resources: Resources, region: Region) -> bool:
    """Whether a region is the plan's, in memory that the host may use.

    Layers that watch accesses have buffers of their own, and would not see those of the host.
    """
    buffer = resources.buffers.get(region.arena)
    is_own = resources.plan.memory.arenas[region.arena].kind == "compute"
    return is_own and type(buffer) is BaseBuffer and buffer.device.facts.is_host
