"""Hazards: does each wait name a hazard that is one, and that the wait discharges?

A wait names two accesses that it keeps in order. A hazard of the host with itself states none.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from ggsched.ids import show
from ggsched.plan.bundle import Plan
from ggsched.plan.command import Command
from ggsched.plan.effects import Effects, Hazard
from ggsched.plan.memory import Region
from ggsched.sanitize.report import Finding

_HOST_COMMAND: Final = -1


def find_bad_hazards(plan: Plan, all_effects: Sequence[Effects]) -> list[Finding]:
    """Return waits whose hazard is none, or is not in order because of them."""
    walk = _Walk(plan, all_effects)
    findings = []
    for command, effects in zip(plan.commands, all_effects, strict=True):
        if effects.hazard is not None:
            for what in walk.problems(command, effects, effects.hazard):
                what = f"{show('command', command.id)} {what}"
                findings.append(Finding("hazard", what, command.id, "name what it keeps in order"))
                break
    return findings


class _Walk:
    """What the waits are compared with."""

    def __init__(self, plan: Plan, effects: Sequence[Effects]) -> None:
        self._plan = plan
        self._effects = effects
        self._records: dict[int, int] = {}
        regions = plan.memory.regions
        self._host_writes = [regions[s.value] for s in plan.inputs]
        self._host_reads = [regions[s.value] for s in plan.outputs]
        for i, one in enumerate(effects):
            for event in one.records:
                self._records.setdefault(event, i)
            if one.host_reads:
                self._host_reads += one.host_reads
            if one.reads_at_enqueue:  # CPY-4
                device = plan.streams.streams[one.streams[0]].device
                self._host_reads += one.reads if plan.devices[device].snapshots_uploads else ()

    def problems(self, c: Command, effects: Effects, hazard: Hazard) -> Iterator[str]:
        """Yield what is wrong with the hazard of a wait."""
        earlier, later, count = hazard.earlier, hazard.later, len(self._effects)
        in_range = -1 <= earlier < count and -1 <= later < count
        if not in_range or not 0 <= hazard.start < hazard.end:
            yield f"names {hazard}, which is not a hazard"
            return
        for event in effects.waits:
            record = self._records.get(event)
            if record is not None and effects.blocks_host:
                on = self._effects[record].streams[0]
                if on not in effects.streams:
                    yield f"waits for an event of {show('stream', on)}, but names another stream"
        if earlier == later == _HOST_COMMAND:
            return
        sides = ((earlier, hazard.kind != "WAR"), (later, hazard.kind != "RAW"))
        if not all(self._touches(i, hazard, writes) for i, writes in sides):
            yield f"names {hazard.text}, but these do not touch the bytes in that way"
        elif not self._is_between(c, effects, hazard):
            yield f"does not stand between the commands of {hazard.text}"
        elif not effects.blocks_host:
            if later == _HOST_COMMAND:
                yield "does not hold back the host"
            elif self._effects[later].streams[0] not in effects.streams:
                yield f"does not hold back {show('command', later)}, which is on another stream"

    def _is_between(self, c: Command, effects: Effects, hazard: Hazard) -> bool:
        """Whether the wait is enqueued after the earlier and before the later command.

        Across runs it may stand at the end of the one or at the beginning of the other; an event
        must have been recorded after the earlier command in the same run.
        """
        covered = max([self._records.get(e, -1) for e in effects.waits], default=c.id)
        if not hazard.next_run:
            host_reads = hazard.kind == "RAW"  # the host writes first of all and reads last
            is_last = hazard.later == _HOST_COMMAND and host_reads
            return hazard.earlier < covered <= c.id < (c.id + 1 if is_last else hazard.later)
        return hazard.earlier < covered or (hazard.later > c.id and covered == c.id)

    def _touches(self, command: int, hazard: Hazard, writes: bool) -> bool:
        """Whether a command, or the host, touches bytes of the hazard in that way."""
        regions: list[Region] | tuple[Region, ...]
        if command == _HOST_COMMAND:
            regions = self._host_writes if writes else self._host_reads
        else:
            effects = self._effects[command]
            regions = effects.writes if writes else (*effects.reads, *effects.host_reads)
        for arena, offset, nbytes in regions:
            is_near = offset < hazard.end and hazard.start < offset + nbytes
            if is_near and arena == hazard.arena:
                return True
        return False
