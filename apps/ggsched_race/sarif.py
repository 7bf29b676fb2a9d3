"""Findings as SARIF 2.1.0, for code hosts."""

import os
from hashlib import sha256
from typing import Any, Final

from ggsched import __version__
from ggsched.sanitize.races import MAX_RACES
from ggsched_race.call_sites import Frame
from ggsched_race.report import RaceFinding, RaceReport

_SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"
_RULES: Final = {
    "race": "Two accesses to common bytes, at least one a write, that nothing orders.",
    "freed": "A replayed graph uses memory that the program has let go of.",
}


def to_sarif(report: RaceReport) -> dict[str, Any]:
    """Return a report as a SARIF log."""
    kinds = sorted({*_RULES, *(f.kind for f in report.findings)})
    rules = [
        {"id": kind, "shortDescription": {"text": _RULES.get(kind, f"A finding of kind {kind}.")}}
        for kind in kinds
    ]
    driver = {"name": "ggsched race", "semanticVersion": __version__, "rules": rules}
    results = [_result(finding, kinds.index(finding.kind)) for finding in report.findings]
    run: dict[str, Any] = {"tool": {"driver": driver}, "results": results}
    notices = [*report.notices]
    if report.is_cut_off:
        notices.append(f"There may be more: the search stopped at {MAX_RACES} racing pairs.")
    if report.failure:
        notices.append(f"The program ended with {report.failure}; later calls are not judged.")
    warnings = [{"level": "warning", "message": {"text": text}} for text in notices]
    if warnings:
        # The run itself has succeeded: it says what it could not look at.
        told = {"executionSuccessful": True, "toolExecutionNotifications": warnings}
        run["invocations"] = [told]
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}


def _result(finding: RaceFinding, rule: int) -> dict[str, Any]:
    *others, place = [s.stack for s in finding.sides] or [()]
    text = f"{finding.what}. {finding.mend}" if finding.mend else finding.what
    flows = [
        {"locations": [{"location": _location(f)} for f in reversed(s.stack)]}
        for s in finding.sides
    ]
    result: dict[str, Any] = {
        "ruleId": finding.kind,
        "ruleIndex": rule,
        "level": "error",
        "message": {"text": text},
        "locations": [_location(f) for f in place[:1]],
        "partialFingerprints": {"stacks/v1": _fingerprint(finding)},
    }
    stacks = [stack for stack in others if stack]
    related = [{"id": k, **_location(stack[0])} for k, stack in enumerate(stacks)]
    result |= {"relatedLocations": related} if related else {}
    threads = [flow for flow in flows if flow["locations"]]
    return result | ({"codeFlows": [{"threadFlows": threads}]} if threads else {})


def _location(frame: Frame) -> dict[str, Any]:
    file = frame.file.replace(os.sep, "/")
    artifact = {"uri": file} if not file.startswith("/") else {"uri": f"file://{file}"}
    place = {"artifactLocation": artifact, "region": {"startLine": max(frame.line, 1)}}
    logical = [{"fullyQualifiedName": frame.function}]
    return {"physicalLocation": place, "logicalLocations": logical}


def _fingerprint(finding: RaceFinding) -> str:
    """Return what stays the same when lines move: the kind, the ops and the functions."""
    parts = [finding.kind, finding.hazard]
    parts += [f"{s.op} {f.function}" for s in finding.sides for f in s.stack]
    return sha256("\n".join(parts).encode()).hexdigest()[:32]
