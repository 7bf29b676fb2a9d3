"""The recorded process: ``python -m ggsched_race.program JOURNAL OPTIONS SCRIPT [ARGS]``.

``ggsched race`` runs it. The journal is written record by record, so that whatever ends the process
leaves what was recorded until then. Nothing of the program is changed: its arguments, its folder
and its exit code are as if Python had been called.
"""

import os
import runpy
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import BinaryIO, Final, NoReturn

import msgspec

from ggsched.errors import GgschedError
from ggsched.printable import write_err
from ggsched_race.cupti import recorded_calls
from ggsched_race.recording import Recording
from ggsched_race.watch import RecordedAlready, recorder_into

INTERRUPTED: Final = 130
_OWN: Final = (os.path.dirname(__file__), os.path.dirname(runpy.__file__) + os.sep + "runpy.py")


class ProgramOptions(msgspec.Struct, frozen=True):
    """How a program is recorded.

    Attributes:
        is_module: Whether the first argument is a module, as with ``python -m``.
        rows: Whether ids are read.
        simulate: Whether CUDA is simulated.
        threads: Whether threads of the host are actors of their own.
        cupti: Whether calls of the driver are recorded, of any library, and not PyTorch's.
    """

    is_module: bool = False
    rows: bool = True
    simulate: bool = False
    threads: bool = False
    cupti: bool = False


def run_program(journal: str, options: ProgramOptions, arguments: Sequence[str]) -> int:
    """Run and record a program; return its exit code."""
    target, has_begun = arguments[0], False
    sys.argv = list(arguments)
    if not options.is_module:
        sys.path[0] = os.path.dirname(os.path.abspath(target))
    with open(journal, "wb", buffering=0) as out:
        try:
            with _recording(out, target, options) as recording:
                has_begun = True
                try:
                    _run(target, options.is_module)
                finally:
                    if recording.failure is not None:
                        why = recording.failure
                        write_err(f"ggsched race: the record is cut off: {why}\n")
        except BaseException as error:  # of any program; it ends as it would without a recorder
            if not has_begun:
                out.truncate(0)  # which says that there is nothing to judge
            return _ended_by(error, has_begun)
    return 0


@contextmanager
def _recording(out: BinaryIO, target: str, options: ProgramOptions) -> Iterator[Recording]:
    if options.cupti:
        recording = Recording(out, target)
        with recorded_calls(recording):
            yield recording
        return
    flags = {"rows": options.rows, "simulate": options.simulate, "threads": options.threads}
    with recorder_into(out, target, **flags) as recorder:
        yield recorder.recording


def _ended_by(error: BaseException, has_begun: bool) -> int:
    """Say why a program has ended, as Python does; return its exit code."""
    match error:
        case SystemExit():
            return _code(error.code)
        case KeyboardInterrupt():
            return INTERRUPTED
        case GgschedError() if not has_begun or isinstance(error, RecordedAlready):
            write_err(f"ggsched race: {error.one_line()}\n")
            return error.exit_code
    traceback.print_exception(type(error), error, _without_own(error.__traceback__))
    return 1


def _run(target: str, is_module: bool) -> None:
    if is_module:
        runpy.run_module(target, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(target, run_name="__main__")


def _code(code: object) -> int:
    """Return the exit code of ``SystemExit`` as Python does."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    write_err(f"{code}\n")
    return 1


def _without_own(tb: TracebackType | None) -> TracebackType | None:
    while tb and tb.tb_next and tb.tb_frame.f_code.co_filename.startswith((*_OWN, "<")):
        tb = tb.tb_next
    return tb


def main() -> NoReturn:
    """Run the program that the command line names."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the caller ignores Ctrl-C
    journal, options, *arguments = sys.argv[1:]
    code = run_program(journal, msgspec.json.decode(options, type=ProgramOptions), arguments)
    sys.stdout.flush()
    sys.exit(code)


if __name__ == "__main__":
    main()
