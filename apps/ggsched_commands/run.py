"""``ggsched run``: run a model file over devices."""

import logging
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
import numpy as np

from ggsched.cli.console import leave_line_open, messages, write_json
from ggsched.cli.options import (
    COMPUTE,
    PLANNING,
    at_least,
    json_option,
    option,
    record_of,
    record_options,
    settings_options,
    tokens_to_generate,
    whole_numbers,
    with_options,
)
from ggsched.cli.output_files import check_writable, output_file
from ggsched.config import Settings
from ggsched.errors import DeviceFault, SyncTimeout, UsageError
from ggsched.files.reading import read_prose
from ggsched.printable import results, write_out
from ggsched_commands.help_groups import GroupedCommand
from ggsched_commands.model_file import EXAMPLE, is_bundled
from ggsched_commands.model_options import (
    draft_options,
    memory_check_option,
    model_options,
    open_session,
)
from ggsched_commands.onnx_options import is_given, onnx_options
from ggsched_commands.progress import loading
from ggsched_commands.run_stats import measured_lines, pipeline_line, session_stats, stats_line
from ggsched_commands.trace_file import Wanted, account_json, is_perfetto, recording, trace_options
from ggsched_llm.default_devices import GENERATED
from ggsched_llm.generation import tokens_at_most
from ggsched_llm.sampling import Sampling
from ggsched_llm.stop_text import StopText

if TYPE_CHECKING:
    from ggsched.trace.recorder import Recorder
    from ggsched_llm.load import Model
    from ggsched_llm.session import Session

F = TypeVar("F", bound=Callable[..., Any])
_LOG: Final = logging.getLogger("ggsched")

_ESCAPED: Final = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"'}
_ESCAPE: Final = re.compile(r"""\\([ntr\\'"])""")


def _with_sampling(function: F) -> F:
    return with_options(function, [*record_options(Sampling)])


@click.command(cls=GroupedCommand)
@model_options
@option("-p --prompt prompt", "The prompt.")
@option("-f --file prompt_file", "Read the prompt from a file; - is stdin.", metavar="FILE")
@option(
    "--tokens",
    "The prompt as token ids, for files without a tokenizer.",
    whole_numbers,
    metavar="1,2,3",
)
@click.option(
    "-e",
    "--escape/--no-escape",
    "escapes",
    default=False,
    help=r"Read \n, \t, \r, \\, \' and \" in -p as what they stand for.",
)
@option(
    "-n --predict --n-predict n_predict",
    "Tokens to generate at most; -1: until the model ends the text or the context is full, which "
    "--context-shift prevents; -2: until it is full.",
    tokens_to_generate,
    "32",
    metavar="N",
)
@_with_sampling
@draft_options
@option(
    "-r --reverse-prompt --stop stops",
    "End the text at this string, which is not written. May be repeated.",
    metavar="TEXT",
    multiple=True,
)
@click.option(
    "--ignore-eos",
    "ignores_end",
    is_flag=True,
    help="Never choose a token that ends the text; -n or the context ends it.",
)
@click.option(
    "-cnv",
    "--chat",
    "--conversation",
    "chat",
    is_flag=True,
    help="Converse by the chat template: -p is the first question, lines of stdin the others.",
)
@click.option("-st", "--single-turn", is_flag=True, help="End --chat after the first answer.")
@option(
    "-sys --system-prompt --system system", "System prompt of --chat.", default="", metavar="TEXT"
)
@click.option(
    "--parse-special",
    is_flag=True,
    help="Take control tokens in the messages of --chat for such, not for plain text.",
)
@click.option(
    "--context-shift/--no-context-shift",
    "shifts",
    default=False,
    show_default=True,
    help="When the context is full, forget half of it and go on, instead of ending.",
)
@option(
    "--keep", "First tokens that --context-shift never forgets; -1 for the prompt.", at_least(-1), 0
)
@option(
    "--logits",
    "Write float32 logits (tokens fed, vocabulary): the prompt's, then each generated "
    "token's but the last.",
    click.Path(dir_okay=False, writable=True),
    metavar="FILE.npy",
)
@option(
    "--retries",
    "After a fault, or the loss of a machine, go on from the tokens so far with the devices "
    "that are there then; N is the number of attempts.",
    at_least(0),
    0,
)
@memory_check_option
@trace_options
@json_option
@click.pass_obj
@settings_options(*PLANNING, *COMPUTE)
@onnx_options
def run(
    settings: Settings,
    /,
    prompt: str | None,
    prompt_file: str | None,
    tokens: tuple[int, ...] | None,
    escapes: bool,
    n_predict: int,
    stops: tuple[str, ...],
    ignores_end: bool,
    chat: bool,
    single_turn: bool,
    system: str,
    parse_special: bool,
    shifts: bool,
    keep: int,
    logits: str | None,
    retries: int,
    checks_memory: bool,
    trace: str | None,
    html: str | None,
    report: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Run MODEL over one or several devices.

    A GGUF file generates text. Of an ONNX file the outputs are computed:
    `model.onnx --input NAME=FILE.npy`.
    """
    sampling = record_of(Sampling, options)
    sampling.check()
    prompt = _prompt(prompt, prompt_file, escapes=escapes)
    if chat:
        given = (tokens is not None, logits is not None, as_json, shifts, retries > 0)
        _refuse_with_chat(given)
    elif (prompt is None) == (tokens is None):
        hint = "or --chat for a conversation"
        if is_bundled(options["model"]):
            hint = f"the model adds: {EXAMPLE}"
        what = "give the prompt as -p TEXT, as -f FILE or as --tokens 1,2,3"
        raise UsageError(what, where="ggsched run", hint=hint)
    check_writable(logits, "the logits")  # a path that cannot be written must not cost the run
    if trace is not None and not is_perfetto(trace) and _are_elsewhere(options["devices"]):
        hint = "name it FILE.json, for Perfetto; --html and --report contain more"
        what = "the commands of several machines cannot be written as one trace"
        raise UsageError(what, where=trace, hint=hint)
    ids: list[int] = []

    def expected(model: "Model") -> tuple[int, int]:
        ids.extend(model.tokenizer.encode(prompt or "") if tokens is None else tokens)
        return len(ids), n_predict if n_predict >= 0 else GENERATED

    with (
        recording(
            Wanted(trace, html, report), f"ggsched run {Path(options['model']).name}"
        ) as recorder,
        loading(messages()) as progress,
        ExitStack() as stack,
    ):
        session, retries = _opened(
            lambda: open_session(
                options, settings, progress, recorder, expected=None if chat else expected
            ),
            retries,
        )
        stack.enter_context(session)
        ends = session.model.tokenizer.stop_ids
        sampling = replace(sampling, banned=ends if ignores_end else frozenset())
        if chat:
            from ggsched_commands.chat import Talk, converse

            most = n_predict if is_given("n_predict") else -1
            talk = Talk(system, prompt, most, sampling, stops, single_turn, parse_special)
            converse(session, talk, progress.stop)
            return
        _prepare(session, ids, recorder, logits is not None, checks_memory, as_json, sampling)
        fed: list[np.ndarray] = []
        stops_at = StopText(stops)
        generated = _generate(
            session,
            ids,
            tokens_at_most(n_predict, len(ids), session.options.n_ctx),
            sampling,
            fed,
            logits is not None,
            as_json,
            stops_at,
            progress.stop,
            keep if shifts else None,
            retries,
        )
        progress.stop()
        if logits is not None:
            _save(logits, fed)
        stats = session_stats(session)
        if as_json:
            written = _text(session, generated, stops)
            done = {"prompt_tokens": ids, "tokens": generated, "text": written, "stats": stats}
            if report and recorder is not None:
                done["account"] = account_json(recorder)
            write_json(done)
        else:
            pipelined = pipeline_line(stats, options["pipelining"])
            for line in filter(None, (stats_line(stats), *measured_lines(stats), pipelined)):
                messages().print(line, soft_wrap=False)


def _opened(opener: Callable[[], "Session"], retries: int) -> tuple["Session", int]:
    """Return a session, opened again after a fault, and how many faults may still come."""
    while True:
        try:
            return opener(), retries
        except (DeviceFault, SyncTimeout) as error:
            if not retries:
                raise
            _LOG.warning("%s; starting again", error.one_line())
        retries -= 1


def _are_elsewhere(devices: Sequence[str] | None) -> bool:
    return any("://" in name for name in devices or ())


def _prepare(
    session: "Session",
    ids: list[int],
    recorder: "Recorder | None",
    all_logits: bool,
    checks_memory: bool,
    as_json: bool,
    sampling: Any,
) -> None:
    """Check memory before anything is loaded; say which devices were chosen."""
    from ggsched_commands.run_setup import run_setup
    from ggsched_llm.memory_check import check_memory

    if checks_memory and ids:
        check_memory(session, len(ids), all_logits=all_logits, sampling=sampling)
    if recorder is not None:
        recorder.setup = run_setup(session, len(ids))
    if session.default_devices is not None and not as_json:
        messages().print(session.default_devices.reason(), soft_wrap=False)


def _generate(
    session: "Session",
    ids: list[int],
    n_predict: int,
    sampling: Any,
    fed: list[np.ndarray],
    wants_logits: bool,
    quiet: bool,
    cut: StopText,
    before_text: Callable[[], None],
    keep: int | None,
    retries: int,
) -> list[int]:
    """Generate, writing text (or ids, where there is no tokenizer) as it comes."""
    tokenizer = session.model.tokenizer
    decoder = tokenizer.stream() if tokenizer.has_text else None
    generated: list[int] = []
    for token in session.generate(
        ids,
        n_predict,
        sampling,
        stop=tokenizer.stop_ids,
        on_logits=fed.append if wants_logits else None,
        keep=keep,
        retries=retries,
    ):
        generated.append(token)
        piece = cut.push(decoder.push(token) if decoder else f"{token} ")
        if not quiet:
            before_text()
            write_out(piece)
            results().flush()
            leave_line_open(True)
        if cut.is_done:
            break
    if not quiet:
        rest = "" if cut.is_done else cut.push(decoder.finish() if decoder else "") + cut.finish()
        before_text()
        write_out(rest + "\n")
        leave_line_open(False)
    return generated


def _text(session: "Session", generated: list[int], stops: tuple[str, ...]) -> str | None:
    tokenizer = session.model.tokenizer
    if not tokenizer.has_text:
        return None
    cut = StopText(stops)
    text = cut.push(tokenizer.decode(generated))
    return text if cut.is_done else text + cut.finish()


def _prompt(text: str | None, path: str | None, *, escapes: bool) -> str | None:
    """Return the prompt that is given as a text or as a file."""
    if path is not None:
        if text is not None:
            raise UsageError("the prompt is given twice, as -p and as -f", where="ggsched run")
        return read_prose(path)
    if text is None or not escapes:
        return text
    return _ESCAPE.sub(lambda found: _ESCAPED[found[1]], text)


def _refuse_with_chat(given: Sequence[bool]) -> None:
    names = ("--tokens", "--logits", "--json", "--context-shift", "--retries")
    for is_used, name in zip(given, names, strict=True):
        if is_used:
            raise UsageError(f"{name} cannot be used with --chat", where="ggsched run")


def _save(path: str, fed: list[np.ndarray]) -> None:
    logits = np.concatenate(fed)
    with output_file(path, "the logits") as file:
        np.save(file, logits)
