"""``ggsched perplexity``: how well a model predicts a text, with error bars."""

from math import isfinite
from typing import Any

import click

from ggsched.cli.console import messages, write_json
from ggsched.cli.options import (
    COMPUTE,
    PLANNING,
    json_option,
    option,
    settings_options,
    whole_numbers,
)
from ggsched.config import Settings
from ggsched.errors import UsageError
from ggsched.files.reading import read_prose
from ggsched.printable import results, write_out
from ggsched_commands.help_groups import GroupedCommand
from ggsched_commands.model_options import memory_check_option, model_options, open_session
from ggsched_commands.progress import loading


@click.command(cls=GroupedCommand)
@model_options
@option("-f --file text_file", "The text; - is stdin.", metavar="FILE")
@option(
    "--tokens",
    "The text as token ids, for files without a tokenizer.",
    whole_numbers,
    metavar="1,2,3",
)
@memory_check_option
@json_option
@click.pass_obj
@settings_options(*PLANNING, *COMPUTE)
def perplexity(
    settings: Settings,
    /,
    text_file: str | None,
    tokens: tuple[int, ...] | None,
    checks_memory: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure the perplexity of a text, and its standard error.

    The text is cut into parts of -c tokens; in each the second half is predicted, as llama.cpp
    does. Devices, splits and streams must not change the result by more than rounding.
    """
    from ggsched_llm import perplexity as measured
    from ggsched_llm.memory_check import check_memory

    if (text_file is None) == (tokens is None):
        raise UsageError(
            "give the text as -f FILE or as --tokens 1,2,3", where="ggsched perplexity"
        )
    text = read_prose(text_file) if text_file is not None else ""
    with (
        loading(messages()) as progress,
        open_session(options, settings, progress) as session,
    ):
        tokenizer = session.model.tokenizer
        ids = list(tokens) if tokens is not None else tokenizer.encode(text)
        vocab = tokenizer.vocab if tokenizer.has_text else None
        first = vocab.special["bos"] if vocab is not None and vocab.add_bos else None
        if checks_memory and len(ids) >= session.options.n_ctx:
            check_memory(session, session.options.n_ctx)
        found = None
        for found in measured.perplexity(session, ids, first=first):
            if not as_json:
                progress.stop()
                write_out(f"[{found.parts}] {found.value:.4f}\n")
                results().flush()
        assert found is not None  # a text without parts raises
        if as_json:
            write_json(
                {
                    "perplexity": found.value if isfinite(found.value) else None,
                    "error": found.error if isfinite(found.error) else None,
                    "parts": found.parts,
                    "tokens": found.n_tokens,
                    "n_ctx": session.options.n_ctx,
                }
            )
        else:
            write_out(f"perplexity {found.value:.4f} \u00b1 {found.error:.4f}, ")
            write_out(f"{found.n_tokens} tokens predicted\n")
