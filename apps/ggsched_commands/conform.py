"""``ggsched conform``: put a backend to the contract."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Final

import click
from rich.table import Table
from rich.text import Text

from ggsched.cli.console import messages, new_table, output, write_json
from ggsched.cli.options import at_least, json_option, option
from ggsched.cli.user_ops import named_op
from ggsched.config import Settings
from ggsched.printable import write_out
from ggsched.units import seconds_text
from ggsched_commands.spread_options import shown_results, spread_options
from ggsched_testing.spread import Spread

if TYPE_CHECKING:
    from ggsched_testing.conformance import Case, CaseResult, ConformanceReport
    from ggsched_testing.conformance.isolated import KitRun

_FINDING: Final = 1
_EXAMPLES: Final = 50
_STYLE: Final = {"FAILED": "bold red", "skipped": "dim", "waived": "yellow"}


@click.command()
@click.argument("name", metavar="NAME[:DEVICE]")
@option("--seed", "Of all random choices. Default: 0.", at_least(0), 0)
@option(
    "--max-examples",
    f"Random programs to try. Default: {_EXAMPLES}.",
    at_least(1),
    _EXAMPLES,
    show_default=False,
)
@option(
    "--rules",
    "Rules or cases to check, e.g. 'EVT-*' or 'EVT-2,cpy1_*'. Default: all.",
    metavar="PATTERN,...",
)
@option(
    "--op",
    "Test one user-defined op, which MODULE registers, instead of the backend.",
    metavar="[MODULE:]NAME",
)
@click.option(
    "--isolate",
    is_flag=True,
    help="Run cases in a process of their own, which a faulty backend may end. Backends whose "
    "harness requests it do so without this option.",
)
@option(
    "--emit-c",
    "Write a program in C for each case that fails, of the library's calls, where a backend can.",
    click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
)
@click.option("-v", "--verbose", is_flag=True, help="Print each case when it is done.")
@spread_options
@json_option
@click.pass_obj
def conform(
    settings: Settings,
    /,
    name: str,
    seed: int,
    max_examples: int,
    rules: str | None,
    op: str | None,
    isolate: bool,
    emit_c: Path | None,
    verbose: bool,
    jobs: int,
    ray: str | None,
    journal: Path | None,
    as_json: bool,
) -> int:
    """Run the conformance kit on the backend NAME.

    Each rule of the contract has cases; one that fails is shown with the smallest program and with
    the command that replays it. The exit code is 1 if a rule is broken or a waiver is stale. Cases
    are shared out by --jobs, or by --ray, where each node tests its own device of that name.
    """
    from ggsched_testing.conformance import run_conformance
    from ggsched_testing.conformance.isolated import KitRun, isolated

    tested = None if op is None else named_op(op)  # registered before devices are opened
    folder = "" if emit_c is None else str(emit_c.resolve())
    kit = KitRun(name, settings.backends, seed, max_examples, op, folder)
    harness, how = kit.harness(), Spread(jobs, ray, journal)
    is_isolated = isolate or harness.is_isolated or emit_c is not None
    if emit_c is not None:
        emit_c.mkdir(parents=True, exist_ok=True)
    elsewhere = partial(isolated, kit)
    each = elsewhere if is_isolated else None
    report = run_conformance(
        harness,
        seed=seed,
        max_examples=max_examples,
        rules=rules,
        op=tested,
        verbose=_log_result if verbose else None,
        each=each if how.is_plain else partial(_shared, how, kit, is_isolated),
        anew=elsewhere,
    )
    if as_json:
        write_json(report.to_json())
    else:
        _show(report, kit)
    return 0 if report.ok else _FINDING


def _shared(
    how: Spread, kit: "KitRun", is_isolated: bool, cases: Sequence["Case"]
) -> Iterator["CaseResult"]:
    """Run cases elsewhere."""
    from ggsched_testing.conformance import CaseResult
    from ggsched_testing.conformance.isolated import isolated_outcome, outcome
    from ggsched_testing.conformance.report import CaseOutcome

    run = isolated_outcome if is_isolated else outcome
    names = [case.name for case in cases]
    work = f"conformance {kit}"
    outcomes = shown_results(how, partial(run, kit), names, keys=names, work=work, kind=CaseOutcome)
    for case, found in zip(cases, outcomes, strict=True):
        yield CaseResult(case, *found)


def _log_result(result: "CaseResult") -> None:
    messages().print(
        f"{result.verdict:11} {result.case.name} {seconds_text(result.seconds)}", soft_wrap=True
    )


def _show(report: "ConformanceReport", kit: "KitRun") -> None:
    from ggsched_testing.conformance.report import explain

    console = output()
    options = "" if kit.max_examples == _EXAMPLES else f" --max-examples {kit.max_examples}"
    options += "" if kit.op is None else f" --op {quote(kit.op)}"
    console.print(table(report))
    for result in report.findings:
        write_out("\n" + "\n".join(explain(result, report.name, options)) + "\n")
    for line in report.stale:
        console.print(f"\nstale waiver: {line}")
    console.print("\n" + conclusion(report))


def table(report: "ConformanceReport") -> Table:
    """Return a table with a row for each rule."""
    from ggsched_testing.conformance.report import summary

    grid = new_table("rule", ">cases", "~verdict")
    for rule, results in report.by_rule().items():
        text = summary(results)
        style = next((s for word, s in _STYLE.items() if word in text), "")
        grid.add_row(rule, str(len(results)), Text(text, style=style))
    return grid


def conclusion(report: "ConformanceReport") -> str:
    """Return the last line."""
    count = {v: sum(r.verdict == v for r in report.results) for v in ("pass", "fail", "skip")}
    waived = len(report.results) - sum(count.values())
    seconds = sum(r.seconds for r in report.results)
    broken = ", ".join(report.broken_rules)
    verdict = f"{report.name} breaks {broken}" if broken else f"{report.name} keeps the contract"
    parts = [f"{count['pass']} passed", f"{count['fail']} failed", f"{count['skip']} skipped"]
    parts += [f"{waived} waived"] if waived else []
    parts += [f"{len(report.stale)} stale waivers"] if report.stale else []
    return f"{verdict}: {', '.join(parts)} in {seconds_text(seconds)}"
