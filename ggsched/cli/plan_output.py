"""What ``ggsched plan`` writes."""

from typing import TYPE_CHECKING

import msgspec

from ggsched.cli.trace_file import write_file
from ggsched.printable import write_out

if TYPE_CHECKING:
    from ggsched.ir.graph import Graph
    from ggsched.plan.bundle import Plan


def with_graph(plan: "Plan", graph: "Graph") -> "Plan":
    """Return the plan with the text of its graph."""
    from ggsched.ir.text import print_graph

    return msgspec.structs.replace(plan, graph_text=print_graph(graph))


def save_plan(path: str, plan: "Plan") -> None:
    """Write the JSON form of a plan to a file.

    Raises:
        UsageError: it cannot be written.
    """
    from ggsched.plan.codec import plan_to_json

    write_file(path, plan_to_json(plan), "the plan")


def print_plan(plan: "Plan", *, as_json: bool, verbose: bool) -> None:
    """Print a plan, as JSON or for people."""
    from ggsched.plan.codec import plan_to_json
    from ggsched.plan.text import plan_text

    text = plan_to_json(plan).decode() if as_json else plan_text(plan, verbose=verbose)
    write_out(text + "\n")
