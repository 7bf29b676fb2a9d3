"""Where text goes: results on stdout, everything else on stderr.

Colours and progress bars only on a terminal, and no colours where ``NO_COLOR`` is set (rich sees
to both). Off a terminal everything fits 80 columns.
"""

import errno
import json
import logging
import sys
from typing import Any, Final, TextIO

from rich.console import Console

WIDTH: Final = 80


class Terminal(Console):
    """A console that lets the error boundary see a closed pipe; rich would exit with 1."""

    def on_broken_pipe(self) -> None:
        """Pass the error on."""
        raise BrokenPipeError(errno.EPIPE, "nobody reads the output")


def output() -> Console:
    """Return the console for results, on stdout."""
    return _console(sys.stdout)


def messages() -> Console:
    """Return the console for everything else, on stderr."""
    return _console(sys.stderr)


def _console(file: TextIO) -> Console:
    console = Terminal(file=file, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = WIDTH
    return console


def warn_on_stderr() -> None:
    """Let the library's warnings appear as our lines, ``ggsched: warning: ...``."""
    logger = logging.getLogger("ggsched")
    for handler in logger.handlers[:]:
        if isinstance(handler, _Lines):
            logger.removeHandler(handler)  # of an earlier call, with an earlier stderr
    logger.addHandler(_Lines(sys.stderr))


class _Lines(logging.StreamHandler[TextIO]):
    """Writes a record on one line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return f"ggsched: {record.levelname.lower()}: {record.getMessage()}"


def write_json(data: Any) -> None:
    """Write plain data as JSON on stdout, the same bytes for the same data."""
    sys.stdout.write(json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False) + "\n")
