"""How tokens are chosen and where a text ends."""

import math
import sys
from collections.abc import Callable
from secrets import randbits
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from ggsched.cli.options import at_least, option, with_options

if TYPE_CHECKING:
    from ggsched_llm.sampling import Sampling

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


def _seed(text: str) -> int:
    """Read a seed; -1 draws one."""
    if text == "-1":
        return randbits(32)
    if not (text.isascii() and text.isdigit()):
        raise click.BadParameter(f"{text!r} is neither a number of 0 or more nor -1")
    return int(text)


def _recent(text: str) -> int:
    """Read how many tokens are recent; -1 is all of them."""
    return sys.maxsize if text == "-1" else _seed(text)


_OPTIONS: Final = (
    option(
        "--temp --temperature temperature",
        "Temperature; 0 takes the most probable token.",
        number,
        0.0,
        metavar="T",
    ),
    option(
        "-s --seed",
        "Where the random numbers begin: the same text for the same seed; -1 draws one.",
        _seed,
        "0",
        metavar="N",
    ),
    option(
        "--top-k", "Draw from the K most probable tokens; 0 for all.", at_least(0), 0, metavar="K"
    ),
    option(
        "--top-p",
        "Draw from the most probable tokens that have probability P together.",
        number,
        1.0,
        metavar="P",
    ),
    option(
        "--min-p",
        "Draw from tokens with at least the share P of the highest probability.",
        number,
        0.0,
        metavar="P",
    ),
    option(
        "--repeat-penalty",
        "Lower the logits of recent tokens by this factor.",
        number,
        1.0,
        metavar="X",
    ),
    option(
        "--repeat-last-n", "Tokens that count as recent; -1 for all.", _recent, "64", metavar="N"
    ),
)


def sampling_options(function: F) -> F:
    """Add the options, handed on as keyword arguments named as the fields of ``Sampling``."""
    return with_options(function, _OPTIONS)


def take_sampling(options: dict[str, Any]) -> "Sampling":
    """Take the values of these options out of the keyword arguments of a command."""
    from dataclasses import fields

    from ggsched_llm.sampling import Sampling

    names = [f.name for f in fields(Sampling) if f.name in options]
    sampling = Sampling(**{name: options.pop(name) for name in names})
    sampling.check()
    return sampling
