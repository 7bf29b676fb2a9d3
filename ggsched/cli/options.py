"""Options that several subcommands share, how to write one, and options of the fields of records.

llama.cpp's words have one dash and several letters. click takes them as they are: declare the
short word first, the long one next and the parameter's name last, as in
``option("-d --n-depth depths", "Tokens ...", at_least(0))``. What follows from it:

* ``-ngl 3`` and ``-ngl=3`` are the same; ``-ngl3`` is not understood, but ``-n16`` is ``-n 16``.
* A word is an option or an error: ``-fa`` is never ``-f a`` (``ggsched.cli.spelling``).
* A value that begins with a dash is taken as a value: ``--temp -1``.

An option that sets a field of a record is declared there (``ggsched.flags``): ``record_options``
makes click's options, and ``record_of`` the record of their values.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import Field, fields, is_dataclass, replace
from functools import reduce, wraps
from typing import Any, TypeVar, cast

import click

from ggsched.config import Settings
from ggsched.flags import Flag

F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")


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
    shows = default not in (None, "", ()) and "default: " not in text.lower()
    shown = {"metavar": metavar, "show_default": shows, **more}
    return click.option(*names.split(), type=kind, default=default, help=text, **shown)


class OwnOption(click.Option):
    """An option with what click does not know.

    Args:
        *args: As for ``click.Option``.
        old: An old name, with its dashes, that is accepted for one release and shown nowhere.
        heading: Where ``--help`` lists it.
        **more: As for ``click.Option``.
    """

    def __init__(self, *args: Any, old: str = "", heading: str = "", **more: Any) -> None:
        super().__init__(*args, **more)
        self.old, self.heading = old, heading


class _Read(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.5
    """A value with a grammar."""

    name = "text"

    def __init__(self, flag: Flag, read: Callable[[str], Any]) -> None:
        self._flag, self._read = flag, read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read a value, unless it is a default that was read already."""
        if not isinstance(value, str):
            return value
        try:
            return self._read(value)
        except ValueError as error:
            wrong = self._flag.wrong
            self.fail(f"{value!r} {wrong}" if wrong else str(error), param, ctx)


def field_option(field: "Field[Any]", unset: Any = None) -> Callable[[F], F]:
    """Return the option that a field declares.

    Args:
        field: Of a record, with a ``Flag``.
        unset: Its value where the option is not given.
    """
    flag: Flag = field.metadata["flag"]
    match flag.kind:
        case int(least):
            kind: Any = at_least(least)
        case tuple(words):
            kind = one_of(*words)
        case read:
            kind = _Read(flag, read)
    more: dict[str, Any] = {"old": flag.old, "heading": flag.heading, "multiple": flag.multiple}
    if flag.metavar:
        more["metavar"] = flag.metavar
    names = f"{flag.names} {flag.param or field.name}"
    return option(names, flag.text, kind, unset, cls=OwnOption, **more)


def record_options(record: type[Any]) -> Iterator[Callable[[F], F]]:
    """Yield the options that the fields of a record declare, and those of records within it."""
    for field, inner in _fields(record):
        if inner is not None:
            yield from record_options(inner)
        elif field.metadata.get("flag"):
            unset = field.metadata["flag"].unset
            yield field_option(field, field.default if unset is None else unset)


def record_of(record: type[R], given: Mapping[str, Any], **more: Any) -> R:
    """Return a record of the values of its options.

    Args:
        given: Values by the names of the parameters.
        **more: Fields that have no option.
    """
    values: dict[str, Any] = {}
    for field, inner in _fields(record):
        flag: Flag | None = field.metadata.get("flag")
        if inner is not None:
            values[field.name] = record_of(inner, given)
        elif flag is not None:
            value = given[flag.param or field.name]
            values[field.name] = sum(value, ()) if flag.multiple else value
    return record(**{**values, **more})


def _fields(record: type[Any]) -> "Iterator[tuple[Field[Any], type[Any] | None]]":
    """Yield the fields of a record, each with the type of the record that it holds."""
    for field in fields(record):
        inner = field.type if isinstance(field.type, type) and is_dataclass(field.type) else None
        yield field, inner


def settings_options(*names: str) -> Callable[[F], F]:
    """Return what adds options of fields of ``Settings``, below ``click.pass_obj``.

    Args:
        *names: Of the fields; the command gets the settings with what is given changed.
    """

    def add(function: F) -> F:
        @wraps(function)
        def command(settings: Settings, /, **given: Any) -> Any:
            return function(changed(settings, given, names), **given)

        return with_options(cast(F, command), settings_fields(*names))

    return add


def settings_fields(*names: str) -> list[Callable[[F], F]]:
    """Return the options of fields of ``Settings``."""
    known = {field.name: field for field in fields(Settings)}
    return [field_option(known[name]) for name in names]


def changed(settings: Settings, given: dict[str, Any], names: Sequence[str]) -> Settings:
    """Return settings with the values of these options, which are taken out of those given."""
    values = {name: given.pop(name) for name in names}
    return replace(settings, **{name: v for name, v in values.items() if v is not None})


def verified(settings: Settings, verify: bool | None) -> Settings:
    """Return settings by which plans are verified or not; None changes nothing."""
    if verify is None:
        return settings
    return replace(settings, verify=verify, sanitize="plan" if verify else "off")


PLANNING = ("streams", "packing_effort", "memory_budget")
"""Fields of ``Settings`` that decide between plans that are all correct."""
COMPUTE = ("threads", "activations", "precision")
"""Fields of ``Settings`` that say how devices compute."""


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
