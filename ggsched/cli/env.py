"""``ggsched env``: every variable, its value, and where the value comes from."""

import os
from typing import Any, Final

import click
from rich.text import Text

from ggsched.cli.console import NO_LIMIT, new_table, output, write_json
from ggsched.cli.options import json_option
from ggsched.config import VARIABLES, Settings, Variable

_STYLE: Final = {"environment": "bold", "default": "dim"}


@click.command()
@json_option
@click.pass_obj
def env(settings: Settings, /, as_json: bool) -> None:
    """Show all variables GGSCHED_*: values, and what they do.

    Options of the command line win over these; a variable that is not listed is an error.
    """
    rows = [_row(variable) for variable in VARIABLES]
    if as_json:
        write_json({"variables": rows})
        return
    console, grid = output(), new_table("variable", "~value", "origin", "~meaning")
    grid.columns[1].max_width = 16 if console.width < NO_LIMIT else None
    for row in rows:
        origin = Text(row["origin"], style=_STYLE[row["origin"]])
        grid.add_row(row["name"], row["value"], origin, row["meaning"])
    console.print(grid)


def _row(variable: Variable) -> dict[str, Any]:
    given = os.environ.get(variable.name, "").strip()
    return {
        "name": variable.name,
        "value": given or variable.default,
        "default": variable.default,
        "origin": "environment" if given else "default",
        "values": variable.values,
        "meaning": variable.meaning,
        "owner": variable.owner,
    }
