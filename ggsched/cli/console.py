"""Where text goes: results on stdout, everything else on stderr.

Colours and progress bars only on a terminal, and no colours where ``NO_COLOR`` is set (rich sees
to both). Lines are folded on a terminal only: what goes into a pipe is searched line by line.
"""

import errno
import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from textwrap import fill
from typing import Any, Final, Literal, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table

from ggsched.printable import (
    is_terminal,
    keeping_results_apart,
    printable,
    results,
    write_err,
    write_out,
)

NO_LIMIT: Final = 1 << 16
"""Columns off a terminal."""


def columns(file: TextIO | None = None) -> int:
    """Return the columns that lines are folded to: of a terminal, else more than lines have.

    Args:
        file: Where the lines go; None for results.
    """
    file = results() if file is None else file
    return Console(file=file).width if is_terminal(file) else NO_LIMIT


def folded(text: str, limit: int, indent: int = 0) -> str:
    """Return a line folded at words, where it is longer than a limit.

    Args:
        text: The line.
        limit: Columns.
        indent: Of all rows but the first.
    """
    return fill(
        text,
        limit,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def write_folded(text: str, indent: int = 0) -> None:
    """Write a line of results, folded on a terminal."""
    write_out(folded(text, columns(), indent) + "\n")


class Terminal(Console):
    """A console that shows text as text, and lets the error boundary see a closed pipe.

    rich would let controls in a text act on the terminal, and would exit with 1.
    """

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render, with controls written out on a terminal."""
        for segment in super().render(renderable, options):
            if segment.control or not self.is_terminal:
                yield segment
            else:
                yield Segment(printable(segment.text), segment.style)

    def on_broken_pipe(self) -> None:
        """Pass the error on."""
        raise BrokenPipeError(errno.EPIPE, "nobody reads the output")


def output() -> Console:
    """Return the console for results, on stdout."""
    return _console(results())


_LIVE: Final[ContextVar[tuple[Console, Callable[[], None]] | None]] = ContextVar(
    "live", default=None
)


def messages() -> Console:
    """Return the console for everything else, on stderr: that of the live line if there is one."""
    live = _LIVE.get()
    return _console(sys.stderr) if live is None else live[0]


@contextmanager
def live_on(console: Console, stop: Callable[[], None]) -> Iterator[None]:
    """Let messages go through the console of a live line, which moves out of their way.

    Args:
        console: Of the live line.
        stop: Ends it; called before JSON is written.
    """
    token = _LIVE.set((console, stop))
    try:
        yield
    finally:
        _LIVE.reset(token)


def _console(file: TextIO) -> Console:
    width = columns(file)
    return Terminal(file=file, width=width, highlight=False, markup=False, emoji=False)


def new_table(*columns: str) -> Table:
    """Return an empty table with these columns.

    Args:
        *columns: Headings; behind ">" of numbers, behind "~" of text that is folded where there
            is no room.
    """
    grid = Table(box=None, pad_edge=False, header_style="bold", expand=False)
    for name in columns:
        if name.startswith("~"):
            grid.add_column(name[1:], overflow="fold")
        else:
            side: Literal["left", "right"] = "right" if name.startswith(">") else "left"
            grid.add_column(name.lstrip(">"), justify=side, no_wrap=True)
    return grid


def warn_on_stderr() -> None:
    """Let the library's warnings appear as our lines, ``ggsched: warning: ...``."""
    logger = logging.getLogger("ggsched")
    for handler in logger.handlers[:]:
        if isinstance(handler, _Lines):
            logger.removeHandler(handler)  # of an earlier call
    logger.addHandler(_Lines())


@contextmanager
def own_results(is_process: bool) -> Iterator[None]:
    """Let nobody but the command write on stdout: what others print there goes to stderr.

    Args:
        is_process: Whether the process is the command's, so that libraries in C are meant as well.
    """
    descriptor = _moved_stdout() if is_process else None
    if descriptor is None:
        with keeping_results_apart(sys.stdout):
            yield
        return
    encoding, errors = sys.stdout.encoding, sys.stdout.errors
    try:
        with open(descriptor, "w", encoding=encoding, errors=errors, closefd=False) as file:
            try:
                with keeping_results_apart(file):
                    yield
                file.flush()
            except OSError:
                os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)  # nor fail again at the end
                raise
    finally:
        os.dup2(descriptor, 1)
        os.close(descriptor)


def _moved_stdout() -> int | None:
    """Let descriptor 1 be stderr; return where stdout is now, or None if that cannot be done."""
    try:
        sys.stdout.flush()
        if sys.stdout.fileno() != 1 or sys.stderr.fileno() != 2:
            return None
        descriptor = os.dup(1)
        os.dup2(2, 1)
    except (OSError, ValueError):
        return None
    return descriptor


def write_line(text: str) -> None:
    """Write a message on lines of its own on stderr, folded at words on a terminal."""
    end_open_line()
    write_err(folded(text, columns(sys.stderr)) + "\n")


def end_open_line() -> None:
    """End the line of results that is open on the terminal, if one is."""
    lines = _lines()
    if lines is not None and lines.is_line_open and is_terminal(sys.stderr):
        write_err("\n")
        lines.is_line_open = False


def leave_line_open(is_open: bool) -> None:
    """Note that results on the terminal are in the middle of a line, or no more."""
    lines = _lines()
    if lines is not None:
        lines.is_line_open = is_open and is_terminal(results())


class _Lines(logging.Handler):
    """Writes a record on one line of what is stderr then: a live display puts its own there.

    Attributes:
        is_line_open: Whether results on the terminal are in the middle of a line.
    """

    is_line_open = False

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line."""
        try:
            message = " ".join(record.getMessage().split())
            write_line(f"ggsched: {record.levelname.lower()}: {message}")
        except Exception:
            self.handleError(record)


def _lines() -> _Lines | None:
    handlers = logging.getLogger("ggsched").handlers
    return next((h for h in handlers if isinstance(h, _Lines)), None)


def write_json(data: Any) -> None:
    """Write plain data as JSON on stdout, the same bytes for the same data off a terminal."""
    live = _LIVE.get()
    if live is not None:
        live[1]()
    on_terminal = is_terminal(results())
    text = json.dumps(data, indent=2, sort_keys=True, ensure_ascii=on_terminal)
    write_out(text.replace("\x7f", "\\u007f") + "\n")
