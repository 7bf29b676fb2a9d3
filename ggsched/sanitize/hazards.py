"""Hazards: does each wait name a hazard that is one, and that the wait discharges?

A wait names two accesses that it keeps in order. A hazard of the host with itself states none.
"""

from collections.abc import Sequence
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
        hazard = effects.hazard
        if hazard is not None and (what := walk.problem(command, effects, hazard)):
            what = f"{show('command', command.id)} {what}"
            findings.append(Finding("hazard", what, command.id, "name what it keeps in order"))
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

    def problem(self, c: Command, effects: Effects, hazard: Hazard) -> str:
        """Return what is wrong with the hazard of a wait; empty if nothing is."""
        kind, _, start, end, earlier, later, _ = hazard
        count = len(self._effects)
        if not (-1 <= earlier < count and -1 <= later < count and 0 <= start < end):
            return f"names {hazard}, which is not a hazard"
        for event in effects.waits if effects.blocks_host else ():
            record = self._records.get(event)
            if record is not None and self._effects[record].streams[0] not in effects.streams:
                on = show("stream", self._effects[record].streams[0])
                return f"waits for an event of {on}, but names another stream"
        if earlier == later == _HOST_COMMAND:
            return ""
        touches = self._touches
        if not (touches(earlier, hazard, kind != "WAR") and touches(later, hazard, kind != "RAW")):
            return f"names {hazard.text}, but these do not touch the bytes in that way"
        if not self._is_between(c, effects, hazard):
            return f"does not stand between the commands of {hazard.text}"
        if effects.blocks_host:
            return ""
        if later == _HOST_COMMAND:
            return "does not hold back the host"
        if self._effects[later].streams[0] not in effects.streams:
            return f"does not hold back {show('command', later)}, which is on another stream"
        return ""

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
            regions = effects.writes if writes else effects.reads + effects.host_reads
        within, start, end = hazard.arena, hazard.start, hazard.end
        for arena, offset, nbytes in regions:
            if arena == within and offset < end and start < offset + nbytes:
                return True
        return False
