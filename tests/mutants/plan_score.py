"""The score of plan mutants: each is found by the sanitizer, or shown to change nothing.

Plans are those that Hypothesis draws from a fixed seed, so the same version of it gives the same
plans. A mutant that the sanitizer calls clean is executed in every order by the explorer, and has
to give what the graph's nodes give one after another.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from ggsched.passes import make_plan
from ggsched.plan.bundle import Plan
from ggsched.plan.command import Record
from ggsched.sanitize import check_plan
from ggsched.topology.model import Topology
from ggsched_testing.explore import PlanProgram, explore
from ggsched_testing.generators.strategies import DrawnGraph, graphs, values_for
from ggsched_testing.generators.topologies import constraints, topologies
from ggsched_testing.plan_mutants import ALL_MUTATIONS, Mutants, with_commands
from ggsched_testing.spread import HERE, Spread

PLANS: Final = 400
SEED: Final = 3
RUNS: Final = 2
ORDERS: Final = 400
MUTANTS_EACH: Final = 20
"""Most mutants of each operator that are taken from one plan."""

Verdict = Literal["found", "unchanged", "missed"]


class Drawn(NamedTuple):
    """A plan and what it was made from."""

    graph: DrawnGraph
    topology: Topology
    plan: Plan


@dataclass(frozen=True, slots=True)
class PlanScore:
    """What became of the mutants of one operator.

    Attributes:
        operator: Its name.
        counts: How many were found by the sanitizer, shown to change nothing, or missed.
        missed: Descriptions of those that were missed.
    """

    operator: str
    counts: Mapping[Verdict, int]
    missed: tuple[str, ...]


def record_later(plan: Plan) -> Mutants:
    """Move a record behind the next command of its stream, if nobody waits for it before."""
    for record in plan.commands:
        if not isinstance(record, Record):
            continue
        rest = plan.commands[record.id + 1 :]
        after = next((c for c in rest if c.stream == record.stream), None)
        used = next((c for c in rest if getattr(c, "event", None) == record.event), None)
        if after is not None and used is not None and after.id < used.id:
            commands = list(plan.commands)
            commands.insert(after.id, commands.pop(record.id))
            yield f"record c{record.id} behind c{after.id}", with_commands(plan, commands)


OPERATORS: Final = {**ALL_MUTATIONS, "record_later": record_later}


@st.composite
def _drawn(draw: st.DrawFn) -> Drawn:
    graph = draw(graphs(max_nodes=8, min_nodes=4))
    events = draw(st.sampled_from((True, None)))
    topology = draw(topologies(min_devices=2, max_devices=3, events=events))
    wanted = draw(constraints(graph.graph, topology, pin_all=True, clears=True))
    return Drawn(graph, topology, make_plan(graph.graph, topology, wanted))


def drawn_plans(count: int = PLANS, first: int = SEED) -> list[Drawn]:
    """Return plans that depend on the seed only."""
    found: list[Drawn] = []

    @seed(first)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(_drawn())
    def collect(drawn: Drawn) -> None:
        found.append(drawn)

    collect()
    return found


def verdict_on(drawn: Drawn, mutant: Plan) -> Verdict:
    """Ask the sanitizer, and where it finds nothing the explorer."""
    if check_plan(mutant, runs=RUNS).findings:
        return "found"
    values = [values_for(drawn.graph, run) for run in range(RUNS)]
    program = PlanProgram(drawn.graph.graph, mutant, values, topology=drawn.topology)
    outcome = explore(program, limit=ORDERS)
    same = outcome.is_deterministic and outcome.outcomes[0].observation == program.expected()
    return "unchanged" if same else "missed"


def plan_scores(plans: Sequence[Drawn], spread: Spread = HERE) -> Iterator[PlanScore]:
    """Assess the mutants of every operator."""
    keys = [f"plan {number}" for number in range(len(plans))]
    work = f"plans, {len(plans)} from seed {SEED}"
    assessed = list(spread.results(assess_plan, plans, keys=keys, work=work, kind=list[Assessed]))
    for name in OPERATORS:
        counts: Counter[Any] = Counter({"found": 0, "unchanged": 0, "missed": 0})
        missed: list[str] = []
        for number, some in enumerate(assessed):
            for operator, what, verdict in some:
                if operator == name:
                    counts[verdict] += 1
                    missed += [f"plan {number}: {what}"] if verdict == "missed" else []
        yield PlanScore(name, dict(counts), tuple(missed))


Assessed = tuple[str, str, Verdict]
"""An operator, what it did, and what became of that."""


def assess_plan(drawn: Drawn) -> list[Assessed]:
    """Assess the mutants of one plan."""
    found: list[Assessed] = []
    for name, operator in OPERATORS.items():
        mutants = list(operator(drawn.plan))
        for what, mutant in mutants[:: 1 + len(mutants) // MUTANTS_EACH]:
            found.append((name, what, verdict_on(drawn, mutant)))
    return found
