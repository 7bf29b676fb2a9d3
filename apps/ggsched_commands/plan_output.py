"""What ``ggsched plan`` writes."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from ggsched.cli.console import columns
from ggsched.cli.output_files import check_writable, output_file
from ggsched.errors import UsageError
from ggsched.printable import write_out

if TYPE_CHECKING:
    from ggsched.ir.graph import Graph
    from ggsched.plan.bundle import Plan
    from ggsched_llm.session import Session


def with_graph(plan: "Plan", graph: "Graph") -> "Plan":
    """Return the plan with the text of its graph."""
    from ggsched.ir.text import print_graph

    return msgspec.structs.replace(plan, graph_text=print_graph(graph))


def no_files(others: Mapping[str, object], files: Mapping[str, str | None]) -> None:
    """Refuse options that write the plan beside those that print something else.

    Raises:
        UsageError: there are both.
    """
    instead = [name for name, value in others.items() if value not in (None, False)]
    written = [name for name, path in files.items() if path is not None]
    if instead and written:
        why, hint = f"{instead[0]} prints something else than the plan", "give one of them"
        raise UsageError(f"{written[0]} with {instead[0]}", why=why, hint=hint)


def save_plan(path: str, plan: "Plan") -> None:
    """Write the JSON form of a plan to a file.

    Raises:
        UsageError: it cannot be written.
    """
    from ggsched.plan.codec import plan_to_json

    with output_file(path, "the plan") as file:
        file.write(plan_to_json(plan))


def write_dot(plan: "Plan", path: str) -> None:
    """Write the picture of a plan.

    Raises:
        UsageError: the file cannot be written.
    """
    from ggsched_commands.dot import plan_to_dot

    with output_file(path, "the picture") as file:
        file.write(plan_to_dot(plan).encode())


def write_plan_page(session: "Session", n_tokens: int, n_past: int, path: str) -> None:
    """Write the page of the plan of a micro-batch.

    Raises:
        UsageError: the file cannot be written.
    """
    from ggsched.report.html import write_page
    from ggsched.report.predicted_timeline import described
    from ggsched_commands.expected_trace import expected_timeline

    check_writable(path, "the page")
    graph = session.graph(n_tokens, n_past, 1)
    planned = session.scheduler.planned_graph(graph, session.constraints)
    traced = described(planned, session.plan_of(graph), session.rates)
    timeline = expected_timeline(traced.plan, traced.expected, enqueue_s=session.rates.enqueue_s)
    write_page(path, timeline, (traced,))


def print_plan(plan: "Plan", *, as_json: bool, verbose: bool) -> None:
    """Print a plan, as JSON or for people."""
    from ggsched.plan.codec import plan_to_json
    from ggsched.plan.text import plan_text

    text = (
        plan_to_json(plan).decode()
        if as_json
        else plan_text(plan, verbose=verbose, width=columns())
    )
    write_out(text + "\n")
