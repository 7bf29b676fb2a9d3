"""Options that several subcommands share, and how to write one.

llama.cpp's words have one dash and several letters. click takes them as they are: declare the
short word first, the long one next and the parameter's name last, as in
``option("-ngl --n-gpu-layers n_gpu_layers", "Layers ...", at_least(0))``. What follows from it:

* ``-ngl 3`` and ``-ngl=3`` are the same; ``-ngl3`` is not understood, but ``-n16`` is ``-n 16``.
* A word is an option or an error: ``-fa`` is never ``-f a`` (``ggsched.cli.spelling``).
* A value that begins with a dash is taken as a value: ``--temp -1``.

Values with a grammar are read by the functions below, given as ``type=``. They raise
``click.BadParameter``, to which click adds the option's name; the exit code is 2.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def option(
    names: str, text: str, kind: Any = None, default: Any = None, **more: Any
) -> Callable[[F], F]:
    """Return ``click.option`` for an option with a value.

    Its default is shown unless the help states one, and a number is called N.

    Args:
        names: Separated by spaces, in the order above.
        text: Its help.
        kind: ``type`` of click.
        default: Its value if it is not given.
        **more: As for ``click.option``.
    """
    metavar = "N" if isinstance(kind, click.IntRange) else None
    shows = default not in (None, "") and "default: " not in text.lower()
    shown = {"metavar": metavar, "show_default": shows, **more}
    return click.option(*names.split(), type=kind, default=default, help=text, **shown)


def at_least(least: int) -> click.IntRange:
    """Return the type of whole numbers from one on."""
    return click.IntRange(min=least)


def one_of(*words: str) -> click.Choice[str]:
    """Return the type of a choice of words."""
    return click.Choice(words)


def switch(text: str) -> bool:
    """Read ``on`` or ``off``."""
    if text not in ("on", "off"):
        raise click.BadParameter(f"{text!r} is neither 'on' nor 'off'")
    return text == "on"


def tokens_to_generate(text: str) -> int:
    """Read a number of tokens; -1 is as many as come, -2 what fills the context."""
    if text in ("-1", "-2"):
        return int(text)
    if not (text.isascii() and text.isdigit()):
        raise click.BadParameter(f"{text!r} is neither a number of tokens nor -1 or -2")
    return int(text)


def with_options(function: F, options: Sequence[Callable[[F], F]]) -> F:
    """Return a command with these options, in this order."""
    return reduce(lambda made, add: add(made), reversed(options), function)


class RenamedOption(click.Option):
    """An option whose old name is still accepted, for one release, and shown nowhere.

    Args:
        *args: As for ``click.Option``.
        old: The old name, with its dashes.
        **kwargs: As for ``click.Option``.
    """

    def __init__(self, *args: Any, old: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.old = old


@dataclass(frozen=True, slots=True)
class Override:
    """One rule of ``-ot``: tensors whose name contains a match go to a device.

    Attributes:
        pattern: Searched for in the tensor's name.
        device: The device's name.
    """

    pattern: re.Pattern[str]
    device: str


def device_names(text: str) -> tuple[str, ...]:
    """Read ``opencl:0,cpu:0``; the registry checks the names."""
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise click.BadParameter(f"{text!r} has an empty name; write e.g. opencl:0,cpu:0")
    return names


def whole_numbers(text: str) -> tuple[int, ...]:
    """Read ``1,2,3``: numbers from 0 on, such as tokens."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise click.BadParameter(f"{text!r} is not a list of whole numbers such as 1,2,3")
    return tuple(int(part) for part in parts)


def shares(text: str) -> tuple[float, ...]:
    """Read ``3,1``: shares of several devices, of which one at least is above 0."""
    try:
        numbers = tuple(float(part) for part in re.split("[,/]", text))
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a list of shares such as 3,1") from None
    if not all(math.isfinite(n) and n >= 0 for n in numbers) or not any(numbers):
        raise click.BadParameter(f"{text!r}: shares are 0 or more, and not all 0")
    return numbers


def overrides(text: str) -> tuple[Override, ...]:
    """Read ``REGEX=DEVICE,...``; a comma within REGEX, as in ``{1,2}``, stays."""
    rules, left = [], ""
    for part in re.split("([,;])", text):
        left += part if left or part not in ",;" else ""
        if "=" in part:
            rules.append(override(left))
            left = ""
    if left:
        override(left)  # raises: it names no device
    return tuple(rules)


def override(text: str) -> Override:
    """Read ``REGEX=DEVICE``; the last ``=`` divides."""
    pattern, _, device = text.rpartition("=")
    if not pattern or not device.strip():
        raise click.BadParameter(f"{text!r} is not REGEX=DEVICE, as in 'ffn_.*_exps=cpu:0'")
    try:
        return Override(re.compile(pattern), device.strip())
    except re.error as error:
        raise click.BadParameter(f"{pattern!r} is not a regular expression: {error}") from None


def devices_option(function: F) -> F:
    """Add ``--devices``: a tuple of names, or None for every usable device."""
    return option(
        "--devices",
        "Devices in order of priority, e.g. opencl:0,cpu:0. Default: all that are usable.",
        device_names,
        metavar="NAME:N,...",
    )(function)


def json_option(function: F) -> F:
    """Add ``--json``, as the parameter ``as_json``."""
    return click.option("--json", "as_json", is_flag=True, help="Write JSON on stdout.")(function)
