"""An option of the command line as metadata of the field of a record.

    n_ubatch: int = flag(512, "-ub --ubatch-size", 1, "Tokens of one micro-batch.")

is all that a new option needs, besides the use of the field and a test: ``ggsched.cli.options``
makes click's options of the fields, and the record of their values. Environment variables are
declared in the same way, in ``ggsched.config``.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, Final

from ggsched.errors import UsageError

_UNITS: Final = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)(|[KMG]iB)")

HOMES: Final = "Devices, and what lives where"
PIPELINES: Final = "Threads, streams and pipelines"
"""Headings of ``--help`` under which options of several records stand."""

Reader = Callable[[str], Any]
"""Reads the text of a value, or raises ``ValueError`` with what is wrong about it."""


@dataclass(frozen=True, slots=True)
class Flag:
    """An option of the command line.

    Attributes:
        names: Its spellings, the shortest first, with spaces between.
        kind: What reads its value; words to choose from; or the least whole number.
        text: Its help.
        wrong: What follows a value that is refused, where the reader does not say it.
        param: Name of its value in a command; empty for the name of the field.
        heading: Where ``--help`` lists it, see ``ggsched_commands.help_groups``.
        metavar: Name of the value in the help.
        unset: The value, as text, where the option is not given; None for the field's default.
        multiple: Whether it may be repeated; the reader returns a tuple, and these are joined.
        old: A name that is accepted for one more release.
    """

    names: str
    kind: Reader | tuple[str, ...] | int
    text: str
    wrong: str = ""
    param: str = ""
    heading: str = ""
    metavar: str | None = None
    unset: Any = None
    multiple: bool = False
    old: str = ""


def flag(default: Any, *args: Any, **more: Any) -> Any:
    """Return a field of a record with an option of the command line; see ``Flag``."""
    return field(default=default, metadata={"flag": Flag(*args, **more)})


def check_values(record: Any) -> None:
    """Refuse values of a record that the options of its fields do not take.

    Raises:
        UsageError: a number is too small, or a word is not among those to choose from.
    """
    for own in fields(record):
        flag, value = own.metadata.get("flag"), getattr(record, own.name)
        if flag is None or value is None:
            continue
        name = flag.names.split()[0]
        if isinstance(flag.kind, int) and value < flag.kind:
            raise UsageError(f"{name} {value}", why=f"it must be at least {flag.kind}")
        if isinstance(flag.kind, tuple) and isinstance(value, str) and value not in flag.kind:
            raise UsageError(f"{name} {value}", hint=f"use {' or '.join(flag.kind)}")


def number(text: str) -> float:
    """Read a finite number of 0 or more.

    Raises:
        ValueError: it is none.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{text!r} is not a number of 0 or more")
    return value


def read_size(text: str) -> int:
    """Read a number of bytes such as ``65536``, ``1.5KiB`` or ``64MiB``.

    Raises:
        ValueError: it is none.
    """
    found = _SIZE.fullmatch(text.strip())
    if not found or not (nbytes := float(found[1]) * _UNITS[found[2]]).is_integer():
        raise ValueError(f"{text!r} is not a number of bytes such as 512MiB")
    return int(nbytes)
