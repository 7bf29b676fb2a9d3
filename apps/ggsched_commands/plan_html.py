"""``ggsched plan --html``: what is expected of a plan, as a page, before anything has run."""

from typing import TYPE_CHECKING

from ggsched.cli.output_files import check_writable

if TYPE_CHECKING:
    from ggsched_llm.session import Session


def write_plan_page(session: "Session", n_tokens: int, n_past: int, path: str) -> None:
    """Write the page of the plan of a micro-batch.

    Raises:
        UsageError: the file cannot be written.
    """
    from ggsched.report.html import write_page
    from ggsched.report.predicted_timeline import described
    from ggsched.trace.expected import expected_timeline

    check_writable(path, "the page")
    graph = session.graph(n_tokens, n_past, 1)
    planned = session.scheduler.planned_graph(graph, session.constraints)
    traced = described(planned, session.plan_of(graph), session.rates)
    timeline = expected_timeline(traced.plan, traced.expected, enqueue_s=session.rates.enqueue_s)
    write_page(path, timeline, (traced,))
