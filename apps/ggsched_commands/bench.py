"""``ggsched bench``: tokens per second of a model file, in the manner of llama-bench."""

import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import click

from ggsched.cli.console import write_json
from ggsched.cli.interruption import is_interruption, tell_interruption
from ggsched.cli.options import (
    COMPUTE,
    PLANNING,
    at_least,
    changed,
    json_option,
    one_of,
    option,
    settings_fields,
    settings_options,
    whole_numbers,
    with_options,
)
from ggsched.config import Settings
from ggsched.errors import UsageError
from ggsched.printable import results, write_out
from ggsched_commands.bench_compare import compare_files
from ggsched_commands.help_groups import GroupedCommand
from ggsched_commands.model_options import (
    draft_options,
    memory_check_option,
    model_options,
    open_session,
)

if TYPE_CHECKING:
    from ggsched_llm.session import Session
    from ggsched_llm.speed import Speed, SpeedTest

F = TypeVar("F", bound=Callable[..., Any])

_VARIED: Final = (
    "threads",
    "n_gpu_layers",
    "n_cpu_moe",
    "n_batch",
    "n_ubatch",
    "cache_type_k",
    "cache_type_v",
)
"""Options whose values are measured each, as those of lengths are."""
_LENGTHS: Final = ("prompts", "generations", "depths", "parallels")
_RANGE: Final = re.compile(r"([0-9]{1,18})-([0-9]{1,18})(?:([+*])([0-9]{1,18}))?")
_MAX_VALUES: Final = 1000
"""Of one range."""


def _length(text: str) -> int:
    """Read a number of tokens or sequences."""
    (number,) = whole_numbers(text)
    return number


def _pair(text: str) -> tuple[int, int]:
    """Read ``512,128``: tokens of a prompt and tokens that are generated behind it."""
    numbers = whole_numbers(text)
    if len(numbers) != 2:
        raise click.BadParameter(f"{text!r} is not two numbers such as 512,128")
    return numbers[0], numbers[1]


def _with_compute_options(function: F) -> F:
    return with_options(function, settings_fields(*COMPUTE))


@click.command(cls=GroupedCommand)
@model_options
@option(
    "-p --n-prompt prompts",
    "Lengths of prompts; 0 for none.",
    _length,
    "512",
    metavar="N,...",
)
@option(
    "-n --n-gen generations",
    "Numbers of tokens to generate; 0 for none.",
    _length,
    "128",
    metavar="N,...",
)
@option(
    "-pg pairs",
    "A prompt and tokens generated behind it, measured together. May be repeated.",
    _pair,
    metavar="N,N",
    multiple=True,
)
@option("-d --n-depth depths", "Tokens in the cache before.", _length, "0", metavar="N,...")
@option(
    "-npl --n-parallel parallels",
    "Sequences that are fed together, of which each has its tokens and its depth.",
    _length,
    "1",
    metavar="N,...",
)
@draft_options
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
@settings_options(*PLANNING)
@_with_compute_options
def bench(
    settings: Settings,
    /,
    prompts: tuple[int, ...],
    generations: tuple[int, ...],
    pairs: tuple[tuple[int, int], ...],
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
    runs until nothing is set up any more before it is measured. Tokens are random, and none is
    sampled; with -md tg is the text that follows, since a draft predicts no other. After Ctrl-C the
    tests that are done are written, in each form; -o json has each repetition.

    Several values of -t, -ngl, -ncmoe, -b, -ub, -ctk and -ctv, as in -t 1,2, are measured each.
    Numbers may be ranges: 1-4 is 1,2,3,4, 0-96+32 is 0,32,64,96, and 1-8*2 is 1,2,4,8. An option
    that is given several times adds values.
    """
    from ggsched_llm.speed import SpeedTest

    sizes = [*((n, 0) for n in prompts), *((0, n) for n in generations), *pairs]
    tests = [
        SpeedTest(n_prompt, n_gen, d, count)
        for n_prompt, n_gen in sizes
        for d in depths
        for count in parallels
        if n_prompt + n_gen and count
    ]
    if not tests:
        raise UsageError("there is nothing to measure", hint="give -p or -n a number above 0")
    longest = max(test.parallel for test in tests) * max(t.depth + t.n_tokens for t in tests)
    if 0 < options["n_ctx"] < longest:
        why = f"the longest test has {longest}"
        raise UsageError(
            f"the context holds {options['n_ctx']} tokens", why=why, hint="use a larger -c"
        )
    speeds = _Measurement(settings, options, tests, repetitions, longest, checks_memory)
    if as_json or form == "json":
        write_json([_json(facts, speed) for facts, speed in speeds if speed is not None])
    elif form == "csv":
        _write_csv(speeds)
    else:
        _write_table(speeds)
    if speeds.is_interrupted:
        done, of = speeds.done, len(tests) * len(speeds.variants)
        name = tests[done % len(tests)].name
        tell_interruption(f"{done} of {of} tests are done, not {name}")
        raise KeyboardInterrupt


class _Several(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.5
    """Values of a type, with commas between, and ranges of whole numbers."""

    def __init__(self, of: "click.ParamType[Any]") -> None:
        self.of, self.name = of, of.name

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str | None:
        """Return the other type's."""
        return self.of.get_metavar(param, ctx)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Any, ...]:
        """Read the values."""
        parts = [part for text in str(value).split(",") for part in _in_range(text)]
        return tuple(self.of.convert(part, param, ctx) for part in parts)


def _in_range(text: str) -> list[str]:
    """Return the numbers of a range such as ``1-8*2``; a text that is not one as it is."""
    found = _RANGE.fullmatch(text.strip())
    if found is None:
        return [text]
    number, last = int(found[1]), int(found[2])
    step, is_factor = int(found[4] or 1), found[3] == "*"
    if number > last or step < 1 or (is_factor and (step < 2 or not number)):
        raise click.BadParameter(f"{text!r} does not go up; write e.g. 1-4, 0-96+32 or 1-8*2")
    numbers = []
    while number <= last:
        numbers.append(str(number))
        number = number * step if is_factor else number + step
        if len(numbers) > _MAX_VALUES:
            raise click.BadParameter(f"{text!r} has more than {_MAX_VALUES} values")
    return numbers


def _joined(_ctx: click.Context, _param: click.Parameter, given: Any) -> tuple[Any, ...] | None:
    """Return the values of an option that may be given several times."""
    return tuple(value for values in given for value in values) or None


for _param in bench.params:
    if _param.name in (*_VARIED, *_LENGTHS):
        _param.type = _Several(_param.type)
        _param.multiple = True
        _param.default = None if _param.default is None else (_param.default,)
        _param.callback = _joined


@dataclass(slots=True)
class _Measurement:
    """Speeds of tests, up to Ctrl-C.

    Attributes:
        settings: Where no option says otherwise.
        options: Values of the options of model and computation.
        tests: In the order of the rows.
        n_ctx: Tokens that the longest test has.
        checks_memory: Whether what exceeds the memory is refused.
        variants: Values of the options of which several are given, of one session each.
        done: Tests that were measured.
        is_interrupted: Whether the user did not wait for the others.
    """

    settings: Settings
    options: dict[str, Any]
    tests: "Sequence[SpeedTest]"
    repetitions: int
    n_ctx: int
    checks_memory: bool
    variants: list[dict[str, Any]] = field(init=False)
    done: int = 0
    is_interrupted: bool = False

    def __post_init__(self) -> None:
        values = [self.options[name] or (None,) for name in _VARIED]
        every = [dict(zip(_VARIED, chosen, strict=True)) for chosen in product(*values)]
        alike = [v for v in every if v["cache_type_k"] == v["cache_type_v"]]
        self.variants = alike or every  # keys and values have one type

    @property
    def varied(self) -> tuple[str, ...]:
        """Options of which several values are given, and that no other column shows."""
        shown = ("n_gpu_layers", "n_ubatch")
        return tuple(n for n in _VARIED if n not in shown and len(self.options[n] or ()) > 1)

    def __iter__(self) -> "Iterator[tuple[dict[str, Any], Speed | None]]":
        """Yield the facts of each session, then with them the speeds; end when interrupted."""
        try:
            for variant in self.variants:
                yield from self._measured(variant)
        except BaseException as error:
            if not is_interruption(error):
                raise
            self.is_interrupted = True

    def _measured(self, variant: dict[str, Any]) -> "Iterator[tuple[dict[str, Any], Speed | None]]":
        from ggsched_llm.memory_check import check_memory
        from ggsched_llm.speed import measure

        given = self.options | variant
        settings = changed(self.settings, given, COMPUTE)
        most, n_ctx = max(t.parallel for t in self.tests), -(-self.n_ctx // 256) * 256
        with open_session(given, settings, n_parallel=most, n_ctx=n_ctx) as session:
            if self.checks_memory:
                longest = max(max(t.depth, t.n_tokens) * t.parallel for t in self.tests)
                check_memory(session, longest)
            facts = {**_facts(session, given), **{n: variant[n] for n in self.varied}}
            yield facts, None
            for speed in measure(session, self.tests, self.repetitions):
                self.done += 1
                yield {**facts, "n_ubatch": session.batches.step}, speed


def _facts(session: "Session", given: dict[str, Any]) -> dict[str, Any]:
    """Return what is the same in all tests."""
    hp = session.model.hparams
    return {
        "model": f"{hp.arch} {hp.name}".strip(),
        "size": session.model.weight_nbytes(),
        "devices": ",".join(d.name for d in session.scheduler.topology.devices),
        "ngl": "all" if given["n_gpu_layers"] is None else given["n_gpu_layers"],
        "n_ubatch": session.batches.step,
    }


def _json(facts: dict[str, Any], speed: "Speed") -> dict[str, Any]:
    return {
        **facts,
        "test": speed.test.name,
        "n_prompt": speed.test.n_prompt,
        "n_gen": speed.test.n_gen,
        "n_depth": speed.test.depth,
        "avg_ts": speed.mean,
        "stddev_ts": speed.deviation,
        "samples_ts": list(speed.rates),
        **({"drafted": speed.drafted[0], "accepted": speed.drafted[1]} if speed.drafted[0] else {}),
    }


def _write_table(speeds: _Measurement) -> None:
    """Write a Markdown table, each row as soon as it is known."""
    from ggsched.units import nbytes_text

    widths: list[int] = []

    def write(cells: list[str]) -> None:
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        write_out(f"| {' | '.join(padded)} |\n")
        results().flush()

    for facts, speed in speeds:
        known = [str(value) for value in (facts | {"size": nbytes_text(facts["size"])}).values()]
        if not widths:
            heads = [*facts, "test", "t/s"]
            cells = [*known, max((t.name for t in speeds.tests), key=len), 20 * "-"]
            widths += [max(len(head), len(cell)) for head, cell in zip(heads, cells, strict=True)]
            write(heads)
            write(["-" * width for width in widths])
        if speed is not None:
            mean = f"{speed.mean:.2f} \u00b1 {speed.deviation:.2f}"
            write([*known, speed.test.name, mean])


def _write_csv(speeds: _Measurement) -> None:
    def write(cells: list[Any]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow(cells)
        write_out(text.getvalue())
        results().flush()

    has_head = False
    for facts, speed in speeds:
        if not has_head:
            write([*facts, "test", "t/s", "deviation"])
            has_head = True
        if speed is not None:
            write([*facts.values(), speed.test.name, f"{speed.mean:.4f}", f"{speed.deviation:.4f}"])
