"""Options of how devices compute; they win over the environment."""

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any, Final, TypeVar, cast

import click

from ggsched.cli.options import one_of, option, with_options
from ggsched.config import MAX_THREADS, Settings

F = TypeVar("F", bound=Callable[..., Any])


def threads(text: str) -> int | None:
    """Read a number of threads; -1 leaves it open."""
    if text == "-1":
        return None
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MAX_THREADS):
        raise click.BadParameter(f"{text!r} is not a number of threads from 1 to {MAX_THREADS}")
    return int(text)


COMPUTE_OPTIONS: Final = (
    option(
        "-t --threads",
        "Threads of the backend cpu that compute. "
        "[default: as GGSCHED_THREADS says, a physical core each]",
        threads,
        metavar="N",
    ),
    option(
        "--activations",
        "Round activations where weights are rounded more coarsely, or keep them. "
        "[default: as GGSCHED_ACTIVATIONS says; auto on cpu and cuda]",
        one_of("auto", "f32"),
    ),
)


def compute_options(function: F) -> F:
    """Add ``--threads`` and ``--activations``, below ``click.pass_obj``; they change settings."""

    @wraps(function)
    def command(settings: Settings, /, **given: Any) -> Any:
        return function(computed(settings, given), **given)

    return with_options(cast(F, command), COMPUTE_OPTIONS)


def computed(settings: Settings, given: dict[str, Any]) -> Settings:
    """Return settings with the values of these options, which are taken out of those given."""
    values = {name: given.pop(name) for name in ("threads", "activations")}
    return replace(settings, **{name: v for name, v in values.items() if v is not None})
