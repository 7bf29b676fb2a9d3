"""``--fit``: let the program choose what goes where, so that it fits."""

import math
from typing import Final, NamedTuple

import click

from ggsched.cli.options import option, switch
from ggsched.config import read_size


class Margin(NamedTuple):
    """What is to be left free: bytes, and a share of what is free; the larger counts."""

    nbytes: int
    share: float


def margin(text: str) -> Margin:
    """Read ``512MiB`` or ``5%``."""
    if text.endswith("%"):
        try:
            share = float(text[:-1]) / 100
        except ValueError:
            share = math.nan
        if not 0 <= share < 1:
            raise click.BadParameter(f"{text!r} is not a share from 0% to below 100%")
        return Margin(0, share)
    try:
        return Margin(read_size(text), 0.0)
    except ValueError:
        raise click.BadParameter(f"{text!r} is neither bytes as in 512MiB nor 5%") from None


FIT_OPTIONS: Final = (
    option(
        "--fit",
        "Choose what is not given of -ngl, --n-cpu-moe and -c so that everything fits the "
        "memory that is free, the fastest way by the cost model, and say why; --fit alone is on.",
        switch,
        "off",
        metavar="on|off",
    ),
    option(
        "--fit-margin",
        "Memory of each device that --fit leaves free.",
        margin,
        "5%",
        metavar="SIZE|N%",
    ),
)
