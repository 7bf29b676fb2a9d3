"""The checker and the explorer agree, on plans that were planned and on plans that were broken.

*Clean* implies that every order of a plan's steps gives the bytes that its nodes give one after
another. *Race* implies two orders that differ in what is observed, or races that are shown to be
benign: either all orders were executed and gave the same, or nothing that can be observed depends
on the bytes that race (``taint``). Observed are the outputs of each run and the states at the end;
each run has inputs of its own, and states begin with numbers. The checker knows no values, so two
orders have to differ for some values only.
"""

from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from ggsched.errors import UsageError
from ggsched.ir.tensor import Role
from ggsched.plan.command import Record, Wait
from ggsched.plan.text import plan_text
from ggsched.sanitize import check_plan
from ggsched_testing.explore import PlanProgram, explore
from ggsched_testing.generators.strategies import graphs, seeds, values_for
from ggsched_testing.generators.topologies import constraints, topologies
from ggsched_testing.generators.values import leaf_values
from ggsched_testing.plan_mutants import ALL_MUTATIONS, with_commands
from tests.mutants.plan_score import record_later
from tests.properties.taint import races_are_unobservable
from tests.support.verified_plans import verified_plan

RUNS = 2
ORDERS = (40, 40, 40, 400, 4000)


class Case:
    """A plan and all that is needed to run it."""

    def __init__(self, what, plan, drawn, topology, seed):
        self.what, self.plan, self.drawn = what, plan, drawn
        self.topology, self.seed = topology, seed

    def program(self, other=0):
        """Return a program; another number gives it other values."""
        drawn, seed = self.drawn, self.seed + 1000 * other
        values = [values_for(drawn, seed + run) for run in range(RUNS)]
        rng = np.random.default_rng(seed)
        roots = drawn.graph.roots(Role.STATE)
        states = {t.name: leaf_values(t, drawn.rules[t.name], rng) for t in roots}
        return PlanProgram(drawn.graph, self.plan, values, topology=self.topology, states=states)

    def __repr__(self):
        return f"{self.what}, seed {self.seed}\n{plan_text(self.plan, verbose=True)}"


def wait_earlier(plan):
    """Move a wait before the command of its stream that comes before it: it holds more."""
    for wait in plan.commands:
        if isinstance(wait, Wait):
            before = [c for c in plan.commands[: wait.id] if c.stream == wait.stream]
            record = next(
                c for c in plan.commands if isinstance(c, Record) and c.event == wait.event
            )
            if before and before[-1].id > record.id:
                yield f"wait c{wait.id} earlier", _moved(plan, wait.id, before[-1].id)


HARMLESS = {"record_later": record_later, "wait_earlier": wait_earlier}


def _moved(plan, origin, target):
    commands = list(plan.commands)
    commands.insert(target, commands.pop(origin))
    return with_commands(plan, commands)


@st.composite
def cases(draw):
    """Draw a plan, and sometimes break it once or twice; half of them cross at every node."""
    crosses = draw(st.booleans())
    drawn = draw(graphs(max_nodes=6, min_nodes=4 if crosses else 1))
    events = draw(st.sampled_from((None, True))) if crosses else None
    topology = draw(topologies(min_devices=1 + crosses, max_devices=3, events=events))
    wanted = draw(constraints(drawn.graph, topology, pin_all=crosses, clears=True))
    plan = verified_plan(drawn.graph, topology, wanted)
    seed = draw(seeds())
    what = "planned"
    for _ in range(draw(st.sampled_from((1, 0, 1, 2)))):
        pick = Random(draw(st.integers(0, 2**16)))
        mutants = {n: list(f(plan)) for n, f in {**ALL_MUTATIONS, **HARMLESS}.items()}
        names = [name for name, some in mutants.items() if some]
        if names:
            name = pick.choice(names)
            how, plan = pick.choice(mutants[name])
            what = f"{what}, {name}: {how}"
    return Case(what, plan, drawn, topology, seed)


def check_case(case):
    """Compare the two verdicts; return how they agree."""
    kinds = {finding.kind for finding in check_plan(case.plan, runs=RUNS).findings}
    kinds -= {"hazard"}  # a wait that names the wrong hazard waits all the same
    if "event" in kinds:
        try:
            case.program()
        except UsageError:
            return "misuse is refused"
    if not kinds:
        return check_clean(case)
    return check_race(case) if "race" in kinds else check_other(case)


def check_clean(case):
    program = case.program()
    found = explore(program, limit=ORDERS[-2])
    assert found.is_deterministic, f"{found.to_text()}{case!r}"
    assert found.is_complete, repr(case)
    seen, expected = found.outcomes[0].observation, program.expected()
    assert seen == expected, f"{seen.differences(expected)}\n{case!r}"
    assert not program.world.violations
    return "clean"


def check_race(case):
    """Look for two orders that differ, with other values if need be, for bytes can be the same."""
    for number, limit in enumerate(ORDERS):
        program = case.program(number)
        found = explore(program, limit=limit, samples=16, seed=case.seed, stop_at=2, shrinks=False)
        if not found.is_deterministic:
            return "race: two orders differ"
        if found.is_complete:
            return "race: benign, all orders give the same"
        if races_are_unobservable(case.plan, RUNS):
            return "race: benign, nobody can see it"
    raise AssertionError(f"no two of {ORDERS[-1]} orders differ\n{case!r}")


def check_other(case):
    """A defect without a race: every order gives the same, be it right or wrong.

    Only if garbage selects a row, the command fails, and when the host notices is open (ERR-2).
    """
    found = explore(case.program(), limit=ORDERS[-2])
    if any("error" in dict(outcome.observation.parts) for outcome in found.outcomes):
        return "no race, other findings, and a fault"
    assert found.is_deterministic, f"{found.to_text()}{case!r}"
    assert found.is_complete, repr(case)
    return "no race, other findings"


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(case=cases())
def test_judge_and_explorer_agree(case):
    event(check_case(case))


@pytest.mark.slow
@settings(max_examples=10_000, suppress_health_check=[HealthCheck.too_slow])
@given(case=cases())
def test_judge_and_explorer_agree_for_long(case):
    event(check_case(case))
