"""Mutants whose commands do not compute the graph of their plan.

Each leaves ids, regions and synchronisation as they are, so that nothing but the comparison of the
commands with the artifacts, with the ops and with the graph can find it.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Final

from msgspec.structs import replace

from ggsched.ids import show
from ggsched.plan.bundle import Plan
from ggsched.plan.command import Barrier, Command, Launch
from ggsched.plan.effects import Hazard, Step
from ggsched.plan.memory import Arena, Region
from ggsched_testing.plan_mutants import Mutants, merged, relocated, with_commands


def drop_launches(plan: Plan) -> Mutants:
    """Leave out a launch."""
    for launch in _launches(plan):
        kept = [c for c in plan.commands if c is not launch]
        yield f"drop {show('command', launch.id)}", with_commands(plan, kept)


def double_launches(plan: Plan) -> Mutants:
    """Launch the same nodes twice."""
    for launch in _launches(plan):
        commands: list[Command] = list(plan.commands)
        commands.insert(launch.id, launch)
        yield f"double {show('command', launch.id)}", _numbered(plan, commands)


def drop_steps(plan: Plan) -> Mutants:
    """Leave out one step of a launch."""
    for launch in _launches(plan):
        for k in range(len(launch.steps)):
            steps = (*launch.steps[:k], *launch.steps[k + 1 :])
            if steps:
                yield _changed(plan, launch, f"lacks step {k}", steps)


def double_steps(plan: Plan) -> Mutants:
    """Run one step of a launch twice; an op that works in place computes something else."""
    for launch in _launches(plan):
        for k, step in enumerate(launch.steps):
            steps = (*launch.steps[:k], step, *launch.steps[k:])
            yield _changed(plan, launch, f"runs step {k} twice", steps)


def move_steps(plan: Plan) -> Mutants:
    """Let a step be part of the next launch."""
    launches = list(_launches(plan))
    for first, second in pairwise(launches):
        if len(first.steps) > 1:
            _, without = _changed(plan, first, "", first.steps[:-1])
            what = f"moves a step to {show('command', second.id)}"
            yield _changed(without, second, what, (first.steps[-1], *second.steps))


def change_modes(plan: Plan) -> Mutants:
    """Declare another access mode for an operand."""
    for launch, k, step in _steps(plan):
        for j, mode in enumerate(step.modes):
            for other in {"r": "-", "w": "p", "p": "w", "-": "r"}[mode]:
                modes = step.modes[:j] + other + step.modes[j + 1 :]
                what = f"{show('node', step.node)} operand {j} is {other}"
                yield _step(plan, launch, k, step._replace(modes=modes), what)


def shrink_operands(plan: Plan) -> Mutants:
    """Let a node touch half of an operand."""
    for launch, k, step in _steps(plan):
        for j, region in enumerate(step.operands):
            if region.nbytes > 1:
                half = region._replace(nbytes=region.nbytes // 2)
                what = f"{show('node', step.node)} touches half of operand {j}"
                yield _step(plan, launch, k, _with(step, j, half), what)


def shift_views(plan: Plan) -> Mutants:
    """Put a view at another place of its value."""
    for launch, k, step in _steps(plan):
        for j, value in enumerate(plan.splits.bindings[step.node]):
            home, region = plan.memory.regions[value], step.operands[j]
            if 0 < region.nbytes < home.nbytes:
                at = home.offset if region.offset > home.offset else home.end - region.nbytes
                if at != region.offset:
                    what = f"{show('node', step.node)} operand {j} at {at}"
                    yield _step(plan, launch, k, _with(step, j, region._replace(offset=at)), what)


def overwrite_operands(plan: Plan) -> Mutants:
    """Put a result a little off the operand that it takes over, or on one that it must not."""
    for _, _, step in _steps(plan):
        bound = plan.splits.bindings[step.node]
        result = plan.memory.regions[bound[-1]]
        for value in bound[:-1]:
            near = plan.memory.regions[value]
            room = plan.memory.arenas[near.arena].nbytes
            alignment = max(plan.memory.arenas[near.arena].alignment, 1)
            at = near.offset + alignment
            fits = near.nbytes > alignment and at + result.nbytes <= room
            if value != bound[-1] and near.arena == result.arena and fits:
                what = f"{show('value', bound[-1])} on part of {show('value', value)}"
                yield what, relocated(plan, bound[-1], at)


def misalign_values(plan: Plan) -> Mutants:
    """Put a value off its alignment."""
    for value, region in enumerate(plan.memory.regions):
        arena = plan.memory.arenas[region.arena]
        if arena.kind == "compute" and arena.alignment > 1 and region.end < arena.nbytes:
            yield f"{show('value', value)} one byte on", relocated(plan, value, region.offset + 1)


def exchange_inputs(plan: Plan) -> Mutants:
    """Exchange the values of two inputs of one length."""
    yield from _exchanged(plan, "inputs")


def exchange_outputs(plan: Plan) -> Mutants:
    """Exchange the values of two outputs of one length, which hold other bytes."""
    yield from _exchanged(plan, "outputs")


def add_barriers(plan: Plan) -> Mutants:
    """Put a barrier on a stream of a device that has none."""
    for stream in plan.streams.streams:
        if plan.devices[stream.device].copy_order != "barrier":
            barrier = Barrier(0, stream.id, Hazard("RAW", 0, 0, 1, -1, -1))
            what = f"a barrier on {show('stream', stream.id)}"
            yield what, with_commands(plan, [*plan.commands, replace(barrier, id=-1)])


def resize_tensors(plan: Plan) -> Mutants:
    """Give a weight or state more memory than it has bytes."""
    for arena in plan.memory.arenas:
        if arena.kind in ("weight", "state"):
            changed = replace(arena, nbytes=arena.nbytes + arena.alignment)
            yield _with_arena(plan, changed, "is too long")


def move_arenas(plan: Plan) -> Mutants:
    """Let host memory be on a device, and memory of a device on the host."""
    for arena in plan.memory.arenas:
        changed = replace(arena, device=0 if arena.device < 0 else -1)
        yield _with_arena(plan, changed, f"is on device {changed.device}")


def _with_arena(plan: Plan, arena: Arena, what: str) -> tuple[str, Plan]:
    arenas = tuple(arena if a.id == arena.id else a for a in plan.memory.arenas)
    memory = replace(plan.memory, arenas=arenas)
    return f"{show('arena', arena.id)} {what}", replace(plan, memory=memory)


GRAPH_MUTATIONS: Final[Mapping[str, Callable[[Plan], Mutants]]] = {
    f.__name__: f
    for f in (
        drop_launches,
        double_launches,
        drop_steps,
        double_steps,
        move_steps,
        change_modes,
        shrink_operands,
        shift_views,
        overwrite_operands,
        misalign_values,
        exchange_inputs,
        exchange_outputs,
        add_barriers,
        resize_tensors,
        move_arenas,
    )
}


def _launches(plan: Plan) -> Iterator[Launch]:
    return (c for c in plan.commands if isinstance(c, Launch))


def _steps(plan: Plan) -> Iterator[tuple[Launch, int, Step]]:
    for launch in _launches(plan):
        for k, step in enumerate(launch.steps):
            yield launch, k, step


def _with(step: Step, j: int, region: Region) -> Step:
    return step._replace(operands=(*step.operands[:j], region, *step.operands[j + 1 :]))


def _step(plan: Plan, launch: Launch, k: int, step: Step, what: str) -> tuple[str, Plan]:
    return _changed(plan, launch, what, (*launch.steps[:k], step, *launch.steps[k + 1 :]))


def _changed(plan: Plan, launch: Launch, what: str, steps: tuple[Step, ...]) -> tuple[str, Plan]:
    """Return the plan with other steps in a launch, which declares what they touch."""
    touched = [(r, m) for s in steps for r, m in zip(s.operands, s.modes, strict=True)]
    changed = replace(
        launch,
        steps=steps,
        reads=merged([r for r, m in touched if m == "r"]),
        writes=merged([r for r, m in touched if m in "wp"]),
    )
    commands = [changed if c.id == launch.id else c for c in plan.commands]
    return f"{show('command', launch.id)} {what}", replace(plan, commands=tuple(commands))


def _numbered(plan: Plan, commands: list[Command]) -> Plan:
    """Number commands of which one stands there twice; hazards mean the first."""
    number: dict[int, int] = {}
    for i, command in enumerate(commands):
        number.setdefault(command.id, i)
    out: list[Command] = []
    for i, command in enumerate(commands):
        hazard = command.effects.hazard
        if hazard is None:
            out.append(replace(command, id=i))
            continue
        earlier, later = number.get(hazard.earlier, -1), number.get(hazard.later, -1)
        moved = hazard._replace(earlier=earlier, later=later)
        out.append(replace(command, id=i, hazard=moved))
    return replace(plan, commands=tuple(out))


def _exchanged(plan: Plan, which: str) -> Mutants:
    slots = list(getattr(plan, which))
    for i, first in enumerate(slots):
        for j in range(i + 1, len(slots)):
            second = slots[j]
            sizes = {plan.memory.regions[s.value].nbytes for s in (first, second)}
            values = [plan.splits.values[s.value] for s in (first, second)]
            held = {(v.storage, v.start, v.end) for v in values}
            if len(held) == 2 and len(sizes) == 1:
                mixed = list(slots)
                mixed[i] = replace(first, value=second.value)
                mixed[j] = replace(second, value=first.value)
                what = f"exchange {which} {first.name!r} and {second.name!r}"
                yield what, replace(plan, **{which: tuple(mixed)})
