"""``ggsched trace``: where the time of a recorded run went, as tables, as a page, for Perfetto."""

import re
from typing import TYPE_CHECKING

import click

from ggsched.cli.console import columns, write_json
from ggsched.cli.options import json_option, option
from ggsched.cli.output_files import check_writable
from ggsched.errors import UsageError
from ggsched.files.reading import read_argument
from ggsched.printable import write_out

if TYPE_CHECKING:
    from ggsched.trace.timeline import Timeline


def _runs(text: str) -> tuple[int, int | None]:
    found = re.fullmatch(r"(\d+)?(:)?(\d+)?", text.strip())
    if not found or not text.strip() or text.strip() == ":":
        raise click.BadParameter(f"{text!r} is not a range of runs; write e.g. 1: or 2:5 or 3")
    first = int(found[1] or 0)
    if not found[2]:
        return first, first + 1
    return first, int(found[3]) if found[3] else None


@click.command()
@click.argument("file", metavar="FILE")
@option("--html", "Write a page that stands alone.", metavar="OUT.html")
@option("--perfetto", "Write a file for Perfetto.", metavar="OUT.json")
@option(
    "--runs",
    "Account for runs A to B-1 only, counted from 0; e.g. 1: leaves out the prompt.",
    _runs,
    metavar="A:B",
)
@json_option
def trace(
    file: str,
    html: str | None,
    perfetto: str | None,
    runs: tuple[int, int | None] | None,
    as_json: bool,
) -> None:
    """Report where the time of a run went, from FILE, its trace.

    FILE is a trace as of 'ggsched run --trace'. The account goes to stdout; --html and --perfetto
    write what one looks at.
    """
    from ggsched.report.data import account_data
    from ggsched.report.text import account_text
    from ggsched.sanitize.references import require_known
    from ggsched.trace.advice import advise
    from ggsched.trace.export import read_trace, write_bytes
    from ggsched.trace.times import timeline_of
    from ggsched.trace.utilization import account
    from ggsched_commands.perfetto import trace_to_perfetto

    check_writable(html, "the page")
    check_writable(perfetto, "the trace")
    recorded = read_trace(read_argument(file), file)
    for planned in recorded.plans:
        require_known(planned.plan, f"{file}:1")
    timeline = _chosen(timeline_of(recorded), runs, file)
    made = account(timeline, recorded.plans)
    if perfetto is not None:
        write_bytes(perfetto, trace_to_perfetto(recorded))
    if html is not None:
        from ggsched.report.html import write_page

        write_page(html, timeline, recorded.plans)
    if as_json:
        found = [{"what": a.what, "why": a.why, "saves_s": a.saves_s} for a in advise(made)]
        write_json({"file": file, **account_data(made), "advice": found})
    else:
        write_out(account_text(made, width=columns()))


def _chosen(timeline: "Timeline", runs: tuple[int, int | None] | None, file: str) -> "Timeline":
    from ggsched.trace.timeline import only_runs

    if runs is None:
        return timeline
    chosen = only_runs(timeline, *runs)
    if not chosen.runs:
        count = len(timeline.runs)
        raise UsageError("no such runs", where=file, why=f"there are {count}, counted from 0")
    return chosen
