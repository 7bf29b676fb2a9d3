"""Groups that run as one: is each launched as one, and may its accesses happen in any order?

A device may read the operands of a group and write its results at any time while the group runs,
and leave what any node but the last computes undefined (LCH-6). So what the group writes must lie
apart from what it reads, but for what its last node reads itself, and apart from each other.
"""

from collections.abc import Iterator, Sequence

from ggsched.ids import show
from ggsched.ir.intervals import overlap
from ggsched.plan.bundle import Plan
from ggsched.plan.command import Command
from ggsched.plan.effects import Effects, Step
from ggsched.plan.fusions import Fusion
from ggsched.plan.memory import Region
from ggsched.sanitize.report import Finding


def find_bad_groups(plan: Plan, effects: Sequence[Effects]) -> list[Finding]:
    """Return groups that are cut, not declared, or write what they may still read."""
    if not plan.fusions:
        return []
    place = {
        step.node: (command, at)
        for command in plan.commands
        for at, step in enumerate(effects[command.id].steps)
        if step.node >= 0
    }
    findings: list[Finding] = []
    for fusion in plan.fusions:
        findings += _bad_group(plan, fusion, place)
    return findings


def _bad_group(
    plan: Plan, fusion: Fusion, place: dict[int, tuple[Command, int]]
) -> Iterator[Finding]:
    name = f"group {fusion.pattern} of {', '.join(show('node', n) for n in fusion.nodes)}"
    at = [place.get(n) for n in fusion.nodes]
    known = [p for p in at if p is not None]
    if len(known) < len(at) or not known:
        yield Finding("fusion", f"{name} is not launched", -1, "launch all of it")
        return
    command, first = known[0]
    if any(p[0] is not command or p[1] != first + i for i, p in enumerate(known)):
        fix = "launch its nodes one after another in one command"
        yield Finding("fusion", f"{name} is not launched as one", command.id, fix)
        return
    facts = plan.devices[plan.streams.streams[command.stream].device]
    if fusion.pattern not in facts.fusions:
        what = f"{name} runs on {facts.name}, which does not declare the pattern"
        yield Finding("fusion", what, command.id, "launch its nodes one by one")
    steps = command.effects.steps[first : first + len(known)]
    for region, why in _clashes(plan, steps):
        what = f"{name} writes {region.text}, {why}"
        fix = "keep them apart as long as the group runs"
        yield Finding("fusion", what, command.id, fix, *region.span)


def _clashes(plan: Plan, steps: Sequence[Step]) -> Iterator[tuple[Region, str]]:
    """Yield what is written where the group may still read, and why that is wrong."""
    last = len(steps) - 1
    inside = {plan.splits.bindings[s.node][-1] for s in steps[:-1]}
    reads: list[tuple[int, Region]] = []
    for i, step in enumerate(steps):
        bound = plan.splits.bindings[step.node]
        for region, mode, value in zip(step.operands, step.modes, bound, strict=True):
            if mode == "r" and region.nbytes and value not in inside:
                reads.append((i, region))
    for i, step in enumerate(steps):
        for written, mode in zip(step.operands, step.modes, strict=True):
            if mode not in "wp":
                continue
            for j, read in reads:
                if _clash(written, read) and not (i == j == last):
                    yield written, f"which its {show('node', steps[j].node)} reads"
            for j in range(i):
                earlier = steps[j].operands[-1]
                if _clash(written, earlier) and not (i == last and written == earlier):
                    yield written, f"where its {show('node', steps[j].node)} writes"


def _clash(a: Region, b: Region) -> bool:
    return a.arena == b.arena and overlap(a, b)
