"""``--jobs``, ``--ray`` and ``--journal``: where independent pieces of work run."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click

from ggsched.cli.console import messages
from ggsched.cli.options import at_least, option, with_options
from ggsched_commands.progress import loading
from ggsched_testing.spread import Spread

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
R = TypeVar("R")


def shown_results(
    spread: Spread, function: Callable[[T], R], items: Sequence[T], **work: Any
) -> Iterator[R]:
    """Yield what ``Spread.results`` does; a terminal shows how far it is."""
    with loading(messages(), "starting") as busy:
        shown = replace(spread, progress=lambda there, of: busy.stage(f"{there} of {of}"))
        yield from shown.results(function, items, **work)


def spread_options(command: F) -> F:
    """Add the options; the command gets ``jobs``, ``ray`` and ``journal``."""
    options = (
        option("--jobs", "Processes of this machine.", at_least(1), 1),
        option(
            "--ray",
            "Run on the nodes of a Ray cluster; 'auto' is that of this machine or of RAY_ADDRESS.",
            metavar="ADDRESS",
        ),
        option(
            "--journal",
            "Keep results in this file as they come, and go on from those that it has.",
            click.Path(dir_okay=False, path_type=Path),
            metavar="FILE",
        ),
    )
    return with_options(command, options)


def text_digest(texts: Iterable[str]) -> str:
    """Return a short hash of texts."""
    return hashlib.blake2b("\n".join(texts).encode(), digest_size=8).hexdigest()
