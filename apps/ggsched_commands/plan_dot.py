"""``ggsched plan --dot``: the commands of a plan as a picture."""

from typing import TYPE_CHECKING

import click

from ggsched.cli.options import option
from ggsched.cli.output_files import output_file

if TYPE_CHECKING:
    from ggsched.plan.bundle import Plan

dot_option = option(
    "--dot",
    "Write commands, waits and hazards in the DOT language of Graphviz, 500 commands at most.",
    click.Path(dir_okay=False, writable=True),
    metavar="FILE",
)


def write_dot(plan: "Plan", path: str) -> None:
    """Write the picture of a plan.

    Raises:
        UsageError: the file cannot be written.
    """
    from ggsched.interchange.dot import plan_to_dot

    with output_file(path, "the picture") as file:
        file.write(plan_to_dot(plan).encode())
