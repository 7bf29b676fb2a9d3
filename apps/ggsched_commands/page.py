"""The reference of the command line, written from click's own tree.

    python -m ggsched_commands.page docs/reference/cli.md

writes the sections of all commands anew, behind the mark that they begin with.
"""

import inspect
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import click

from ggsched.cli.main import cli
from ggsched.files.reading import read_text

MARK: Final = "<!-- commands -->"
_MODEL_COMMANDS: Final = ("run", "bench", "perplexity", "plan")


def filled(text: str) -> str:
    """Return a page with all commands behind its mark."""
    head, mark, _ = text.partition(MARK)
    return f"{head}{mark}\n\n" + "\n".join(_lines())


def commands() -> dict[str, click.Command]:
    """Return each command by name, in the order of ``ggsched --help``."""
    context = click.Context(cli)
    found = ((name, cli.get_command(context, name)) for name in cli.list_commands(context))
    return {name: command for name, command in found if command is not None}


def options(command: click.Command) -> list[click.Option]:
    """Return the options of a command but ``--help``."""
    return [p for p in command.params if isinstance(p, click.Option) and p.name != "help"]


def _lines() -> Iterator[str]:
    known = commands()
    first, *others = ([_row(o) for o in options(known[name])] for name in _MODEL_COMMANDS)
    shared = [row for row in first if all(row in rows for rows in others)]
    for name, command in known.items():
        yield from _command(name, command, shared if name in _MODEL_COMMANDS else ())
    yield "## Options of run, bench, perplexity and plan"
    yield ""
    yield from _table(shared)


def _command(name: str, command: click.Command, elsewhere: Sequence[str]) -> Iterator[str]:
    operands = [_operand(p) for p in command.params if isinstance(p, click.Argument)]
    yield f"## {name}"
    yield ""
    yield f"    {' '.join(['ggsched', name, '[OPTIONS]', *operands])}"
    yield ""
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        yield paragraph
        yield ""
    if elsewhere:
        place = "#options-of-run-bench-perplexity-and-plan"
        yield f"It also has the [options of run, bench, perplexity and plan]({place})."
        yield ""
    yield from _table([row for o in options(command) if (row := _row(o)) not in elsewhere])


def _table(rows: Sequence[str]) -> Iterator[str]:
    yield "| option | meaning |"
    yield "| --- | --- |"
    yield from rows
    yield ""


def _row(option: click.Option) -> str:
    value = "" if option.is_flag else f" {_value(option)}"
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    default = ""
    if option.show_default and not option.is_flag and "[default" not in (option.help or ""):
        values: Any = option.default if option.multiple else (option.default,)
        default = f" [default: {', '.join(map(str, values))}]"
    return f"| {names}{value} | {_cell((option.help or '') + default)} |"


def _value(option: click.Option) -> str:
    if option.metavar:
        return _cell(option.metavar)
    kind = getattr(option.type, "of", option.type)  # of several with commas between
    if isinstance(kind, click.Choice):
        return _cell("|".join(map(str, kind.choices)))
    return "N" if isinstance(kind, click.IntRange) else "TEXT"


def _operand(argument: click.Argument) -> str:
    return argument.metavar or (argument.name or "").upper()


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("*", "\\*")


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(filled(read_text(page)), encoding="utf-8")
