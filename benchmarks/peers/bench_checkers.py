"""How fast plans are checked and orders explored.

The sanitizer in commands per second, on plans of 2,000 to 20,000 commands, beside the obvious
checker: transitive closure by networkx (where the memory for n^2 / 2 edges is there) or by integers
as sets of bits, and all pairs compared. All find nothing in the plan and something once a wait is
gone, or the suite fails. The obvious checkers look at one run and at races alone, so the sanitizer
looks at one run too, though it looks at the rest as well; beside it with its three runs.

The explorer in executions per second, beside the same program executed as often in the usual order,
which is the limit; and the executions that it needs, beside the number of all interleavings.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.measure import best_ratio, interleaved, spread
from benchmarks.peers.interleavings import count_interleavings
from benchmarks.peers.naive_checker import BitClosure, NetworkxClosure, races
from benchmarks.table import Row
from ggsched.ir import Graph, GraphBuilder
from ggsched.passes import Constraints, make_plan
from ggsched.plan.bundle import Plan
from ggsched.sanitize import check_plan
from ggsched_testing.explore import Observation, PlanProgram, explore
from ggsched_testing.litmus import LitmusBlock, Variant, parse_litmus
from ggsched_testing.litmus.explorer import LIMIT, explore_block
from ggsched_testing.litmus.steps import script_of
from ggsched_testing.plan_mutants import drop_waits
from ggsched_testing.schedule_policy import EagerPolicy
from tests.support.model_mixes import topology
from tests.support.stream_graphs import random_wide

ROUNDS = 3
COMMANDS: Final = (2_000, 6_000, 20_000)
NETWORKX_LIMIT = 2_100
"""Commands of the largest plan of which networkx may close the graph."""
PAIRS_LIMIT = 6_100
"""Commands of the largest plan of which all pairs may be compared."""
LITMUS = Path(__file__).resolve().parents[2] / "tests" / "litmus"
EXECUTIONS = 300
INTERLEAVINGS_LIMIT = 200_000


def run() -> list[Row]:
    """Measure."""
    rows = [row for n in COMMANDS for row in sanitizer(plan_of(n), ROUNDS)]
    return rows + litmus_rows(ROUNDS) + plan_rows(ROUNDS)


def plan_of(n_commands: int) -> Plan:
    """Return a plan of at least n commands: sums of random results, two devices in turn."""
    machine = topology()
    n = n_commands // 4
    while True:
        graph = random_wide(n)
        plan = make_plan(graph, machine, Constraints(pins={i: i % 2 for i in range(n)}))
        if len(plan.commands) >= n_commands:
            return plan
        n = n * n_commands // len(plan.commands) + 1


def sanitizer(plan: Plan, rounds: int) -> list[Row]:
    """Return commands per second of the checkers on a plan.

    Raises:
        ValueError: a checker finds a race in the plan, or none where a wait is missing.
    """
    n = len(plan.commands)
    _, broken = next(iter(drop_waits(plan)))
    verdicts: dict[str, Callable[[Plan], bool]] = {
        "sanitizer, 1 run": lambda p: check_plan(p, runs=1).is_clean,
        "sanitizer, 3 runs": lambda p: check_plan(p).is_clean,
    }
    if n <= NETWORKX_LIMIT:
        verdicts["networkx closure, all pairs"] = lambda p: not races(p, NetworkxClosure)
    if n <= PAIRS_LIMIT:
        verdicts["closure by bits, all pairs"] = lambda p: not races(p, BitClosure)
    for name, is_clean in verdicts.items():
        if not is_clean(plan) or is_clean(broken):
            raise ValueError(f"{name}: a wrong verdict on {plan.name} or its mutant")
    sides = {name: partial(_discard, is_clean, plan) for name, is_clean in verdicts.items()}
    took = interleaved(sides, rounds, time.process_time)
    rows = []
    for name, seconds in took.items():
        rows.append(_rate(f"{n} commands: {name}", n, seconds, "/s"))
        if not name.startswith("sanitizer"):
            ours = took["sanitizer, 1 run"]
            what = f"  {name} / sanitizer, time"
            rows.append(Row("checkers", what, *best_ratio(seconds, ours)))
    return rows


def litmus_blocks() -> Iterator[LitmusBlock]:
    """Yield the programs of the corpus."""
    for file in sorted(LITMUS.iterdir()):
        if file.suffix in (".md", ".litmus"):
            yield from parse_litmus(file.read_text(encoding="utf-8"), file.name)


def litmus_rows(rounds: int) -> list[Row]:
    """Return executions per second over the corpus, and the share of interleavings executed."""
    variants: tuple[Variant, ...] = ("broken", "fixed")
    programs = [(block, variant) for block in litmus_blocks() for variant in variants]

    def once() -> int:
        return sum(explore_block(b, v).executions for b, v in programs)

    executions = once()
    took = interleaved({"litmus": lambda: _ignore(once())}, rounds, time.process_time)
    name = f"litmus, {len(programs)} programs"
    rows = [_rate(f"{name}: verdicts", len(programs), took["litmus"], "/s")]
    rows.append(_rate(f"{name}: executions, shrinking included", executions, took["litmus"], "/s"))
    shares, tried, there = [], 0, 0
    for block, variant in programs:
        explored = explore_block(block, variant)
        everything = count_interleavings(script_of(block, variant).needs, INTERLEAVINGS_LIMIT)
        if explored.verdict in ("clean", "value") and explored.executions < LIMIT:
            shares.append(everything / explored.executions)
            tried, there = tried + explored.executions, there + everything
    what = f"  {len(shares)} without races: all interleavings / executions"
    rows.append(Row("checkers", what, there / tried, min(shares), max(shares)))
    return rows


def plan_rows(rounds: int) -> list[Row]:
    """Return executions per second of small plans, beside the same ones in the usual order."""
    rows = []
    for nodes in (4, 16, 64):
        program = small_program(nodes)
        commands = program.n_commands
        count = EXECUTIONS // max(1, nodes // 4)

        def explored(program: "SmallPlan" = program, count: int = count) -> None:
            found = explore(program, limit=count, mode="pct", shrinks=False)
            if not found.is_deterministic or found.schedules != count:
                raise ValueError(f"{program.name}: {found.to_text()}")

        def plain(program: "SmallPlan" = program, count: int = count) -> None:
            for _ in range(count):
                program(EagerPolicy())

        took = interleaved({"explored": explored, "plain": plain}, rounds, time.process_time)
        name = f"plan of {commands} commands, 2 runs"
        rows.append(_rate(f"{name}: orders explored", count, took["explored"], "/s"))
        found = best_ratio(took["explored"], took["plain"])
        rows.append(Row("checkers", "  explored / executed, time", *found))
    return rows


class SmallPlan:
    """A plan over two simulated devices as a program for ``explore``.

    Attributes:
        name: For messages.
        n_commands: Commands of the plan.
    """

    def __init__(self, graph: Graph, plan: Plan, program: PlanProgram) -> None:
        self.name = graph.name
        self.n_commands = len(plan.commands)
        self._program = program

    def __call__(self, policy: object) -> Observation:
        """Run once."""
        return self._program(policy)  # type: ignore[arg-type]


def small_program(nodes: int) -> SmallPlan:
    """Return a chain over two devices that take turns, with values for two runs."""
    g = GraphBuilder(f"turns {nodes}")
    x, c = g.input("x", (16,)), g.weight("c", (16,))
    for _ in range(nodes):
        x = g.add(x, c)
    graph = g.build(x)
    machine = topology()
    plan = make_plan(graph, machine, Constraints(pins={i: i % 2 for i in range(nodes)}))
    first = np.arange(16, dtype=np.float32)
    one = np.ones(16, np.float32)
    values = [{"x": first, "c": one}, {"x": first * 3, "c": one}]
    return SmallPlan(graph, plan, PlanProgram(graph, plan, values, topology=machine))


def _rate(what: str, count: int, seconds: list[float], unit: str) -> Row:
    return Row("checkers", what, *spread(count / s for s in seconds), unit)


def _ignore(count: int) -> None:
    del count


def _discard(is_clean: Callable[[Plan], bool], plan: Plan) -> None:
    is_clean(plan)
