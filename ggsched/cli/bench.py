"""``ggsched bench``: tokens per second of a model file, in the manner of llama-bench."""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from ggsched.cli.bench_compare import compare_files
from ggsched.cli.compute_options import compute_options
from ggsched.cli.console import write_json
from ggsched.cli.help_groups import GroupedCommand
from ggsched.cli.interruption import is_interruption, tell_interruption
from ggsched.cli.model_options import (
    ModelOptions,
    memory_check_option,
    model_options,
    open_session,
)
from ggsched.cli.options import at_least, json_option, one_of, option, whole_numbers
from ggsched.cli.planning_options import planning_options
from ggsched.config import Settings
from ggsched.errors import UsageError
from ggsched.printable import results, write_out

if TYPE_CHECKING:
    from ggsched.models.session import Session
    from ggsched.models.speed import Speed, SpeedTest

_COLUMNS: Final = ("model", "size", "devices", "ngl", "n_ubatch", "test", "t/s", "deviation")


@click.command(cls=GroupedCommand)
@model_options
@option(
    "-p --n-prompt prompts",
    "Lengths of prompts; 0 for none.",
    whole_numbers,
    "512",
    metavar="N,...",
)
@option(
    "-n --n-gen generations",
    "Numbers of tokens to generate; 0 for none.",
    whole_numbers,
    "128",
    metavar="N,...",
)
@option("-d --n-depth depths", "Tokens in the cache before.", whole_numbers, "0", metavar="N,...")
@option(
    "-npl --n-parallel parallels",
    "Sequences that are fed together, of which each has its tokens and its depth.",
    whole_numbers,
    "1",
    metavar="N,...",
)
@option("-r --repetitions", "How often each test is measured.", at_least(1), 5)
@option("-o --output form", "Form of the results.", one_of("md", "json", "csv"), "md")
@click.option(
    "--compare",
    nargs=2,
    metavar="A.json B.json",
    is_eager=True,
    expose_value=False,
    callback=compare_files,
    help="Measure nothing: say how much faster B is than A, both written with -o json.",
)
@memory_check_option
@json_option
@click.pass_obj
@planning_options
@compute_options
def bench(
    settings: Settings,
    /,
    prompts: tuple[int, ...],
    generations: tuple[int, ...],
    depths: tuple[int, ...],
    parallels: tuple[int, ...],
    repetitions: int,
    checks_memory: bool,
    form: Literal["md", "json", "csv"],
    as_json: bool,
    **options: Any,
) -> None:
    """Measure how fast MODEL reads prompts and generates.

    Tests are called pp for prompts and tg for generation, rates are tokens per second. Each test
    runs once before it is measured. Tokens are random, and none is sampled. After Ctrl-C the tests
    that are done are written, in each form.
    """
    from ggsched.models.memory_check import check_memory
    from ggsched.models.speed import SpeedTest

    kinds: tuple[tuple[Literal["pp", "tg"], tuple[int, ...]], ...]
    kinds = (("pp", prompts), ("tg", generations))
    tests = [
        SpeedTest(kind, n, d, count)
        for kind, lengths in kinds
        for n in lengths
        for d in depths
        for count in parallels
        if n and count
    ]
    if not tests:
        raise UsageError("there is nothing to measure", hint="give -p or -n a number above 0")
    wanted = ModelOptions(**options)
    most = max(test.parallel for test in tests)
    longest = most * max(test.depth + test.n_tokens for test in tests)
    if not wanted.n_ctx:
        wanted = replace(wanted, n_ctx=-(-longest // 256) * 256)
    if longest > wanted.n_ctx:
        why = f"the longest test has {longest}"
        raise UsageError(
            f"the context holds {wanted.n_ctx} tokens", why=why, hint="use a larger -c"
        )
    with open_session(wanted, settings, n_parallel=most) as session:
        if checks_memory:
            check_memory(session, max(max(t.depth, t.n_tokens) * t.parallel for t in tests))
        facts = _facts(session, wanted)
        speeds = _Measurement(session, tests, repetitions)
        if as_json or form == "json":
            write_json([_json(facts, speed) for speed in speeds])
        elif form == "csv":
            _write_csv(facts, speeds)
        else:
            _write_table(facts, speeds)
        if speeds.is_interrupted:
            done = speeds.done
            tell_interruption(f"{done} of {len(tests)} tests are done, not {tests[done].name}")
            raise KeyboardInterrupt


@dataclass(slots=True)
class _Measurement:
    """Speeds of tests, up to Ctrl-C.

    Attributes:
        session: What is measured.
        tests: In the order of the rows.
        repetitions: Of each.
        done: Tests that were measured.
        is_interrupted: Whether the user did not wait for the others.
    """

    session: "Session"
    tests: "Sequence[SpeedTest]"
    repetitions: int
    done: int = 0
    is_interrupted: bool = False

    def __iter__(self) -> "Iterator[Speed]":
        """Yield the speed of each test; end when interrupted."""
        from ggsched.models.speed import measure

        speeds = measure(self.session, self.tests, self.repetitions)
        while self.done < len(self.tests):
            try:
                speed = next(speeds)
            except BaseException as error:
                if not is_interruption(error):
                    raise
                self.is_interrupted = True
                return
            self.done += 1
            yield speed


def _facts(session: "Session", options: ModelOptions) -> dict[str, Any]:
    """Return what is the same in all tests."""
    hp = session.model.hparams
    return {
        "model": f"{hp.arch} {hp.name}".strip(),
        "size": session.model.weight_nbytes(),
        "devices": ",".join(d.name for d in session.scheduler.topology.devices),
        "ngl": "all" if options.n_gpu_layers is None else options.n_gpu_layers,
        "n_ubatch": session.options.n_ubatch,
    }


def _json(facts: dict[str, Any], speed: "Speed") -> dict[str, Any]:
    return {
        **facts,
        "test": speed.test.name,
        "n_prompt": speed.test.n_tokens if speed.test.kind == "pp" else 0,
        "n_gen": speed.test.n_tokens if speed.test.kind == "tg" else 0,
        "n_depth": speed.test.depth,
        "avg_ts": speed.mean,
        "stddev_ts": speed.deviation,
        "samples_ts": list(speed.rates),
    }


def _write_table(facts: dict[str, Any], speeds: _Measurement) -> None:
    """Write a Markdown table, each row as soon as it is known."""
    from ggsched.units import nbytes_text

    heads = _COLUMNS[:-1]
    known = [str(facts["model"]), nbytes_text(facts["size"]), *(str(facts[k]) for k in heads[2:5])]
    widths = [max(len(head), len(cell)) for head, cell in zip(heads, known, strict=False)]
    widths += [max(len(test.name) for test in speeds.tests), 20]

    def write(cells: list[str]) -> None:
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        write_out(f"| {' | '.join(padded)} |\n")
        results().flush()

    write(list(heads))
    write(["-" * width for width in widths])
    for speed in speeds:
        write([*known, speed.test.name, f"{speed.mean:.2f} \u00b1 {speed.deviation:.2f}"])


def _write_csv(facts: dict[str, Any], speeds: _Measurement) -> None:
    def write(cells: list[Any]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow(cells)
        write_out(text.getvalue())
        results().flush()

    write(list(_COLUMNS))
    for speed in speeds:
        write([*facts.values(), speed.test.name, f"{speed.mean:.4f}", f"{speed.deviation:.4f}"])
