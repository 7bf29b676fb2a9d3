"""``ggsched conform``: put a backend to the contract."""

from typing import TYPE_CHECKING, Final

import click
from rich.table import Table
from rich.text import Text

from ggsched.cli.console import messages, output, write_json
from ggsched.cli.options import json_option
from ggsched.cli.user_ops import named_op
from ggsched.config import Settings
from ggsched.printable import write_out

if TYPE_CHECKING:
    from ggsched.testing.conformance import CaseResult, ConformanceReport

_FINDING: Final = 1
_EXAMPLES: Final = 50
_STYLE: Final = {"FAILED": "bold red", "skipped": "dim", "waived": "yellow"}


@click.command()
@click.argument("name", metavar="NAME[:DEVICE]")
@click.option(
    "--seed", type=click.IntRange(0), default=0, help="Of all random choices. Default: 0."
)
@click.option(
    "--max-examples",
    type=click.IntRange(1),
    default=_EXAMPLES,
    help=f"Random programs to try. Default: {_EXAMPLES}.",
)
@click.option(
    "--rules",
    default=None,
    metavar="PATTERN,...",
    help="Rules or cases to check, e.g. 'EVT-*' or 'EVT-2,cpy1_*'. Default: all.",
)
@click.option(
    "--op",
    default=None,
    metavar="[MODULE:]NAME",
    help="Test one user-defined op, which MODULE registers, instead of the backend.",
)
@click.option("-v", "--verbose", is_flag=True, help="Tell about each case as it comes.")
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
    verbose: bool,
    as_json: bool,
) -> int:
    """Run the conformance kit on the backend NAME.

    Each rule of the contract has cases; one that fails is shown with the smallest program and with
    the command that replays it. The exit code is 1 if a rule is broken or a waiver is stale.
    """
    from ggsched.testing.conformance import Harness, run_conformance

    tested = None if op is None else named_op(op)  # registered before devices are opened
    report = run_conformance(
        Harness.named(name, allow=settings.backends),
        seed=seed,
        max_examples=max_examples,
        rules=rules,
        op=tested,
        verbose=_tell if verbose else None,
    )
    if as_json:
        write_json(report.to_json())
    else:
        _show(report)
    return 0 if report.ok else _FINDING


def _tell(result: "CaseResult") -> None:
    messages().print(
        f"{result.verdict:11} {result.case.name} {result.seconds:.2f} s", soft_wrap=True
    )


def _show(report: "ConformanceReport") -> None:
    from ggsched.testing.conformance.report import explain

    console = output()
    console.print(table(report))
    for result in report.findings:
        write_out("\n" + "\n".join(explain(result, report.name)) + "\n")
    for line in report.stale:
        console.print(f"\nstale waiver: {line}")
    console.print("\n" + conclusion(report))


def table(report: "ConformanceReport") -> Table:
    """Return a table with a row for each rule."""
    from ggsched.testing.conformance.report import summary

    grid = Table(box=None, pad_edge=False, header_style="bold", expand=False)
    grid.add_column("rule", no_wrap=True)
    grid.add_column("cases", justify="right", no_wrap=True)
    grid.add_column("verdict", overflow="fold")
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
    return f"{verdict}: {', '.join(parts)} in {seconds:.1f} s"
