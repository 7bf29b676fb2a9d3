"""Options of how devices compute; they win over the environment."""

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any, TypeVar, cast

import click

from ggsched.config import MAX_THREADS, Settings

F = TypeVar("F", bound=Callable[..., Any])


def compute_options(function: F) -> F:
    """Add ``--threads`` and ``--activations``, below ``click.pass_obj``; they change settings."""

    @wraps(function)
    def command(settings: Settings, /, **given: Any) -> Any:
        values = {name: given.pop(name) for name in ("threads", "activations")}
        changes = {name: value for name, value in values.items() if value is not None}
        return function(replace(settings, **changes), **given)

    threads = click.option(
        "-t",
        "--threads",
        type=click.IntRange(1, MAX_THREADS),
        default=None,
        metavar="N",
        help="Threads of the backend cpu that compute. "
        "[default: as GGSCHED_THREADS says, a physical core each]",
    )
    activations = click.option(
        "--activations",
        type=click.Choice(["auto", "f32"]),
        default=None,
        help="Round activations where weights are rounded more coarsely, or keep them. "
        "[default: as GGSCHED_ACTIVATIONS says; auto on cpu and cuda]",
    )
    return cast(F, threads(activations(command)))
