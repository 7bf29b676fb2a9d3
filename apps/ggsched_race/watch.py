"""Record a part of a program in its own process: ``with ggsched.watch() as watched: ...``."""

import io
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from ggsched.cli.output_files import check_writable
from ggsched.errors import BackendUnavailable, RaceFound, UsageError
from ggsched.files.reading import read_text_argument
from ggsched.trace.export import write_bytes
from ggsched_race.recording import Recording, trace_of_journal
from ggsched_race.report import RaceReport, check_program

if TYPE_CHECKING:
    from ggsched_race.pytorch import Recorder


class RecordedAlready(UsageError):
    """A part of a program is to be recorded that is recorded already."""


class _UnderWay:
    """The recording of this process.

    Attributes:
        lock: Held meanwhile.
        recorder: None where nothing is recorded.
    """

    def __init__(self) -> None:
        self.lock = Lock()
        self.recorder: Recorder | None = None


_under_way: Final = _UnderWay()


def declare(
    label: str,
    *,
    reads: Sequence[Any] = (),
    writes: Sequence[Any] = (),
    engine: str = "",
    stream: Any = None,
) -> None:
    """Record what a kernel that is no op of PyTorch touches, right behind its launch.

    Nothing is done where nothing is recorded, so that a program may keep its calls.

    Args:
        label: Its name.
        reads: Tensors, or objects with ``__cuda_array_interface__``; so are ``writes``.
        engine: Name of what does it beside all streams, such as an adapter of a network, one thing
            after the other; "" is a stream.
        stream: That of the launch: of PyTorch, an object with ``__cuda_stream__``, or a handle;
            the calling thread's stream if not given.

    Raises:
        UsageError: what it touches is not memory of a device or a tensor.
    """
    recorder = _under_way.recorder
    if recorder is not None:
        actor = None if stream is None else recorder.actor_of(stream)
        recorder.launched(label, reads, writes, engine=engine, stream=actor)


def engine_done(engine: str) -> None:
    """Record that the host has seen an engine end all that it has been given."""
    if _under_way.recorder is not None:
        _under_way.recorder.engine_done(engine)


class Watched:
    """What was recorded.

    Attributes:
        trace: The trace in lines; empty until the recording is over.
        report: What is wrong, as soon as the recording is over.
    """

    def __init__(self) -> None:
        self.trace = b""
        self.report: RaceReport | None = None
        self._recorder: Recorder | None = None

    declare = staticmethod(declare)
    engine_done = staticmethod(engine_done)


@contextmanager
def recorder_into(
    out: BinaryIO, name: str, *, rows: bool, simulate: bool, threads: bool
) -> Iterator["Recorder"]:
    """Record the calling thread, and threads that begin meanwhile, into a journal.

    One recording per process is under way at any time: what it replaces is there once.

    Args:
        out: The journal.
        rows: Whether ids are read, so that the rows that they choose are known.
        threads: Whether threads of the host are actors of their own.

    Raises:
        BackendUnavailable: PyTorch is missing, or there is no GPU and no simulation.
        RecordedAlready: another recording is under way.
    """
    if not _under_way.lock.acquire(blocking=False):
        hint = "leave out this ggsched.watch(), or what records around it"
        raise RecordedAlready(
            "the program is recorded already", where=f"watch({name!r})", hint=hint
        )
    with ExitStack() as stack:
        stack.callback(_under_way.lock.release)
        try:
            import torch
        except ImportError as error:
            hint = "pip install 'ggsched[torch]'"
            raise BackendUnavailable("the package torch is missing", hint=hint) from error
        if not simulate and not torch.cuda.is_available():
            hint = "--simulate, or simulate=True, needs none"
            raise BackendUnavailable("PyTorch finds no GPU", hint=hint)
        from ggsched_race.host_threads import HostThreads
        from ggsched_race.pytorch import Recorder
        from ggsched_race.pytorch_hooks import recorded
        from ggsched_race.real_cuda import RealCuda
        from ggsched_race.simulation import simulated

        recording = Recording(out, name)
        platform = stack.enter_context(simulated()) if simulate else RealCuda()
        recorder = Recorder(recording, platform, rows, HostThreads(recording) if threads else None)
        stack.enter_context(recorded(recorder))
        stack.callback(setattr, _under_way, "recorder", None)
        _under_way.recorder = recorder
        yield recorder


@contextmanager
def watch(
    name: str = "watched",
    *,
    rows: bool = True,
    simulate: bool = False,
    threads: bool = False,
    advice: bool = False,
    raises: bool = True,
    suppressions: Sequence[str] = (),
    trace: str | Path | None = None,
) -> Iterator[Watched]:
    """Look for races in what is done inside.

    Threads that exist before, and tensors made before, take part from their first use inside on.
    Arrays of numpy on pinned tensors that were made before are followed by checksums only.

    Args:
        name: For reports.
        rows: Whether to read ids of indexing, so that accesses to different rows do not race. It
            makes the program wait for the device at each such op.
        simulate: Whether to simulate CUDA on the host, without a GPU.
        threads: Whether threads of the host are in order only where they hand over to each other by
            locks, queues, events and the like that are made inside, or by starts and ends.
        advice: Whether to name waits that nobody needs, if nothing races.
        raises: Whether a finding raises, unless an exception comes out anyway.
        suppressions: Patterns of frames, such as ``loader.py:* in prefetch``, of findings to leave
            out.
        trace: Where to write the trace.

    Yields:
        What has the report, after the block.

    Raises:
        RaceFound: something is wrong; names the first finding and counts the others.
        BackendUnavailable: PyTorch is missing, or there is no GPU and no simulation.
        UsageError: the program is recorded already, by another block or by ``ggsched race``, or
            the trace cannot be written, which is known before the block begins.

    Examples:
        >>> import ggsched
        >>> import torch
        >>> with ggsched.watch(simulate=True, raises=False) as watched:
        ...     x, side = torch.ones(4, device="cuda"), torch.cuda.Stream()
        ...     with torch.cuda.stream(side):
        ...         y = x * 2
        >>> watched.report.findings[0].hazard
        'RAW'
    """
    check_writable(None if trace is None else str(trace), "the trace")
    out = io.BytesIO()
    watched = Watched()
    try:
        options = {"rows": rows, "simulate": simulate, "threads": threads}
        with recorder_into(out, name, **options) as watched._recorder:
            yield watched
    finally:
        watched._recorder = None
        watched.trace = trace_of_journal(out.getvalue())
        if trace is not None:
            write_bytes(trace, watched.trace)
        report = watched.report = check_program(
            watched.trace, name, advice=advice, suppressions=suppressions
        )
    if raises and not report.is_clean:
        first, more = report.findings[0], len(report.findings) - 1
        what = f"{first.what}, and {report.least}{more} more" if more else first.what
        details = report.to_text().splitlines()
        raise RaceFound(what, where=report.name, hint=first.mend, details=details)


def read_suppressions(path: str) -> tuple[str, ...]:
    """Return the patterns of a file: one a line, comments begin with ``#``.

    Raises:
        UsageError: the file cannot be read, or has no pattern.
    """
    lines = (line.partition("#")[0].strip() for line in read_text_argument(path).splitlines())
    patterns = tuple(line for line in lines if line)
    if not patterns:
        hint = "write a pattern such as 'loader.py:* in prefetch' on each line"
        raise UsageError("no pattern of a frame", where=path, hint=hint)
    return patterns
