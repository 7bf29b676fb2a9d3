"""Spellings of options: each is a whole word, ggsched's or llama.cpp's.

click takes ``-fa`` for ``-f a`` where it does not know ``-fa``, and an option of llama.cpp that is
not known here would be an error of another option. So words are looked up before click reads them.
"""

import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final, Protocol, runtime_checkable

import click

from ggsched.cli.console import write_line
from ggsched.cli.options import OwnOption

_WORD: Final = re.compile("((on|off|auto|0|1|true|false|enabled|disabled)(,|$))+")
_ATTACHED: Final = re.compile("(-[a-zA-Z])([0-9]+)")
_CPP_DEVICE: Final = re.compile("([A-Za-z]+)([0-9]+)")
_ALIKE: Final = 0.75


@dataclass(frozen=True, slots=True)
class Foreign:
    """An option of another program.

    Attributes:
        kind: ``means`` another option, is ``ignored`` with a note, or is ``refused``.
        text: The other option with ``{}`` for the value, or the reason.
        n_values: Values that follow it.
        word: What counts where its value, a word, is left out; None where values are required.
        same: Values that say what is so anyway.
    """

    kind: str
    text: str
    n_values: int = 0
    word: str | None = None
    same: tuple[str, ...] = ()


@runtime_checkable
class HasForeignOptions(Protocol):
    """A command that knows options of another program."""

    def foreign_options(self) -> Mapping[str, Foreign]:
        """Return the options by each of their names."""
        ...


def spelled(
    command: click.Command, ctx: click.Context, args: list[str], foreign: Mapping[str, Foreign]
) -> list[str]:
    """Return arguments of a command with options as click knows them, and without clusters.

    Args:
        ctx: Of the command; for messages.
        args: As they stand on the command line.
        foreign: Options of another program that the command knows.

    Raises:
        UsageError: an option that there is not, or one of llama.cpp that cannot mean the same.
    """
    own: dict[str, click.Option] = {}
    for option in command.get_params(ctx):
        if isinstance(option, click.Option):
            own |= dict.fromkeys((*option.opts, *option.secondary_opts), option)
            if isinstance(option, OwnOption) and option.old:
                own[option.old] = option
    words = _Words(ctx, own, foreign, deque(args))
    found = list(words)
    for line in dict.fromkeys(words.notes):
        write_line(line)
    return found


class _Words:
    """Reads words from the left."""

    def __init__(
        self,
        ctx: click.Context,
        own: Mapping[str, click.Option],
        foreign: Mapping[str, Foreign],
        left: deque[str],
    ) -> None:
        self._ctx, self._own, self._foreign, self._left = ctx, own, foreign, left
        self.notes: list[str] = []
        self._has_model = False

    def __iter__(self) -> Iterator[str]:
        """Yield the words for click; note what was ignored."""
        while self._left:
            arg = self._left.popleft()
            if arg == "--":
                yield arg
                yield from self._left
                return
            if not arg.startswith("-") or arg == "-":
                self._has_model = True
                yield arg
                if not self._ctx.command.context_settings.get("allow_interspersed_args", True):
                    yield from self._left  # another program's
                    return
                continue
            name, equals, value = arg.partition("=")
            if name.startswith("--"):
                name = name.replace("_", "-")
            short = _ATTACHED.fullmatch(arg)
            if short and short[1] in self._own and arg not in self._foreign:
                name, equals, value = short[1], "=", short[2]
            yield from self._option(name, value if equals else None)

    def _option(self, name: str, value: str | None) -> Iterator[str]:
        theirs, option = self._foreign.get(name), self._own.get(name)
        if theirs is not None and (option is None or theirs.kind == "means"):
            yield from self._theirs(name, theirs, value)
            return
        if option is None:
            raise click.UsageError(f"No such option {name!r}{self._meant(name)}", self._ctx)
        if option.is_flag or option.count:
            if value is not None:
                raise click.UsageError(f"Option {name!r} does not take a value", self._ctx)
        elif value is not None:
            self._left.appendleft(value)
        yield option.opts[-1] if name == getattr(option, "old", "") else name
        for _ in range(0 if option.is_flag or option.count else option.nargs):
            if self._left:
                yield self._left.popleft()

    def _theirs(self, name: str, option: Foreign, value: str | None) -> Iterator[str]:
        """Yield what an option of llama.cpp is here, if anything."""
        if value is not None:
            self._left.appendleft(value)
        values: list[str] = []
        if option.word is not None:
            following = self._left[0] if self._left else "-"
            is_given = _WORD.fullmatch(following) is not None or (
                option.kind == "means" and self._has_model and not following.startswith("-")
            )
            values = [self._left.popleft() if is_given else option.word]
        else:
            if len(self._left) < option.n_values:
                raise click.UsageError(f"Option {name!r} requires an argument", self._ctx)
            values = [self._left.popleft() for _ in range(option.n_values)]
        if values and all(_is_same(part, option.same) for part in values[0].split(",")):
            return
        match option.kind:
            case "refused":
                raise click.UsageError(f"{name}: {option.text}", self._ctx)
            case "ignored":
                self.notes.append(f"ggsched: note: {name}: {option.text}")
            case _:
                text = option.text.partition(" ")
                if text[0]:
                    yield text[0]
                if text[2]:
                    given = values[0] if values else ""
                    yield text[2].format(given, devices=_devices(given))

    def _meant(self, name: str) -> str:
        """Return the command that has the option, or the one that was probably meant."""
        parent = self._ctx.parent
        group = None if parent is None else parent.command
        if parent is not None and isinstance(group, click.Group):
            for other in group.list_commands(parent):
                command = group.get_command(parent, other)
                if command is not None and any(
                    name in (*p.opts, *p.secondary_opts) for p in command.get_params(self._ctx)
                ):
                    return f"; 'ggsched {other}' has it"
        options = {name for o in self._own.values() for name in (*o.opts, *o.secondary_opts)}
        known = sorted(n for n in options if n.startswith("--") and len(n) > 3)
        bare = "--" + name.lstrip("-")
        close = [bare] if bare in known else []
        if not close and len(bare) > 4:
            close = get_close_matches(bare, known, 1, _ALIKE)
        return f". Did you mean {close[0]!r}?" if close else ""


def _is_same(value: str, known: tuple[str, ...]) -> bool:
    """Whether a value is one of those, as a word or as a number."""
    try:
        return float(value) in [float(other) for other in known]
    except ValueError:
        return value in known


def _devices(text: str) -> str:
    """Return llama.cpp's devices in ggsched's names, with the CPU that it has beside them."""
    names = [] if text == "none" else re.split("[,/]", text)
    ours = [f"{m[1].lower()}:{m[2]}" if (m := _CPP_DEVICE.fullmatch(n)) else n for n in names]
    return ",".join(dict.fromkeys([*ours, "cpu:0"]))
