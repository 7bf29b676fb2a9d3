"""The judge: decides from a plan's commands alone whether everything is in order.

It shares no code with the passes that make plans and none with the executor that runs them.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from ggsched.plan.bundle import Plan
from ggsched.sanitize.footprint import find_footprints
from ggsched.sanitize.fused import find_bad_groups
from ggsched.sanitize.lifetime import find_bad_reads
from ggsched.sanitize.plan_redundant_sync import advise_on_plan, find_cycles_in_plan
from ggsched.sanitize.program import find_disorder
from ggsched.sanitize.races import find_races
from ggsched.sanitize.report import Finding, Report, Touch
from ggsched.sanitize.rows import find_bad_takers
from ggsched.sanitize.well_formed import find_misuse, find_unknown

DEFAULT_RUNS = 3
"""Two runs show what the end of one does to the beginning of the next; the third is for a race
between runs that are not neighbours."""


def check_plan(plan: Plan, *, runs: int = DEFAULT_RUNS, advice: bool = False) -> Report:
    """Return what is wrong with a plan when it runs several times in a row.

    Ordering comes from streams, events and the host waiting, and from nothing else. Found are:
    races between commands, or a command and the host, within a run and from run to run; reads of
    bytes that nothing has written, that belong to another value or to an older version of their
    storage; events that are misused; regions outside their place; launches that touch more than
    they declare; groups that are not launched as one or overwrite what they read.

    Args:
        plan: The plan; any plan, also a broken one.
        runs: How many consecutive runs to look at.
        advice: Whether to name waits, events and copies that nobody needs, if nothing is wrong.
    """
    with _collector_paused():
        findings = find_unknown(plan)
        if not findings:  # nothing can be said about a plan that names what is not there
            findings = find_misuse(plan)
            footprints, undeclared = find_footprints(plan)
            findings += undeclared
            findings += find_races(plan, footprints, runs)
            findings += find_bad_takers(plan)
            findings += find_disorder(plan)
            findings += find_bad_reads(plan)
            findings += find_bad_groups(plan)
            if any(f.kind == "event" for f in findings):
                findings += find_cycles_in_plan(plan)
        hints = advise_on_plan(plan, runs) if advice and not findings else ()
        return Report(plan.name, len(plan.commands), runs, tuple(findings), hints)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Keep the cyclic garbage collector from walking plan and maps, which have no cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


__all__ = ["DEFAULT_RUNS", "Finding", "Report", "Touch", "check_plan"]
