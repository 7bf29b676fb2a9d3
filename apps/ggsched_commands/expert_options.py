"""Options of layers and experts that an accelerator computes with weights of the CPU."""

from typing import Final

import click

from ggsched.cli.options import RenamedOption, at_least, one_of, option
from ggsched.config import read_size


def _size(text: str) -> int:
    try:
        return read_size(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a number of bytes such as 512MiB") from None


EXPERT_OPTIONS: Final = (
    option(
        "--op-offload op_offload",
        "Compute layers and experts of the CPU on the accelerator, to which their weights are "
        "copied, of experts those that the router chose: where that is predicted to be faster, "
        "wherever it is possible, or never.",
        one_of("auto", "on", "off"),
        "auto",
    ),
    option(
        "--expert-staging-buffers",
        "Buffers on the accelerator, each for the weights of one block; from 2 on the "
        "weights of whole blocks are copied while earlier ones compute, where that is faster.",
        at_least(1),
        2,
        cls=RenamedOption,
        old="--expert-ring",
    ),
    option(
        "--expert-cache expert_cache",
        "Memory on the accelerator for experts that were chosen before, e.g. 512MiB. [default: 0]",
        _size,
        "0",
        metavar="BYTES",
    ),
)
