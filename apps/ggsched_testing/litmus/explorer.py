"""All interleavings of a litmus program, by the explorer.

What is observed of an execution is in which order steps came that touch the same bytes and of
which one writes, and the first line whose reads are wrong, which follows from that. Two executions
in which it differs are a race: two steps with nothing between them that orders them, seen in
either order. Where only one observation is possible, any execution shows whether reads find what
they need.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from ggsched_testing.explore import Exploration, Observation, explore
from ggsched_testing.litmus.program import Kind, LitmusBlock, Op, Variant
from ggsched_testing.litmus.steps import Machine, Script, script_of
from ggsched_testing.schedule_policy import Option, SchedulePolicy

LIMIT = 2000
"""Executions at most. A program without races needs one, a race shows in the first few."""

SHRINKS = 64
"""Operations of the largest program for which the second of two orders is made simpler."""

_ORDER, _WRONG, _ILLEGAL = "order", "wrong", "illegal"


@dataclass(frozen=True, slots=True)
class Explored:
    """What the interleavings show.

    Attributes:
        verdict: The gravest of what was seen, or None if there are too many to look at.
        what: In words.
        schedules: One order that shows it, or two that differ: the steps as they happened.
        executions: How many executions it took.
    """

    verdict: Kind | None
    what: str
    schedules: tuple[tuple[str, ...], ...]
    executions: int


def explore_block(block: LitmusBlock, variant: Variant, *, limit: int = LIMIT) -> Explored:
    """Run the interleavings of a variant."""
    script = script_of(block, variant)
    shrinks = len(script.ops) <= SHRINKS
    found = explore(partial(_execute, script), limit=limit, stop_at=2, shrinks=shrinks)
    first, others = found.outcomes[0], found.outcomes[1:]
    parts = dict(first.observation.parts)
    stories = tuple(outcome.steps for outcome in found.outcomes)
    if parts[_ILLEGAL]:
        what = f"{parts[_ILLEGAL]}, in every order"
        return Explored("capture", what, stories[:1], found.schedules)
    if others:
        return Explored("race", _race(script.ops, found), stories, found.schedules)
    if not found.is_complete:
        what = f"more than {limit} executions and nothing found"
        return Explored(None, what, (), found.schedules)
    if parts[_WRONG]:
        return Explored("value", f"{parts[_WRONG]}, in every order", stories, found.schedules)
    return Explored("clean", "", (), found.schedules)


def _execute(script: Script, policy: SchedulePolicy) -> Observation:
    """Run the program once, in the order that the policy wants."""
    program = Machine(script)
    moments: dict[int, int] = {}
    wrong: dict[int, str] = {}
    while program.enabled:
        options = [_option(script, i, moments) for i in program.enabled]
        i = program.enabled[policy.choose(options)]
        moments[i] = len(moments) + 1
        for name, start, end, writes in script.spans[i]:
            policy.touch(name, start, end, writes=writes)
        problem = program.run(i)
        if problem:
            wrong[i] = f"{_named(script.ops[i])}: {problem}"
    order = (f"{i}<{j}" if moments[i] < moments[j] else f"{j}<{i}" for i, j in script.clashes)
    illegal = [f"{_named(script.ops[i])}: {why}" for i, why in script.illegal.items()]
    return Observation.of(
        {
            _ORDER: " ".join(order),
            _WRONG: wrong[min(wrong)] if wrong else "",
            _ILLEGAL: illegal[0] if illegal else "",
        }
    )


def _option(script: Script, i: int, moments: dict[int, int]) -> Option:
    causes = tuple(sorted(moments[k] for k in script.needs[i]))
    return Option(script.ops[i].actor, _named(script.ops[i]), causes)


def _race(ops: Sequence[Op], found: Exploration) -> str:
    """Name the first pair that comes in either order."""
    orders = [dict(o.observation.parts)[_ORDER].split() for o in found.outcomes]
    pair = min(set(orders[0]) - set(orders[1]), key=lambda p: [int(i) for i in p.split("<")][::-1])
    i, j = (ops[int(k)] for k in pair.split("<"))
    return f"{_named(i)} and {_named(j)} run in either order"


def _named(op: Op) -> str:
    return f"line {op.line} '{op.text}'"
