"""Options of how devices compute; they win over the environment."""

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any, TypeVar, cast

import click

from ggsched.cli.options import one_of, option
from ggsched.config import MAX_THREADS, Settings

F = TypeVar("F", bound=Callable[..., Any])


def compute_options(function: F) -> F:
    """Add ``--threads`` and ``--activations``, below ``click.pass_obj``; they change settings."""

    @wraps(function)
    def command(settings: Settings, /, **given: Any) -> Any:
        values = {name: given.pop(name) for name in ("threads", "activations")}
        changes = {name: value for name, value in values.items() if value is not None}
        return function(replace(settings, **changes), **given)

    threads = option(
        "-t --threads",
        "Threads of the backend cpu that compute. "
        "[default: as GGSCHED_THREADS says, a physical core each]",
        click.IntRange(1, MAX_THREADS),
    )
    activations = option(
        "--activations",
        "Round activations where weights are rounded more coarsely, or keep them. "
        "[default: as GGSCHED_ACTIVATIONS says; auto on cpu and cuda]",
        one_of("auto", "f32"),
    )
    return cast(F, threads(activations(command)))
