"""``ggsched check``: check a plan, a trace or litmus programs."""

from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any, Literal

import click
import msgspec

from ggsched.cli.console import columns, write_json
from ggsched.cli.options import json_option, option
from ggsched.errors import GraphError, PlanError, UsageError
from ggsched.files.reading import as_text, read_argument, read_text_argument
from ggsched.printable import write_out

if TYPE_CHECKING:
    from ggsched.ir.graph import Graph
    from ggsched.plan.bundle import Plan
    from ggsched.sanitize import Report

_FINDING = 1


@click.command()
@click.argument("file", metavar="FILE")
@click.option("--advice", is_flag=True, help="Also name waits and copies that nobody needs.")
@option(
    "--graph",
    "Compare a plan with this graph, a file in the text form, instead of the one it carries.",
    metavar="GRAPH",
)
@json_option
def check(file: str, advice: bool, graph: str | None, as_json: bool) -> int:
    """Look for races and other defects in FILE.

    FILE is a plan (as of 'ggsched plan -o'), a trace (as of 'ggsched run --trace') or litmus
    programs, of which both variants are looked at. Nothing is run. A plan that carries its graph
    (as of 'ggsched plan --with-graph') is compared with it, step by step; for a plan without one
    the rules that need it are listed as not checked. The exit code is 1 if anything is found;
    advice is not a finding.
    """
    kind, reports, unchecked = _reports(file, read_argument(file), advice, graph)
    if as_json:
        write_json({**_as_json(file, kind, reports), "not_checked": unchecked})
    else:
        write_out("".join(report.to_text(columns()) for report in reports))
        if unchecked:
            names = ", ".join(unchecked)
            fix = "give the graph by --graph, or plan with --with-graph"
            write_out(fill(f"not checked without the graph: {names}; {fix}", columns()) + "\n")
    return 0 if all(report.is_clean for report in reports) else _FINDING


def _reports(
    file: str, data: bytes, advice: bool, graph: str | None
) -> tuple[Literal["plan", "trace", "litmus"], "list[Report]", Sequence[str]]:
    """Return what FILE is, what was found in it, and the rules that were not applied."""
    from ggsched.sanitize import check_trace
    from ggsched.trace.export import is_trace, read_trace

    if graph is not None and (is_trace(data) or data.lstrip()[:1] != b"{"):
        raise UsageError("--graph is for plans", where=file, why="this is not a plan")
    if is_trace(data) or _is_json_lines(data):
        return "trace", [check_trace(read_trace(data, file), advice=advice)], ()
    if data.lstrip()[:1] == b"{":
        from ggsched.sanitize.check import GRAPH_RULES, check_plan

        plan = _plan(file, data)
        known = _graph(file, plan, graph)
        unchecked = GRAPH_RULES if known is None else ()
        return "plan", [check_plan(plan, advice=advice, graph=known)], unchecked
    from ggsched_testing.litmus import check_variant, parse_litmus
    from ggsched_testing.litmus.program import VARIANTS

    blocks = parse_litmus(as_text(data, file), file)
    return "litmus", [check_variant(b, v, advice=advice) for b in blocks for v in VARIANTS], ()


def _is_json_lines(data: bytes) -> bool:
    """Whether the second line begins an object, as in a trace, whatever the first line is."""
    lines = (line for line in data.split(b"\n", 64) if line.strip())
    next(lines, b"")
    return next(lines, b"").startswith(b"{")


def _graph(file: str, plan: "Plan", path: str | None) -> "Graph | None":
    """Return the graph of a plan: that of a file, or else the one that it carries, if any.

    Raises:
        GraphError: the text is not a graph.
    """
    from ggsched.ir.text import parse_graph

    text = plan.graph_text if path is None else read_text_argument(path)
    if not text:
        return None
    try:
        return parse_graph(text)
    except GraphError as error:
        where = ": ".join(w for w in (path or f"{file}: graph_text", error.where) if w)
        raise GraphError(error.what, where=where, why=error.why, hint=error.hint) from error


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
