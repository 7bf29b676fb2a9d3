"""The model file of a command line: as an argument or as ``-m``, and changes of its metadata."""

import math
import os
import re
from contextlib import AbstractContextManager
from importlib.resources import as_file, files
from pathlib import Path
from typing import Final

import click

Value = int | float | bool | str

BUNDLED: Final = "addition-moe.gguf"
DEMO: Final = "demo"
"""Names the model that comes with ggsched, unless a file has that name."""

EXAMPLE: Final = 'ggsched run demo -p "417+385="'
"""What it can do."""

_NEXT_KEY: Final = re.compile(r",(?=[\w.]+=(?:int|float|bool|str):)")

_BY_OPTION: Final = "ggsched.model"


def bundled_model() -> AbstractContextManager[Path]:
    """Return the path of the small trained model that comes with ggsched, as long as it is held."""
    return as_file(files("ggsched.data") / BUNDLED)


def is_bundled(path: str) -> bool:
    """Whether it is the path of that model."""
    return os.path.basename(path) == BUNDLED


def path_of(name: str, ctx: click.Context) -> str:
    """Return the path of a model that a command line names, valid while the command runs."""
    if name == DEMO and not os.path.exists(DEMO):
        return str(ctx.with_resource(bundled_model()))
    return name


def key_values(text: str) -> tuple[tuple[str, Value], ...]:
    """Read one or several, with commas between; those within a text stay."""
    return tuple(map(key_value, _NEXT_KEY.split(text)))


def key_value(text: str) -> tuple[str, Value]:
    """Read ``llama.rope.freq_base=float:500000``."""
    key, equals, rest = text.partition("=")
    kind, colon, value = rest.partition(":")
    if not (key and equals and colon):
        raise click.BadParameter(f"{text!r} is not of the form KEY=TYPE:VALUE")
    try:
        match kind:
            case "int":
                return key, int(value)
            case "float":
                return key, _finite(value)
            case "bool":
                return key, {"true": True, "false": False}[value]
            case "str":
                return key, value
    except (ValueError, KeyError):
        raise click.BadParameter(f"{value!r} is not a value of type {kind}") from None
    raise click.BadParameter(f"{kind!r} is not one of the types int, float, bool, str")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError
    return number


def _keep(ctx: click.Context, _option: click.Parameter, value: str | None) -> None:
    ctx.meta[_BY_OPTION] = value


def _choose(ctx: click.Context, argument: click.Parameter, value: str | None) -> str:
    by_option: str | None = ctx.meta.get(_BY_OPTION)
    if value is not None and by_option is not None:
        raise click.UsageError("MODEL is given twice, as an argument and as -m", ctx)
    found = value if by_option is None else by_option
    if found is None and not ctx.resilient_parsing:
        raise click.MissingParameter(ctx=ctx, param=argument)
    return path_of(found or "", ctx)


MODEL_FILE: Final = (
    click.argument("model", metavar="MODEL", required=False, callback=_choose),
    click.option(
        "-m",
        "--model",
        "model_option",
        default=None,
        metavar="FILE",
        is_eager=True,
        expose_value=False,
        callback=_keep,
        help="The same as MODEL; demo is the small model that comes with ggsched.",
    ),
)
"""MODEL, or ``-m``."""
