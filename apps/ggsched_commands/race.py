"""``ggsched race``: look for races of streams in a PyTorch program."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple, TextIO

import click
import msgspec

from ggsched.cli.console import write_json
from ggsched.cli.main import ENVIRONMENT
from ggsched.cli.options import json_option, option
from ggsched.cli.output_files import check_writable, output_file, refuse_overwriting
from ggsched.errors import UsageError
from ggsched.files.reading import read_argument
from ggsched.printable import results, write_err, write_out

if TYPE_CHECKING:
    from ggsched_race.program import ProgramOptions
    from ggsched_race.report import RaceReport

_FINDING = 1
_WRITTEN = click.Path(dir_okay=False, writable=True)


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("-m", "is_module", is_flag=True, help="SCRIPT is a module, as with 'python -m'.")
@click.option("--simulate", is_flag=True, help="Simulate CUDA on the host: no GPU is needed.")
@click.option(
    "--no-rows",
    is_flag=True,
    help="Do not read ids of indexing: faster, but rows of one table are not told apart.",
)
@click.option(
    "--threads",
    is_flag=True,
    help="Order threads of the host only by locks, queues, starts and ends.",
)
@click.option(
    "--cupti",
    is_flag=True,
    help="Record calls of the CUDA driver by any library; kernels may touch what they point into.",
)
@click.option("--live", is_flag=True, help="Check while SCRIPT runs; end it at the first race.")
@click.option("--advice", is_flag=True, help="Also name waits and events that nobody needs.")
@option(
    "-o --output output",
    "Write the trace; 'ggsched check' reads it too.",
    _WRITTEN,
    metavar="FILE",
)
@option("--suppressions", "File of patterns of frames whose findings are left out.", metavar="FILE")
@option("--sarif", "Write the findings as SARIF, for code hosts.", _WRITTEN, metavar="FILE")
@option(
    "--html",
    "Write the findings as a page, with the lines of the program.",
    _WRITTEN,
    metavar="FILE",
)
@json_option
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def race(
    script: str,
    args: tuple[str, ...],
    is_module: bool,
    simulate: bool,
    no_rows: bool,
    threads: bool,
    cupti: bool,
    live: bool,
    advice: bool,
    output: str | None,
    suppressions: str | None,
    sarif: str | None,
    html: str | None,
    as_json: bool,
) -> int:
    """Run SCRIPT with ARGS and look for races of its CUDA streams.

    SCRIPT is a PyTorch program, or a trace that -o has written (FILE.jsonl); traces of several
    ranks of one program are judged together, with the order of their collectives. {rank} in the
    FILE of -o stands for the rank. The program runs unchanged in a process of its own; its output
    goes where it always goes. The exit code is 1 if anything is found, else that of the program.
    Ctrl-C, SIGTERM and SIGHUP end the program; what was found until then is reported.
    """
    from ggsched_race.html_page import to_html
    from ggsched_race.report import RaceReport, check_program
    from ggsched_race.sarif import to_sarif
    from ggsched_race.watch import read_suppressions

    refuse_overwriting(click.get_current_context())
    output = output and output.replace("{rank}", os.environ.get("RANK", "0"))
    outputs: tuple[tuple[str | None, str, Callable[[bytes, RaceReport], bytes]], ...] = (
        (output, "the trace", lambda data, _: data),
        (sarif, "the SARIF log", lambda _, report: msgspec.json.encode(to_sarif(report))),
        (html, "the page", lambda _, report: to_html(report).encode()),
    )
    for path, what, _ in outputs:  # a path that cannot be written must not cost the run
        check_writable(path, what)
    if live and advice:
        raise UsageError(
            "--live gives no advice", where="--advice", hint="leave out one of the two"
        )
    if cupti and (simulate or no_rows or threads):
        extra = "--simulate" if simulate else "--no-rows" if no_rows else "--threads"
        raise UsageError(f"{extra} means nothing with --cupti", where=script, hint="leave it out")
    patterns = read_suppressions(suppressions) if suppressions is not None else ()
    if script.endswith(".jsonl") and not is_module:
        flags = {"--simulate": simulate, "--no-rows": no_rows, "--threads": threads}
        flags |= {"--cupti": cupti, "--live": live}
        odd = [flag for flag, is_given in flags.items() if is_given]
        odd += [argument for argument in args if not argument.endswith(".jsonl")]
        if args:  # traces of ranks
            odd += ["-o"] * (output is not None) + ["--advice"] * advice
        if odd:
            hint = "leave it out, or name a program"
            raise UsageError(f"{odd[0]} means nothing for a trace", where=script, hint=hint)
        run = _of_ranks((script, *args), patterns) if args else _Run(read_argument(script), 0, "")
    else:
        from ggsched_race.program import ProgramOptions

        options = ProgramOptions(is_module, not no_rows, simulate, threads, cupti)
        printed = sys.stderr if as_json else results()
        watched_for = patterns if live else None
        wants_trace = output is not None or not live
        run = _recorded(options, [script, *args], printed, watched_for, wants_trace)
    data, code, report = run.data, run.code, run.report
    if data is None:
        return code
    if report is None:
        report = check_program(
            data, script, advice=advice, suppressions=patterns, failure=run.failure
        )
    if as_json:
        write_json({"exit_code": code, **msgspec.to_builtins(report)})
    else:
        write_out(report.to_text())
    for path, what, content in outputs:
        if path is not None:
            with output_file(path, what) as file:
                file.write(content(data, report))
    return code if report.is_clean else _FINDING


def _of_ranks(files: Sequence[str], patterns: Sequence[str]) -> "_Run":
    """Return the report of the ranks of a program, of which each has a trace."""
    from ggsched_race.collectives import merged, rank_of
    from ggsched_race.report import check_program

    ranks = []
    for file in files:
        data = read_argument(file)
        ranks.append(rank_of(data, check_program(data, file, suppressions=patterns)))
    return _Run(b"", 0, "", merged(ranks))


class _Run(NamedTuple):
    """A program that was recorded.

    Attributes:
        data: Its trace; None of a program that was not begun, which has said why.
        code: Its exit code, 128 and more for a signal.
        failure: How it has failed, or "".
        report: What was found while it ran, if that was looked for.
    """

    data: bytes | None
    code: int
    failure: str
    report: "RaceReport | None" = None


def _recorded(
    options: "ProgramOptions",
    arguments: list[str],
    output: TextIO,
    live: Sequence[str] | None,
    wants_trace: bool,
) -> _Run:
    """Run a program that prints to a file.

    Args:
        live: Patterns of what to leave out while it is checked as it runs; None to check it later.
        wants_trace: Whether the trace is read, which may be long.

    Raises:
        UsageError: there is no such file.
    """
    from ggsched_race.live import follow
    from ggsched_race.recording import trace_of_journal

    if not options.is_module and not Path(arguments[0]).is_file():
        hint = "name a Python file, or a module behind -m"
        raise UsageError("no such file", where=arguments[0], hint=hint)
    with _signals_for_program() as begun, TemporaryDirectory(prefix="ggsched-race-") as folder:
        journal = Path(folder) / "journal"
        command = [sys.executable, "-m", "ggsched_race.program", str(journal)]
        command += [msgspec.json.encode(options).decode(), *arguments]
        with subprocess.Popen(command, stdout=output) as program:
            begun(program)
            check = follow(program, journal, live) if live is not None else None
            code = program.wait()
        ended = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        code = code if code >= 0 else 128 - code
        if not journal.exists() or not journal.stat().st_size:
            return _Run(None, code or ENVIRONMENT, ended)
        is_stopped = check is not None and check.finding is not None
        failure = ended if code and not is_stopped else ""
        data = trace_of_journal(read_argument(str(journal))) if wants_trace else b""
    if failure:
        write_err(f"ggsched race: {arguments[0]} ended with {ended}; what follows is until then\n")
    return _Run(data, code, failure, check.report(failure) if check is not None else None)


@contextmanager
def _signals_for_program() -> Iterator[Callable[[subprocess.Popen[bytes]], None]]:
    """Leave Ctrl-C to the program, and pass SIGTERM and SIGHUP on to it.

    Yields:
        What to call with the program as soon as it runs.
    """
    programs: list[subprocess.Popen[bytes]] = []
    is_early: list[bool] = []

    def terminate(number: int, _frame: FrameType | None) -> None:
        is_early.append(not programs)
        for program in programs:
            program.send_signal(number)

    def begun(program: subprocess.Popen[bytes]) -> None:
        programs.append(program)
        if any(is_early):
            program.terminate()

    before = {signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN)}
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
            before[number] = signal.signal(number, terminate)
    try:
        yield begun
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
