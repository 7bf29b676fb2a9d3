"""Siblings of other mutants: the same mistakes in uses, ops and counts that are seldom tried."""

from collections.abc import Callable, Sequence
from time import sleep
from typing import Any

import numpy as np

from ggsched.backend.arrays import bind_host
from ggsched.backend.base import BaseDevice, BaseEvent, BaseProgram, BaseStream
from ggsched.backend.program import BoundNode
from ggsched.backend.program_body import Command
from ggsched.backend.protocols import Buffer, Event, HostMemory, Program, Stream
from tests.mutants.baselines import CPU
from tests.mutants.behind import _SomeRun
from tests.mutants.lifetimes import _CountingPool
from tests.mutants.mutant import breaks
from tests.mutants.mutate_calls import Action, Around, bytes_of, is_replayed, nothing
from tests.mutants.racing import MOMENT_S
from tests.mutants.scale_launches import _Again

GIB2 = 1 << 31

# --- scale ------------------------------------------------------------------------------------


@breaks("CPY-2", "A copy takes offsets in 31 bits.", CPU)
class CopyOffsetsOf31Bits(BaseStream):
    """They are ints of C."""

    def copy(self, src: Buffer, src_offset: int, dst: Buffer, dst_offset: int, nbytes: int) -> None:
        super().copy(src, src_offset, dst, dst_offset % GIB2, nbytes)


@breaks("FIL-1", "A fill takes offsets in 31 bits.", CPU)
class FillOffsetsOf31Bits(BaseStream):
    """They are ints of C."""

    def fill(self, buffer: Buffer, offset: int, nbytes: int, pattern: bytes) -> None:
        super().fill(buffer, offset % GIB2, nbytes, pattern)


@breaks("EVT-2", "An event holds four streams; a fifth one goes on.", CPU)
class EventHoldsFourStreams(BaseStream):
    """A list of waiters of that length."""

    def wait(self, event: Event) -> None:
        if isinstance(event, BaseEvent) and event.is_pending:
            waiters: dict[int, int] = self.device.__dict__.setdefault("waiters", {})
            waiters[id(event)] = waiters.get(id(event), 0) + 1
            if waiters[id(event)] > 4:
                self._require_usable()
                return
        super().wait(event)


@breaks("LCH-1", "A program that is in flight three times runs twice.", CPU)
class ThirdLaunchInFlightIsLost(BaseStream):
    """Its argument block is doubled."""

    def launch(self, program: Program) -> None:
        kept: dict[int, list[int]] = self.__dict__.setdefault("flying", {})
        flying = kept.setdefault(id(program), [])
        flying[:] = [p for p in flying if p > self.progress.done]
        if len(flying) >= 2:
            self._require_usable()
            return
        super().launch(program)
        flying.append(self.progress.enqueued)


@breaks("CAP-1", "Graphs of a stream that are in flight at a time run the newest one.", CPU)
class ReplaysShareOneSlot(BaseStream):
    """The stream has a place for one graph."""

    def replay(self, graph: Any) -> None:
        if not is_replayed(self, graph):
            super().replay(graph)
            return
        kept = self.__dict__
        kept["slot"] = body = graph.body()
        self._submit(Around(_Slot(kept, body), nothing, nothing), lambda: kept["slot"].run())


class _Slot:
    """What is in the slot of a stream, with the names of one graph."""

    def __init__(self, kept: dict[str, Any], own: Any) -> None:
        self.kept, self.own = kept, own

    def run(self) -> None:
        """Run what is there."""
        self.kept["slot"].run()

    def run_timed(self, taken: Any) -> None:
        """Run it as one piece."""
        taken.run(self.run)

    def failed_node(self, error: BaseException) -> str:
        """Name the node of one's own graph."""
        return str(self.own.failed_node(error))


# --- ids --------------------------------------------------------------------------------------


class _LaterIds(_Again):
    """Takes ids behind the first 64 modulo the number of rows; has a kernel that refuses none."""

    def compile(self, nodes: Sequence[BoundNode], stream: Stream) -> BaseProgram:
        """Mend ids before the kernel sees them."""
        program = super().compile(nodes, stream)
        found = [n for n in nodes if n.op in self.ops and n.inputs[-1].dtype.name == "i32"]
        body = program.body
        if body is None or not found:
            return program
        run = body.run

        def mended() -> None:
            for n in found:
                ids = np.array(bind_host(n.inputs[-1]))
                rows = bind_host(n.inputs[0] if n.op != "add_id" else n.inputs[1]).shape[0]
                flat = bytes_of(n.inputs[-1])[n.inputs[-1].offset :][: 4 * ids.size].view(np.int32)
                flat[64:] %= rows
            run()

        body.run = mended  # type: ignore[method-assign]
        return program

    def after(self, nodes: Sequence[BoundNode], stream: Stream) -> Action:
        """Do nothing more."""
        return nothing


@breaks("LCH-3", "get_rows looks at the first 64 ids only.", CPU)
class LaterIdsAreNotChecked(_LaterIds):
    """One block of threads checks."""

    ops = ("get_rows",)


@breaks("LCH-3", "set_rows looks at the first 64 ids only.", CPU)
class LaterIdsAreWrittenUnchecked(_LaterIds):
    """One block of threads checks."""

    ops = ("set_rows",)


# --- values and ranks -------------------------------------------------------------------------


class _Overflows(_Again):
    """Its results are NaN where operands are large."""

    overflows: Callable[[Any], Any]

    def again(self, node: BoundNode) -> None:
        bind_host(node.output)[self.overflows(bind_host(node.inputs[0]))] = np.nan


@breaks("LCH-3", "sigmoid of numbers far below zero is NaN.", CPU)
class SigmoidOverflows(_Overflows):
    """Infinity divided by infinity."""

    ops = ("sigmoid",)
    overflows = staticmethod(lambda x: x < -89)


@breaks("LCH-3", "tanh of large numbers is NaN.", CPU)
class TanhOverflows(_Overflows):
    """It is made of two exponentials."""

    ops = ("tanh",)
    overflows = staticmethod(lambda x: abs(x) > 45)


@breaks("LCH-3", "gelu of large numbers is NaN.", CPU)
class GeluOverflows(_Overflows):
    """The cube overflows, or the exponential does."""

    ops = ("gelu",)
    overflows = staticmethod(lambda x: abs(x) > 1e13)


@breaks("LCH-3", "soft_max does not subtract the largest element.", CPU)
class SoftMaxOverflows(_Overflows):
    """It is the same for small numbers."""

    ops = ("soft_max",)
    overflows = staticmethod(lambda x: (np.isfinite(x) & (x > 89)).any(-1))


@breaks("LCH-3", "In sub and div, a term of lower rank is repeated along the last axis.", CPU)
class DifferencesAreAlignedLeft(_Again):
    """Axes are matched from the first one, where that is possible."""

    ops = ("sub", "div")

    def again(self, node: BoundNode) -> None:
        x, y, out = (bind_host(o) for o in (*node.inputs, node.output))
        if y.ndim < x.ndim and y.ndim and y.shape == x.shape[: y.ndim]:
            left = y.reshape(*y.shape, *[1] * (x.ndim - y.ndim))
            out[...] = x - left if node.op == "sub" else x / left


# --- memory -----------------------------------------------------------------------------------


@breaks("BUF-2", "A pool forgets what replayed graphs use.", CPU)
class PoolForgetsReplays(_CountingPool):
    """Uses are counted when they are captured, which is over by then."""

    forgets = "replay"

    def use(self, kind: str, buffer: Any, stream: BaseStream) -> None:
        if not stream.sink.is_capturing:
            super().use(kind, buffer, stream)


@breaks("BUF-5", "A launch reads imported memory as it was when it was compiled.", CPU)
class LaunchesCopyImports(BaseDevice):
    """Imported weights are packed."""

    def compile(self, nodes: Sequence[BoundNode], stream: Stream) -> BaseProgram:
        from dataclasses import replace

        def copied(o: Any) -> Any:
            if not getattr(o.buffer, "readonly", False) or not o.nbytes:
                return o
            room = self.allocate(o.nbytes)
            np.frombuffer(room.host_view(), np.uint8)[:] = bytes_of(o)[o.offset :][: o.nbytes]
            return replace(o, buffer=room, offset=0)

        return super().compile(
            [replace(n, inputs=tuple(map(copied, n.inputs))) for n in nodes], stream
        )


# --- threads ----------------------------------------------------------------------------------


@breaks("STR-6", "allocate_host of two threads at once gives both the same memory.", CPU)
class HostMemoryOfOneThread(BaseDevice):
    """A pool without a lock."""

    def allocate_host(self, nbytes: int) -> HostMemory:
        view = super().allocate_host(nbytes)
        kept = self.__dict__.setdefault("host", {})
        kept[nbytes] = view
        sleep(MOMENT_S)
        newest: HostMemory = kept[nbytes]
        return newest


@breaks("STR-6", "Downloads of two streams at once go through one piece of memory.", CPU)
class DownloadsShareMemory(BaseDevice):
    """There is one for the device."""

    def read_memory(self, memory: Any, offset: int, target: HostMemory) -> None:
        block = self.__dict__.setdefault("through", np.zeros(1 << 22, np.uint8))
        n = target.nbytes
        if not 0 < n <= block.size:
            super().read_memory(memory, offset, target)
            return
        super().read_memory(memory, offset, block[:n].data)
        sleep(MOMENT_S)
        target[:] = block[:n].data


# --- closing ----------------------------------------------------------------------------------


@breaks("ERR-3", "Closing a device closes the streams of its siblings.", CPU)
class ClosedDeviceTakesSiblings(BaseDevice):
    """They share a context."""

    def create_stream(self) -> BaseStream:
        stream = super().create_stream()
        _EVERY.append(stream)
        return stream

    def close(self) -> None:
        super().close()
        for stream in _EVERY:
            stream.is_closed = True
        _EVERY.clear()


_EVERY: list[BaseStream] = []


@breaks("ERR-3", "Closing a program ends the other programs of its stream.", CPU)
class ClosedProgramTakesOthers(BaseDevice):
    """They share a module."""

    def compile(self, nodes: Sequence[BoundNode], stream: Stream) -> BaseProgram:
        program = super().compile(nodes, stream)
        made: list[BaseProgram] = self.__dict__.setdefault("made", [])
        older = [p for p in made if p.stream is stream]
        made.append(program)
        close = program.close

        def close_all() -> None:
            close()
            for p in older:
                if p.body is not None:
                    p.body.run = nothing  # type: ignore[method-assign]

        program.close = close_all  # type: ignore[method-assign]
        return program


@breaks("EVT-5", "Closing an event closes those recorded on its stream before.", CPU)
class ClosedEventTakesOthers(BaseDevice):
    """They are numbers of one counter, and a closed one releases it."""

    def create_event(self) -> BaseEvent:
        made: list[BaseEvent] = self.__dict__.setdefault("events", [])

        class Takes(BaseEvent):
            __slots__ = ()

            def close(self) -> None:
                super().close()
                for event in made:
                    if event._progress is self._progress and event._position <= self._position:
                        event._position = 0

        made.append(Takes(self))
        return made[-1]


# --- failures ---------------------------------------------------------------------------------


@breaks("ERR-2", "Uploads behind a wait that has failed run.", CPU)
class UploadsRunBehindAFailure(_SomeRun):
    """They have a queue of their own."""

    def runs(self, command: Command) -> bool:
        return command == "upload"


@breaks("ERR-2", "Fills behind a wait that has failed run.", CPU)
class FillsRunBehindAFailure(_SomeRun):
    """They have a queue of their own."""

    def runs(self, command: Command) -> bool:
        return command == "fill"


@breaks("ERR-2", "Launches behind a wait that has failed run.", CPU)
class LaunchesRunBehindAFailure(_SomeRun):
    """They have a queue of their own."""

    def runs(self, command: Command) -> bool:
        return not isinstance(command, str) and type(command).__name__ != "_Replay"
