"""Where text goes: results on stdout, everything else on stderr.

Colours and progress bars only on a terminal, and no colours where ``NO_COLOR`` is set (rich sees
to both). Off a terminal everything fits 80 columns.
"""

import json
import sys
from typing import Any, Final

from rich.console import Console

WIDTH: Final = 80


def output() -> Console:
    """Return the console for results, on stdout."""
    console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
    return console if console.is_terminal else _plain(console)


def messages() -> Console:
    """Return the console for everything else, on stderr."""
    console = Console(file=sys.stderr, highlight=False, markup=False, emoji=False)
    return console if console.is_terminal else _plain(console)


def _plain(console: Console) -> Console:
    console.width = WIDTH
    return console


def write_json(data: Any) -> None:
    """Write plain data as JSON on stdout, the same bytes for the same data."""
    sys.stdout.write(json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


def nbytes(count: int) -> str:
    """Print a number of bytes for people, e.g. ``"1.5 GiB"``."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} TiB"
