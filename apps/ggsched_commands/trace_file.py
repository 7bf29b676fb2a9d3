"""What a run leaves behind: a trace, a page, an account; written when the command ends."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ggsched.cli.console import columns, messages
from ggsched.cli.options import option, with_options
from ggsched.cli.output_files import check_writable

if TYPE_CHECKING:
    from ggsched.trace.recorder import Recorder
    from ggsched_cluster.recorded import Recorded

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be left behind.

    Attributes:
        trace: Where the trace goes; as ``.json`` it opens in Perfetto as well.
        html: Where the page goes.
        report: Whether the utilization is reported.
    """

    trace: str | None = None
    html: str | None = None
    report: bool = False

    @property
    def is_anything(self) -> bool:
        """Whether anything has to be recorded for it."""
        return bool(self.trace or self.html or self.report)


def trace_options(function: F) -> F:
    """Add ``--trace``, ``--html`` and ``--report``."""
    path = click.Path(dir_okay=False, writable=True)
    options = (
        option(
            "--trace",
            "Record all commands of the devices, and when each ran: FILE.jsonl as lines, "
            "FILE.json as an object that Perfetto opens. 'ggsched check' and 'ggsched trace' read "
            "both.",
            path,
            metavar="FILE",
        ),
        option(
            "--html",
            "Write a page with timeline, memory, splits and accounts.",
            path,
            metavar="FILE",
        ),
        click.option("--report", is_flag=True, help="Report where the time went, on stderr."),
    )
    return with_options(function, options)


@contextmanager
def recording(wanted: Wanted, name: str) -> Iterator["Recorder | None"]:
    """Give a recorder, and write what is wanted in the end, also after an error.

    Args:
        wanted: What to write; if that is nothing there is no recorder.
        name: Name of the trace.

    Raises:
        UsageError: a file cannot be written, which is found out before anything is recorded.
    """
    if not wanted.is_anything:
        yield None
        return
    from ggsched.trace.recorder import Recorder

    check_writable(wanted.trace, "the trace")
    check_writable(wanted.html, "the page")
    recorder = Recorder()
    try:
        yield recorder
    finally:
        _write(recorder, wanted, name)


def _write(recorder: "Recorder", wanted: Wanted, name: str) -> None:
    from ggsched.trace.export import write_bytes, write_trace
    from ggsched_commands.perfetto import trace_to_perfetto

    if recorder.elsewhere is not None:
        _write_elsewhere(recorder, recorder.elsewhere(), wanted)
        return
    trace = recorder.trace(name)
    if not trace.runs:  # nothing has run, so there are no times
        if wanted.trace is not None:
            write_trace(trace, wanted.trace)
        return
    if wanted.trace is not None:
        if is_perfetto(wanted.trace):
            write_bytes(wanted.trace, trace_to_perfetto(trace))
        else:
            write_trace(trace, wanted.trace)
    if wanted.html is None and not wanted.report:
        return
    from ggsched.trace.times import timeline_of

    timeline = timeline_of(trace)
    if wanted.html is not None:
        from ggsched.report.html import write_page

        write_page(wanted.html, timeline, trace.plans)
    if wanted.report:
        from ggsched.report.text import account_text
        from ggsched.trace.utilization import account

        text = account_text(account(timeline, trace.plans), recorder.setup, columns(sys.stderr))
        messages().out(text, end="", highlight=False)


def _write_elsewhere(recorder: "Recorder", found: "Recorded", wanted: Wanted) -> None:
    """Write what several machines recorded."""
    from ggsched.report.html import write_page
    from ggsched.report.text import account_text
    from ggsched.trace.export import write_bytes
    from ggsched.trace.utilization import account
    from ggsched_commands.perfetto import timeline_to_perfetto

    if wanted.trace is not None:
        write_bytes(wanted.trace, timeline_to_perfetto(found.timeline))
    if wanted.html is not None:
        write_page(wanted.html, found.timeline)
    if wanted.report:
        for name, timeline in found.by_machine():
            text = account_text(account(timeline), recorder.setup, columns(sys.stderr))
            messages().out(f"{name}\n{text}\n", end="", highlight=False)
        messages().out(found.to_text(), end="", highlight=False)


def account_json(recorder: "Recorder") -> dict[str, Any]:
    """Return where the time went so far, as plain JSON data; empty if nothing has run."""
    from ggsched.report.data import account_data
    from ggsched.trace.times import timeline_of
    from ggsched.trace.utilization import account

    if recorder.elsewhere is not None:
        found = recorder.elsewhere()
        machines = {name: account_data(account(line)) for name, line in found.by_machine()}
        return {"machines": machines, **found.to_json()}
    trace = recorder.trace("so far")
    return account_data(account(timeline_of(trace), trace.plans)) if trace.runs else {}


def is_perfetto(path: str) -> bool:
    """Whether a name selects the form that Perfetto opens: it ends in ``.json``."""
    return path.lower().endswith(".json")
