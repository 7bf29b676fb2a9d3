"""The command ``ggsched`` and the one place where errors become exit codes.

Exit codes: 0 ok, 1 a finding, 2 usage or bad input, 3 the environment or a defect, 130
interrupted, 141 nobody reads the output any more. A subcommand returns None for 0, or its exit
code; it raises ``GgschedError`` for everything that goes wrong.
"""

import contextlib
import copy
import errno
import functools
import io
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, NoReturn

import click
from click.shell_completion import shell_complete

from ggsched.cli.console import end_open_line, messages, own_results, warn_on_stderr, write_line
from ggsched.cli.interruption import is_interruption
from ggsched.cli.spelling import HasForeignOptions, spelled
from ggsched.cli.user_ops import import_modules
from ggsched.cli.versions import print_versions
from ggsched.config import Settings
from ggsched.errors import BackendBroken, GgschedError
from ggsched.printable import write_err

OK: Final = 0
USAGE: Final = 2
ENVIRONMENT: Final = 3
INTERRUPTED: Final = 130
PIPE_CLOSED: Final = 141

_OF_COMMAND: Final = re.compile("^ggsched [a-z-]+: ")
"""Says again where an error is from."""
_OWNS_PROCESS: Final = "ggsched.cli.owns_process"
_OUTPUT: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
"""What writing fails with; a closed pipe apart."""

GROUP: Final = "ggsched.commands"
"""Entry points of subcommands: of this package, of the applications, and of other distributions."""


@cache
def _entry_points() -> dict[str, EntryPoint]:
    return {point.name: point for point in sorted(entry_points(group=GROUP))}


class _Broken(click.Command):
    """A subcommand that cannot be loaded."""

    def __init__(self, point: EntryPoint, error: Exception) -> None:
        super().__init__(point.name, help=f"(cannot be loaded: {type(error).__name__})")
        self._point, self._error = point, error

    def make_context(self, *args: Any, **more: Any) -> click.Context:
        """Refuse the call.

        Raises:
            BackendBroken: always, but for an extra of ggsched that is missing.
        """
        error = self._error
        if isinstance(error, ModuleNotFoundError) and error.name == "hypothesis":
            raise error
        raise BackendBroken(
            f"the command {self.name!r} cannot be loaded",
            where=self._point.value,
            why=f"{type(error).__name__}: {error}",
            hint="report this to the author of the distribution that has it",
        ) from error


class Commands(click.Group):
    """A group that imports a subcommand when it is needed, so that ``--version`` is quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names, in alphabetical order."""
        return list(_entry_points())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a subcommand."""
        point = _entry_points().get(cmd_name)
        if point is None:
            return None
        try:
            command = point.load()
        except Exception as error:  # of any distribution; the other commands still work
            if is_interruption(error):
                raise
            return _Broken(point, error)
        if not isinstance(command, click.Command):
            return _Broken(point, TypeError("it is not a click command"))
        copied = copy.copy(command)  # the callback of the module's command stays as it is
        copied.callback = command.callback and _guard_results(command.callback)
        return copied

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a subcommand, and its options as click knows them; name what was probably meant."""
        known = _entry_points()
        close = [] if args[0] in known else get_close_matches(args[0], known, 1)
        if close:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {close[0]!r}?")
        name, command, left = super().resolve_command(ctx, args)
        if command is not None and not ctx.resilient_parsing:
            own = click.Context(command, ctx, name)
            foreign = command.foreign_options() if isinstance(command, HasForeignOptions) else {}
            left = spelled(command, own, left, foreign)
        return name, command, left


def _guard_results(callback: Callable[..., Any]) -> Callable[..., Any]:
    """Return the callback of a command, during which nothing else writes on stdout."""

    @functools.wraps(callback)
    def call(*args: Any, **kwargs: Any) -> Any:
        with own_results(bool(click.get_current_context().meta.get(_OWNS_PROCESS))):
            return callback(*args, **kwargs)

    return call


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
    epilog="Exit codes: 0 ok, 1 finding, 2 usage or bad input, 3 environment.",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=print_versions,
    help="Show versions of ggsched, libraries and drivers.",
)
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Schedule tensor graphs over several devices, by plans that are checked first."""
    if ctx.obj is None:
        ctx.obj = Settings.from_environment()
        if ctx.obj.ops:
            import_modules(ctx.obj.ops)
    warn_on_stderr()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code. No exception leaves it."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    is_ours = argv is None  # the process
    if is_ours and not _has_streams():
        return _report("stdout is closed, so results have nowhere to go", ENVIRONMENT)
    try:
        code = _run(arguments, is_ours)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return _interrupted(is_ours)
    except BrokenPipeError:
        _forget_stdout(is_ours)
        return PIPE_CLOSED
    except click.ClickException as error:
        return _refuse(error)
    except GgschedError as error:
        return _report(error.one_line(), error.exit_code)
    except MemoryError:
        return _report("out of host memory (take a smaller model or context)", USAGE)
    except OSError as error:
        _forget_stdout(is_ours)
        why = error.strerror or str(error)
        what = error.filename or ("the output" if error.errno in _OUTPUT else "the system")
        return _report(f"{what}: {why}", ENVIRONMENT)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "hypothesis":
            return _report("hypothesis is missing (pip install 'ggsched[test]')", ENVIRONMENT)
        if is_interruption(error):
            return _interrupted(is_ours)
        text = " ".join(f"{type(error).__name__}: {error}".split())
        hint = "set GGSCHED_DEBUG=1 for the traceback, and please report it: ggsched report-bug"
        return _report(f"internal error: {text} ({hint})", ENVIRONMENT)
    return code


class _LossyFile(io.FileIO):
    """A file that loses what cannot be written: no message is worth a result or an exit code."""

    def write(self, data: Any, /) -> int:
        """Write what can be written."""
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def _lossy(file: io.TextIOWrapper) -> io.TextIOWrapper:
    """Return the same file, through which what cannot be written is lost."""
    file.flush()
    raw = io.BufferedWriter(_LossyFile(file.fileno(), "w", closefd=False))
    return io.TextIOWrapper(raw, file.encoding, file.errors, line_buffering=True)


def _has_streams() -> bool:
    """Let text in any language be written to stdout and stderr; return whether stdout is open."""
    if sys.stderr is None:  # whatever is opened next would be taken for it
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # for the rest of the process
    elif isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr = _lossy(sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    return sys.stdout is not None


def _interrupted(is_ours: bool) -> int:
    end_open_line()
    messages().show_cursor()  # live lines hide it, and may be interrupted as they do
    if is_ours:
        _leave(INTERRUPTED)
    return INTERRUPTED


def _leave(code: int) -> NoReturn:
    """End the process at once: what was to be closed has been, on the way here.

    A thread that works for the kit may still be inside a driver, and some (PoCL) abort the process
    if the interpreter ends around it.
    """
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _run(arguments: list[str], is_ours: bool) -> int:
    """Run without click's own boundary, which takes a closed pipe for a finding (1)."""
    instruction = os.environ.get("_GGSCHED_COMPLETE")
    if instruction:
        return shell_complete(cli, {}, "ggsched", "_GGSCHED_COMPLETE", instruction)
    if not arguments:
        context = click.Context(cli, info_name="ggsched", **cli.context_settings)
        write_err(cli.get_help(context) + "\n")
        return USAGE
    try:
        with cli.make_context("ggsched", arguments) as context:
            context.meta[_OWNS_PROCESS] = is_ours
            result = cli.invoke(context)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    return result if isinstance(result, int) else OK


def _refuse(error: click.ClickException) -> int:
    """Say what click found wrong, as one of our lines."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    message = error.format_message()
    if "\n" in message:  # the help of a subcommand that was called with nothing
        write_err(message + "\n")
    else:
        path = context.command_path if context else "ggsched"
        text = " ".join(message.rstrip(".").split())
        if isinstance(error, click.NoSuchOption) and path == "ggsched":
            text += "; options follow a command, as in 'ggsched run -m FILE -p TEXT'"
        write_line(f"ggsched: error: {text} (see: {path} --help)")
    return USAGE


def _report(line: str, code: int) -> int:
    """Say what went wrong, on one line; the traceback only on request."""
    if os.environ.get("GGSCHED_DEBUG", "").strip() in ("1", "2", "3", "4"):
        write_err(traceback.format_exc())
    write_line(f"ggsched: error: {_OF_COMMAND.sub('', line)}")
    return code


def _forget_stdout(is_ours: bool) -> None:
    """Let the last flush of our own process go nowhere instead of failing again."""
    if is_ours:
        with contextlib.suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
            sys.stdout.flush()
