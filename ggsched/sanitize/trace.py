"""The judge of traces: is what was done in order, whatever the devices make of their freedom?"""

from ggsched.sanitize.deadlock import find_stuck
from ggsched.sanitize.redundant_sync import advise
from ggsched.sanitize.report import Finding, Report
from ggsched.sanitize.trace_capture import find_capture_misuse
from ggsched.sanitize.trace_content import find_wrong_content
from ggsched.sanitize.trace_race_report import describe_clash
from ggsched.sanitize.trace_walk import TraceWalk
from ggsched.sanitize.trace_well_formed import find_event_misuse, find_unknown_in_trace
from ggsched.trace.schema import Trace


def check_trace(trace: Trace, *, advice: bool = False) -> Report:
    """Return what is wrong with a trace.

    It does not matter what the recorded run was lucky with. Found are: races between accesses of
    streams and host threads, also to addresses that were freed and used again; uses of memory
    before it is written or after it is freed; events that are misused; waits that can never end;
    calls that a capture does not stand. Where nothing races, reads that find other content than
    they need are found too; after a race the contents mean nothing.

    Args:
        trace: The trace; any trace, also a broken one.
        advice: Whether to name waits, events and copies that nobody needs, if nothing is wrong.
    """
    findings: list[Finding] = find_unknown_in_trace(trace)
    if not findings:
        walk = TraceWalk(trace)
        walk.run()
        findings = find_capture_misuse(trace)
        findings += find_event_misuse(trace)
        findings += find_stuck(trace)
        findings += [describe_clash(trace, clash) for clash in walk.clashes.values()]
        findings += walk.findings
        if not walk.clashes:
            findings += find_wrong_content(trace)
    hints = advise(trace) if advice and not findings else ()
    return Report(trace.name, len(trace.entries), 0, tuple(findings), hints)
