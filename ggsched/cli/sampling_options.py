"""How tokens are chosen and where a text ends."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:
    from ggsched.models.sampling import Sampling

F = TypeVar("F", bound=Callable[..., Any])


def number(text: str) -> float:
    """Read a finite number of 0 or more."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise click.BadParameter(f"{text!r} is not a number of 0 or more")
    return value


_OPTIONS: Final = (
    click.option(
        "--temp",
        "temperature",
        type=number,
        default=0.0,
        metavar="T",
        show_default=True,
        help="Temperature; 0 takes the most probable token.",
    ),
    click.option(
        "-s",
        "--seed",
        type=click.IntRange(min=0),
        default=0,
        metavar="N",
        show_default=True,
        help="Where the random numbers begin: the same text for the same seed.",
    ),
    click.option(
        "--top-k",
        type=click.IntRange(min=0),
        default=0,
        metavar="K",
        show_default=True,
        help="Draw from the K most probable tokens; 0 for all.",
    ),
    click.option(
        "--top-p",
        type=number,
        default=1.0,
        metavar="P",
        show_default=True,
        help="Draw from the most probable tokens that have probability P together.",
    ),
    click.option(
        "--min-p",
        type=number,
        default=0.0,
        metavar="P",
        show_default=True,
        help="Draw from tokens with at least the share P of the highest probability.",
    ),
    click.option(
        "--repeat-penalty",
        type=number,
        default=1.0,
        metavar="X",
        show_default=True,
        help="Lower the logits of recent tokens by this factor.",
    ),
    click.option(
        "--repeat-last-n",
        type=click.IntRange(min=0),
        default=64,
        metavar="N",
        show_default=True,
        help="Tokens that count as recent.",
    ),
)


def sampling_options(function: F) -> F:
    """Add the options, handed on as keyword arguments named as the fields of ``Sampling``."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def take_sampling(options: dict[str, Any]) -> "Sampling":
    """Take the values of these options out of the keyword arguments of a command."""
    from dataclasses import fields

    from ggsched.models.sampling import Sampling

    sampling = Sampling(**{f.name: options.pop(f.name) for f in fields(Sampling)})
    sampling.check()
    return sampling
