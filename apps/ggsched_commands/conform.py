"""``ggsched conform``: put a backend to the contract."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import lru_cache, partial
from multiprocessing import get_context
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Final, NamedTuple

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
    from ggsched_testing.conformance import Case, CaseResult, ConformanceReport, ConformanceRunner
    from ggsched_testing.conformance.report import CaseOutcome

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
    from ggsched_testing.conformance import Harness, run_conformance

    tested = None if op is None else named_op(op)  # registered before devices are opened
    kit = KitRun(name, settings.backends, seed, max_examples, op)
    how = Spread(jobs, ray, journal)
    report = run_conformance(
        Harness.named(name, allow=settings.backends),
        seed=seed,
        max_examples=max_examples,
        rules=rules,
        op=tested,
        verbose=_log_result if verbose else None,
        each=None if how.is_plain else partial(_shared, how, kit),
        anew=partial(_in_fresh_processes, kit),
    )
    if as_json:
        write_json(report.to_json())
    else:
        _show(report, kit)
    return 0 if report.ok else _FINDING


class KitRun(NamedTuple):
    """What a process needs in order to run cases of the kit.

    Attributes:
        name: Of the device.
        backends: Those that may be used; None for all.
        seed: Of all random choices.
        max_examples: Random programs to try.
        op: As in ``--op``.
    """

    name: str
    backends: tuple[str, ...] | None
    seed: int
    max_examples: int
    op: str | None


def _shared(how: Spread, kit: KitRun, cases: Sequence["Case"]) -> Iterator["CaseResult"]:
    """Run cases elsewhere."""
    from ggsched_testing.conformance import CaseResult
    from ggsched_testing.conformance.report import CaseOutcome

    names = [case.name for case in cases]
    work = f"conformance {kit}"
    outcomes = shown_results(
        how, partial(_outcome, kit), names, keys=names, work=work, kind=CaseOutcome
    )
    for case, found in zip(cases, outcomes, strict=True):
        yield CaseResult(case, *found)


def _in_fresh_processes(kit: KitRun, cases: Sequence["Case"]) -> Iterator["CaseResult"]:
    """Run cases in a process of their own, and in another one whenever the device is lost."""
    from ggsched_testing.conformance import CaseResult
    from ggsched_testing.conformance.report import DEVICE_LOST

    pool: ProcessPoolExecutor | None = None
    gone = ""
    try:
        for case in cases:
            if gone:
                yield CaseResult(case, "skip", gone, seed=kit.seed)
                continue
            pool = pool or ProcessPoolExecutor(1, get_context("spawn"))
            try:
                result = CaseResult(case, *pool.submit(_outcome, kit, case.name).result())
            except BrokenProcessPool:
                reason = f"{DEVICE_LOST}: the process ended"
                result = CaseResult(case, "fail", reason, seed=kit.seed)
            except Exception as error:  # what opening a device raises, as without processes
                gone = f"{DEVICE_LOST}, and no new process can open it: {error}"
                result = CaseResult(case, "skip", gone, seed=kit.seed)
            yield result
            if result.is_lost:
                pool.shutdown()
                pool = None
    finally:
        if pool is not None:
            pool.shutdown()


def _outcome(kit: KitRun, case: str) -> "CaseOutcome":
    from ggsched_testing.conformance.report import CaseOutcome

    runner, cases = _runner(kit)
    found = runner.run(cases[case])
    return CaseOutcome(found.verdict, found.reason, found.program, found.seed, found.seconds)


@lru_cache(maxsize=1)
def _runner(kit: KitRun) -> tuple["ConformanceRunner", dict[str, "Case"]]:
    from ggsched_testing.conformance import ConformanceRunner, Harness, all_cases
    from ggsched_testing.conformance.cases_user_op import user_op_cases

    cases = all_cases() if kit.op is None else user_op_cases(named_op(kit.op))
    harness = Harness.named(kit.name, allow=kit.backends)
    return ConformanceRunner(harness, kit.seed, kit.max_examples), {c.name: c for c in cases}


def _log_result(result: "CaseResult") -> None:
    messages().print(
        f"{result.verdict:11} {result.case.name} {seconds_text(result.seconds)}", soft_wrap=True
    )


def _show(report: "ConformanceReport", kit: KitRun) -> None:
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
