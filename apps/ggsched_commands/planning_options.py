"""Options that decide between plans that are all correct; they win over the environment."""

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any, Final, TypeVar, cast

import click

from ggsched.cli.options import RenamedOption, at_least, option, with_options
from ggsched.config import MAX_STREAMS, Budget, Settings, Streams, read_budget, read_streams

F = TypeVar("F", bound=Callable[..., Any])


def _streams(text: str) -> Streams:
    try:
        return read_streams(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is neither auto, autotune nor a number from 1 to {MAX_STREAMS}"
        ) from None


def _budget(text: str) -> Budget:
    try:
        return read_budget(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is not a number of bytes such as 64MiB, or opencl:0=64MiB,cpu:0=1GiB"
        ) from None


_STREAMS: Final = option(
    "--streams",
    "Streams per device: several where a gain is predicted, at most N wherever nodes are "
    "independent, or what is faster on the first runs. [default: as GGSCHED_STREAMS says, auto]",
    _streams,
    metavar="auto|N|autotune",
)
_MEMORY: Final = (
    option(
        "--packing-effort",
        "Look for a tighter packing of memory, 0.1 to 0.2 s a step. [default: 0]",
        at_least(0),
        cls=RenamedOption,
        old="--memory-effort",
    ),
    option(
        "--memory-budget",
        "Most bytes of intermediate results, e.g. 64MiB; waits are added to keep it.",
        _budget,
        metavar="BYTES|DEVICE=BYTES,...",
    ),
)


def streams_option(function: F) -> F:
    """Add ``--streams`` to a command; below ``click.pass_obj``, whose settings it changes."""
    return _with(function, _STREAMS)


def planning_options(function: F) -> F:
    """Add ``--streams``, ``--packing-effort`` and ``--memory-budget``, as ``streams_option``."""
    return _with(function, _STREAMS, *_MEMORY)


def _with(function: F, *options: Callable[[F], F]) -> F:
    names = ("streams", "packing_effort", "memory_budget")[: len(options)]

    @wraps(function)
    def command(settings: Settings, /, **given: Any) -> Any:
        values = {name: given.pop(name) for name in names}
        changes = {name: value for name, value in values.items() if value is not None}
        return function(replace(settings, **changes), **given)

    changed = cast(F, command)
    return with_options(changed, options)
