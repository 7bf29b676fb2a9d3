"""``ggsched check``: judge a plan, a trace or litmus programs."""

import sys
from typing import TYPE_CHECKING, Any, Literal

import click
import msgspec

from ggsched.cli.console import write_json
from ggsched.cli.files import as_text, read_bytes
from ggsched.cli.options import json_option
from ggsched.errors import PlanError

if TYPE_CHECKING:
    from ggsched.plan.bundle import Plan
    from ggsched.sanitize import Report

_FINDING = 1


@click.command()
@click.argument("file", metavar="FILE")
@click.option("--advice", is_flag=True, help="Also name waits and copies that nobody needs.")
@json_option
def check(file: str, advice: bool, as_json: bool) -> int:
    """Look for races and other defects in FILE.

    FILE is a plan (as of 'ggsched plan -o'), a trace (as of 'ggsched run --trace') or litmus
    programs, of which both variants are looked at. Nothing is run. The exit code is 1 if anything
    is found; advice is no finding.
    """
    kind, reports = _reports(file, read_bytes(file), advice)
    if as_json:
        write_json(_as_json(file, kind, reports))
    else:
        sys.stdout.writelines(report.to_text() for report in reports)
    return 0 if all(report.is_clean for report in reports) else _FINDING


def _reports(
    file: str, data: bytes, advice: bool
) -> tuple[Literal["plan", "trace", "litmus"], "list[Report]"]:
    from ggsched.sanitize import check_trace
    from ggsched.trace.export import is_trace, read_trace

    if is_trace(data):
        return "trace", [check_trace(read_trace(data, file), advice=advice)]
    if data.lstrip()[:1] == b"{":
        from ggsched.sanitize import check_plan

        return "plan", [check_plan(_plan(file, data), advice=advice)]
    from ggsched.testing.litmus import check_variant, parse_litmus
    from ggsched.testing.litmus.program import VARIANTS

    blocks = parse_litmus(as_text(data, file), file)
    return "litmus", [check_variant(b, v, advice=advice) for b in blocks for v in VARIANTS]


def _plan(file: str, data: bytes) -> "Plan":
    from ggsched.plan.codec import plan_from_json

    try:
        return plan_from_json(data)
    except PlanError as error:
        raise PlanError(error.what, where=file, why=error.why, hint=error.hint) from error


def _as_json(file: str, kind: str, reports: "list[Report]") -> dict[str, Any]:
    return {
        "file": file,
        "kind": kind,
        "clean": all(report.is_clean for report in reports),
        "findings": [_plain(r.plan, f) for r in reports for f in r.findings],
        "advice": [_plain(r.plan, f) for r in reports for f in r.advice],
        "reports": [msgspec.to_builtins(r) for r in reports],
    }


def _plain(name: str, finding: Any) -> dict[str, Any]:
    return {"in": name, **msgspec.to_builtins(finding)}
