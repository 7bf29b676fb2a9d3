"""The rules, and what they are applied to."""

from collections.abc import Callable, Collection, Sequence
from typing import Final

from ggsched.collector import collector_paused
from ggsched.ir.graph import Graph
from ggsched.plan.bundle import Plan
from ggsched.plan.effects import Effects
from ggsched.sanitize.capture import find_capture_misuse
from ggsched.sanitize.content import find_dead_memory, find_wrong_content
from ggsched.sanitize.deadlock import find_event_misuse, find_stuck
from ggsched.sanitize.disorder import find_disorder
from ggsched.sanitize.events import EventStream
from ggsched.sanitize.from_plan import from_plan
from ggsched.sanitize.from_trace import from_trace, without_events
from ggsched.sanitize.fused import find_bad_groups
from ggsched.sanitize.hazards import find_bad_hazards
from ggsched.sanitize.meaning import find_departures, find_overwritten_operands, find_wrong_slots
from ggsched.sanitize.program import find_unfaithful
from ggsched.sanitize.races import find_races
from ggsched.sanitize.redundant_sync import advise
from ggsched.sanitize.references import find_unknown, find_unknown_in_trace
from ggsched.sanitize.relations import GRAPH_RELATIONS, find_disagreements, find_missing_paths
from ggsched.sanitize.report import Finding, Report
from ggsched.sanitize.rows import find_bad_rows
from ggsched.topology.model import Topology
from ggsched.trace.schema import Sync, Trace

DEFAULT_RUNS: Final = 3
"""Two runs show what the end of one does to the beginning of the next; the third is for a race
between runs that are not neighbours."""

GRAPH_RULES: Final = ("ops", "access_modes", "operand_bytes", "outputs", *GRAPH_RELATIONS)
"""What a plan is checked for only if its graph is given."""

_STREAM_RULES: Final[tuple[Callable[[EventStream], list[Finding]], ...]] = (
    find_capture_misuse,
    find_event_misuse,
    find_stuck,
    find_dead_memory,
    find_races,
)
"""Rules about the order of events. They hold for plans and traces alike."""

_PLAN_RULES: Final[tuple[Callable[[Plan, Sequence[Effects]], list[Finding]], ...]] = (
    find_bad_hazards,
    find_bad_rows,
    find_bad_groups,
    find_overwritten_operands,
)
"""Rules about what only a plan says of its commands."""


@collector_paused()
def check_plan(
    plan: Plan,
    *,
    runs: int = DEFAULT_RUNS,
    advice: bool = False,
    graph: Graph | None = None,
    topology: Topology | None = None,
    without: Collection[str] = (),
    order: bool = True,
) -> Report:
    """Return what is wrong with a plan when it runs several times in a row.

    Ordering comes from streams, events and the host waiting, and from nothing else. Found are:
    races between commands, or a command and the host, within a run and from run to run; reads of
    bytes that nothing has written, that belong to another value or to an older version of their
    storage; events that are misused and waits that never end; nodes and transfers that are not
    carried out once, where the plan says; regions outside their place; launches that touch more
    than they declare; groups that are not launched as one or overwrite what they read; waits whose
    hazard is none; artifacts that disagree, see ``ggsched.sanitize.relations``.

    Args:
        plan: The plan; any plan, also a broken one.
        runs: How many consecutive runs to look at.
        advice: Whether to name redundant waits, events and copies, if nothing is wrong.
        graph: The graph that the plan is of. With it each step is compared with its node: access
            modes, bytes of each operand, outputs; and ``GRAPH_RELATIONS`` hold.
        topology: The machine. With it copies are compared with its paths.
        without: Names of ``RELATIONS`` that are not looked at.
        order: Whether to look at the order of accesses and the contents of memory too. Without it
            artifacts, commands and graph are compared.

    Examples:
        >>> from ggsched import GraphBuilder, Scheduler
        >>> from ggsched.sanitize import check_plan
        >>> g = GraphBuilder()
        >>> graph = g.build(y=g.silu(g.input("x", (4, 64))))
        >>> with Scheduler(["cpu:0", "cpu:1"]) as scheduler:
        ...     check_plan(scheduler.plan(graph), graph=graph).is_clean
        True
    """
    effects = [command.effects for command in plan.commands]
    findings, outside = find_unknown(plan, effects)
    hints: tuple[Finding, ...] = ()
    if not findings:  # nothing can be said about a plan that names what is not there
        stream = from_plan(plan, effects, runs)
        findings = outside + find_unfaithful(plan, effects, stream)
        for rule in (*_STREAM_RULES, find_disorder) if order else ():
            findings += rule(stream)
        findings += find_wrong_content(stream) if order else []
        findings += find_wrong_slots(plan)
        for plan_rule in _PLAN_RULES:
            findings += plan_rule(plan, effects)
        findings += find_disagreements(plan, without)
        if graph is not None:
            findings += find_departures(plan, effects, graph)
        if topology is not None:
            findings += find_missing_paths(plan, topology)
        if advice and not findings:
            hints = advise(stream)
    return Report(plan.name, len(plan.commands), runs, tuple(findings), hints)


@collector_paused()
def check_trace(trace: Trace, *, advice: bool = False) -> Report:
    """Return what is wrong with a trace.

    It does not matter what the recorded run was lucky with. Found are: races between accesses of
    streams and host threads, also to addresses that were freed and used again; uses of memory
    before it is written or after it is freed; events that are misused; waits that can never end;
    calls that a capture does not stand. Where nothing races, reads that find other content than
    they need are found too; after a race the contents mean nothing.

    Args:
        trace: The trace; any trace, also a broken one.
        advice: Whether to name redundant waits, events and copies, if nothing is wrong. Waits of
            the host in a trace with runs of plans are not named: the executor makes them, and those
            that a plan asks for are found in the plan.

    Examples:
        >>> from ggsched.sanitize import check_trace
        >>> from ggsched.trace.schema import Access, Actor, Alloc, Trace, Work
        >>> actors = Actor(0, "host", "host"), Actor(1, "a", "stream"), Actor(2, "b", "stream")
        >>> records = (
        ...     Alloc(0, 0, "x", 64),
        ...     Work(1, "write", 0, writes=(Access(0, 0, 64),)),
        ...     Work(2, "read", 0, reads=(Access(0, 0, 64),)),
        ... )
        >>> len(check_trace(Trace("small", actors, records)).findings)
        1
    """
    from ggsched.sanitize.screen import Screen  # a plan is checked without numpy

    screen = Screen(without_events(trace))
    for i, entry in enumerate(trace.entries):
        screen.add(i, entry)
    spaces = screen.racy()
    is_known = screen.is_known and all(a.id == i for i, a in enumerate(trace.actors))
    findings = [] if is_known else find_unknown_in_trace(trace)
    hints: tuple[Finding, ...] = ()
    if not findings:
        stream = from_trace(trace, spaces)
        for rule in _STREAM_RULES:
            findings += [] if is_known and rule is find_dead_memory else rule(stream)
        is_plain = is_known and screen.is_plain
        if not is_plain and not any(f.kind == "race" for f in findings):
            findings += find_wrong_content(stream)
        if advice and not findings:
            own = {i for i, e in enumerate(trace.entries) if trace.runs and isinstance(e, Sync)}
            hints = advise(from_trace(trace), own)
    return Report(trace.name, len(trace.entries), 0, tuple(findings), hints)
