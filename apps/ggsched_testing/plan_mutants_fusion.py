"""Mutants of plans with groups: one defect in what runs as one, see ``mutants``."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import msgspec

from ggsched.ids import show
from ggsched.plan.bundle import Plan
from ggsched.plan.command import Launch
from ggsched.plan.effects import Step
from ggsched.plan.memory import Region
from ggsched_testing.plan_mutants import Mutants, relocated, with_commands


def cut_groups(plan: Plan) -> Mutants:
    """Launch the last node of a group by itself."""
    last = {f.nodes[-1]: f for f in plan.fusions}
    for command in plan.commands:
        if not isinstance(command, Launch):
            continue
        for at, step in enumerate(command.steps):
            if step.node in last and at:
                parts = [
                    msgspec.structs.replace(command, steps=steps)
                    for steps in (command.steps[:at], command.steps[at:])
                ]
                kept = [*plan.commands[: command.id], *parts, *plan.commands[command.id + 1 :]]
                yield f"cut before {show('node', step.node)}", with_commands(plan, kept)


def turn_groups(plan: Plan) -> Mutants:
    """Name the nodes of a group in another order than that in which they run."""
    for i, fusion in enumerate(plan.fusions):
        turned = msgspec.structs.replace(fusion, nodes=fusion.nodes[::-1])
        fusions = (*plan.fusions[:i], turned, *plan.fusions[i + 1 :])
        yield f"turn {fusion.pattern}", msgspec.structs.replace(plan, fusions=fusions)


def undeclare_groups(plan: Plan) -> Mutants:
    """Let devices take back what they said of patterns."""
    if plan.fusions:
        devices = tuple(replace(d, fusions=frozenset()) for d in plan.devices)
        yield "no device fuses", msgspec.structs.replace(plan, devices=devices)


def overwrite_in_groups(plan: Plan) -> Mutants:
    """Put a result of a group on what another node of the group reads."""
    launches = (c for c in plan.commands if isinstance(c, Launch))
    steps = {step.node: step for launch in launches for step in launch.steps}
    for fusion in plan.fusions:
        for value, target in _pairs(plan, [steps[n] for n in fusion.nodes]):
            moved = plan.memory.regions[value]
            arena = plan.memory.arenas[moved.arena]
            offset = min(target.offset, arena.nbytes - moved.nbytes)
            if arena.kind == "compute" and moved.nbytes and moved.arena == target.arena:
                what = f"{show('value', value)} of {fusion.pattern} on {target}"
                yield what, relocated(plan, value, offset)


def _pairs(plan: Plan, steps: Sequence[Step]) -> Iterator[tuple[int, Region]]:
    """Yield (result, what an earlier node reads from outside) of a group."""
    bindings = plan.splits.bindings
    inside = {bindings[s.node][-1] for s in steps[:-1]}
    for step in steps:
        value = bindings[step.node][-1]
        for earlier in steps[:-1]:
            bound = bindings[earlier.node]
            for operand, region, mode in zip(bound, earlier.operands, earlier.modes, strict=True):
                if mode == "r" and region.nbytes and operand not in {value, *inside}:
                    yield value, region


GROUP_MUTATIONS: Final[Mapping[str, Callable[[Plan], Mutants]]] = {
    f.__name__: f for f in (cut_groups, turn_groups, undeclare_groups, overwrite_in_groups)
}
