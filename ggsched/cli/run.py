"""``ggsched run``: run a model file over devices."""

import math
import os
import sys
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from ggsched.cli.console import messages, write_json
from ggsched.cli.model_options import ModelOptions, model_options, open_session
from ggsched.cli.options import json_option, whole_numbers
from ggsched.cli.planning_options import planning_options
from ggsched.cli.progress import loading
from ggsched.cli.run_stats import measured_lines, session_stats, stats_line
from ggsched.cli.trace_file import Wanted, account_json, recording, trace_options
from ggsched.config import Settings
from ggsched.errors import UsageError

if TYPE_CHECKING:
    from ggsched.models.session import Session


def _temperature(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise click.BadParameter(f"{text!r} is no number of 0 or more")
    return number


@click.command()
@model_options
@click.option("-p", "--prompt", "prompt", default=None, help="The prompt.")
@click.option(
    "--tokens",
    type=whole_numbers,
    default=None,
    metavar="1,2,3",
    help="The prompt as token ids, for files without a tokenizer.",
)
@click.option(
    "-n",
    "--predict",
    "--n-predict",
    "n_predict",
    type=click.IntRange(min=0),
    default=32,
    metavar="N",
    show_default=True,
    help="Tokens to generate at most.",
)
@click.option(
    "--temp",
    "temperature",
    type=_temperature,
    default=0.0,
    metavar="T",
    show_default=True,
    help="Temperature; 0 takes the likeliest token.",
)
@click.option("-s", "--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option(
    "--logits",
    type=click.Path(dir_okay=False, writable=True),
    default=None,
    metavar="FILE.npy",
    help="Write float32 logits (tokens fed, vocabulary): the prompt's, then each generated "
    "token's but the last.",
)
@trace_options
@json_option
@click.pass_obj
@planning_options
def run(
    settings: Settings,
    /,
    prompt: str | None,
    tokens: tuple[int, ...] | None,
    n_predict: int,
    temperature: float,
    seed: int,
    logits: str | None,
    trace: str | None,
    html: str | None,
    report: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Generate text with MODEL, a GGUF file, over one or several devices."""
    from ggsched.models.sampling import Sampling

    if (prompt is None) == (tokens is None):
        raise UsageError("give the prompt as -p TEXT or as --tokens 1,2,3", where="ggsched run")
    if logits is not None:
        _check_writable(logits)  # a path that cannot be written must not cost the run
    with (
        recording(Wanted(trace, html, report), "ggsched run") as recorder,
        loading(messages()) as progress,
        open_session(ModelOptions(**options), settings, progress, recorder) as session,
    ):
        ids = list(tokens) if tokens is not None else session.model.tokenizer.encode(prompt or "")
        sampling = Sampling(temperature, seed)
        fed: list[np.ndarray] = []
        generated = _generate(session, ids, n_predict, sampling, fed, logits is not None, as_json)
        if logits is not None:
            _save(logits, fed)
        stats = session_stats(session)
        if as_json:
            text = _text(session, generated)
            done = {"prompt_tokens": ids, "tokens": generated, "text": text, "stats": stats}
            if report and recorder is not None:
                done["account"] = account_json(recorder)
            write_json(done)
        else:
            for line in (stats_line(stats), *measured_lines(stats)):
                messages().print(line, soft_wrap=False)


def _generate(
    session: "Session",
    ids: list[int],
    n_predict: int,
    sampling: Any,
    fed: list[np.ndarray],
    wants_logits: bool,
    quiet: bool,
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
    ):
        generated.append(token)
        if not quiet:
            sys.stdout.write(decoder.push(token) if decoder else f"{token} ")
            sys.stdout.flush()
    if not quiet:
        sys.stdout.write((decoder.finish() if decoder else "") + "\n")
    return generated


def _text(session: "Session", generated: list[int]) -> str | None:
    tokenizer = session.model.tokenizer
    return tokenizer.decode(generated) if tokenizer.has_text else None


def _save(path: str, fed: list[np.ndarray]) -> None:
    try:
        with open(path, "wb") as file:
            np.save(file, np.concatenate(fed))
    except OSError as error:
        raise _cannot_write(path, error) from error


def _check_writable(path: str) -> None:
    """Refuse a path that cannot be written, and leave what is there as it is."""
    is_new = not os.path.lexists(path)
    try:
        with open(path, "ab"):
            pass
        if is_new:
            os.remove(path)
    except OSError as error:
        raise _cannot_write(path, error) from error


def _cannot_write(path: str, error: OSError) -> UsageError:
    return UsageError("cannot write the logits", where=path, why=error.strerror or str(error))
