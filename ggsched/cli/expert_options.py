"""Options of layers and experts that an accelerator computes with weights of the CPU."""

from typing import Final

import click

from ggsched.cli.options import RenamedOption
from ggsched.config import read_size


def _size(text: str) -> int:
    try:
        return read_size(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a number of bytes such as 512MiB") from None


EXPERT_OPTIONS: Final = (
    click.option(
        "--op-offload",
        "op_offload",
        type=click.Choice(["auto", "on", "off"]),
        default="auto",
        show_default=True,
        help="Compute layers and experts of the CPU on the accelerator, to which their weights are "
        "copied, of experts those that the router chose: where that is predicted to be faster, "
        "wherever it is possible, or never.",
    ),
    click.option(
        "--expert-staging-buffers",
        cls=RenamedOption,
        old="--expert-ring",
        type=click.IntRange(min=1),
        default=2,
        metavar="N",
        show_default=True,
        help="Buffers on the accelerator, each for the weights of one block; from 2 on the "
        "weights of whole blocks are copied while earlier ones compute, where that is faster.",
    ),
    click.option(
        "--expert-cache",
        "expert_cache",
        type=_size,
        default="0",
        metavar="BYTES",
        help="Memory on the accelerator for experts that were chosen before, e.g. 512MiB. "
        "[default: 0]",
    ),
)
