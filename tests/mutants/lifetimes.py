"""BUF-1, BUF-2, CAP-3, CPY-5: memory that is freed twice, forgotten, or not kept."""

import weakref
from typing import Any, ClassVar

import numpy as np

from ggsched.backend import checks
from ggsched.backend.base import BaseBuffer, BaseDevice, BaseStream
from ggsched.backend.base_buffer import own_buffer, writable_memory
from ggsched.backend.list_capture import RecordedGraph
from ggsched.backend.protocols import Buffer, HostMemory, Program
from ggsched.errors import DeviceFault, OutOfDeviceMemory
from ggsched_testing.sim import SimBuffer, SimDevice, SimStream
from tests.mutants.baselines import CPU, SIM, SIM_SMALL
from tests.mutants.hosts import forgetful_upload, owner_of
from tests.mutants.mutant import breaks
from tests.mutants.mutate_calls import give_back_on_close

# --- BUF-1 ------------------------------------------------------------------------------------


@breaks("BUF-1", "Closing a buffer twice frees its memory twice.", CPU)
class DoubleCloseFreesTwice(BaseDevice):
    """The free list has it twice, and two buffers get it."""

    def allocate(self, nbytes: int) -> BaseBuffer:
        free: list[Any] = self.__dict__.setdefault("free", [])
        found = next((m for m in free if m.nbytes == nbytes), None)
        made = super().allocate(nbytes)
        if found is not None:
            free[:] = [m for i, m in enumerate(free) if i != [id(f) for f in free].index(id(found))]
            made._memory = found
        memory, close, closes = made.memory, made.close, [0]

        def close_again() -> None:
            closes[0] += 1
            if closes[0] > 1:
                free.extend([memory] * 2 if closes[0] == 2 else [])
            close()

        made.close = close_again  # type: ignore[method-assign]
        return made


@breaks("BUF-1", "Closing a buffer writes into the one that was made after it.", CPU)
class FreeListInTheNeighbour(BaseDevice):
    """The free list is kept in memory, one word too far."""

    def allocate(self, nbytes: int) -> BaseBuffer:
        made = super().allocate(nbytes)
        last: list[BaseBuffer] = self.__dict__.setdefault("last", [])
        if last:
            _spoil_at_close(last[0], made)
        last[:] = [made]
        return made


def _spoil_at_close(buffer: BaseBuffer, neighbour: BaseBuffer) -> None:
    close = buffer.close

    def close_and_link() -> None:
        was_open = not buffer.is_closed
        close()
        if was_open and not neighbour.is_closed and neighbour.nbytes:
            neighbour.memory[:4] = 0

    buffer.close = close_and_link  # type: ignore[method-assign]


@breaks("BUF-1", "One byte more than is free can be had.", SIM_SMALL)
class LimitIsOffByOne(SimDevice):
    """Less than is taken for at most."""

    @property
    def free_nbytes(self) -> int:
        free = super().free_nbytes
        return free + 1 if free < self.facts.memory_nbytes else free


@breaks("BUF-1", "The last byte of the memory cannot be had.", SIM_SMALL)
class LastByteIsKept(SimDevice):
    """At most is taken for less than."""

    def allocate(self, nbytes: int) -> SimBuffer:
        if nbytes and nbytes == self.free_nbytes:
            raise self._out_of_memory(nbytes)
        return super().allocate(nbytes)


@breaks("BUF-1", "The error about too much names all memory as free.", CPU)
class FreeBytesAreAllBytes(BaseDevice):
    """The figure is the device's, not what is left."""

    def _out_of_memory(self, nbytes: int) -> OutOfDeviceMemory:
        return checks.out_of_memory_error(self.facts, nbytes, self.facts.memory_nbytes)


@breaks("BUF-1", "After a fault, memory that is closed does not come back.", SIM_SMALL)
class FaultLosesMemory(SimDevice):
    """Nobody is sure that it is unused."""

    @property
    def free_nbytes(self) -> int:
        kept = self.__dict__
        if any(s.fault is not None for s in self.streams):
            kept["failed"] = True
        return super().free_nbytes - (kept.get("leaked", 0) if kept.get("failed") else 0)

    def allocate(self, nbytes: int) -> SimBuffer:
        made = super().allocate(nbytes)
        close = made.close

        def lose() -> None:
            if not made.is_closed and any(s.fault is not None for s in self.streams):
                self.__dict__["leaked"] = int(self.__dict__.get("leaked", 0)) + nbytes
            close()

        made.close = lose  # type: ignore[method-assign]
        return made


@breaks("BUF-1", "Empty buffers count as a page each.", SIM_SMALL)
class EmptyBuffersCount(SimDevice):
    """There is no allocation of nothing."""

    @property
    def free_nbytes(self) -> int:
        pages = sum(not b.is_closed and b.nbytes == 0 for b in self.buffers)
        return super().free_nbytes - 4096 * pages


# --- BUF-2 ------------------------------------------------------------------------------------


class _CountingPool(BaseDevice):
    """Hands closed memory out again when no command uses it; one kind of use is forgotten."""

    forgets: ClassVar[str] = ""

    def allocate(self, nbytes: int) -> BaseBuffer:
        """Take from the pool what is of the length, and not in use."""
        pool: list[Any] = self.__dict__.setdefault("pool", [])
        found = next((m for m in pool if m.nbytes == nbytes and not self.in_use(m)), None)
        made = super().allocate(nbytes)
        if found is not None:
            pool[:] = [m for m in pool if m is not found]
            made._memory = found
        return give_back_on_close(made, pool)

    def in_use(self, memory: Any) -> bool:
        """Whether a command that is counted is enqueued and not complete."""
        uses = self.__dict__.get("uses", [])
        return any(m is memory and s.progress.done < p for m, s, p in uses)

    def use(self, kind: str, buffer: Any, stream: BaseStream) -> None:
        """Count a use by the next command of a stream."""
        if kind != self.forgets and not buffer.is_closed:
            entry = (buffer._memory, stream, stream.progress.enqueued + 1)
            self.__dict__.setdefault("uses", []).append(entry)

    def create_stream(self) -> BaseStream:
        """Return a stream whose commands count."""
        stream = super().create_stream()
        stream.__class__ = type("Counting", (_Counting, type(stream)), {"__slots__": ()})
        return stream

    def compile(self, nodes: Any, stream: Any) -> Any:
        """Remember operands."""
        program = super().compile(nodes, stream)
        uses = [("input", o.buffer) for n in nodes for o in n.inputs]
        self.__dict__.setdefault("operands", {})[id(program)] = (
            program,
            [*uses, *(("output", n.output.buffer) for n in nodes)],
        )
        return program


class _Counting(BaseStream):
    """Counts the uses of buffers."""

    def _uses(self, *uses: tuple[str, Any]) -> None:
        device: Any = self.device
        for kind, buffer in uses:
            if buffer.device is device:
                device.use(kind, buffer, self)

    def upload(self, source: HostMemory, buffer: Buffer, offset: int) -> None:
        """Count the destination."""
        self._uses(("upload", buffer))
        super().upload(source, buffer, offset)

    def download(self, buffer: Buffer, offset: int, target: HostMemory) -> None:
        """Count the source."""
        self._uses(("download", buffer))
        super().download(buffer, offset, target)

    def copy(self, src: Buffer, src_offset: int, dst: Buffer, dst_offset: int, nbytes: int) -> None:
        """Count both."""
        self._uses(("source", src), ("destination", dst))
        super().copy(src, src_offset, dst, dst_offset, nbytes)

    def fill(self, buffer: Buffer, offset: int, nbytes: int, pattern: bytes) -> None:
        """Count the destination."""
        self._uses(("fill", buffer))
        super().fill(buffer, offset, nbytes, pattern)

    def launch(self, program: Program) -> None:
        """Count operands."""
        operands = self.device.__dict__.get("operands", {}).get(id(program), (None, []))[1]
        self._uses(*operands)
        super().launch(program)


@breaks("BUF-2", "A pool forgets the destinations of copies.", CPU)
class PoolForgetsDestinations(_CountingPool):
    """Only what is read is protected."""

    forgets = "destination"


@breaks("BUF-2", "A pool forgets what fills write.", CPU)
class PoolForgetsFills(_CountingPool):
    """They came later than the pool."""

    forgets = "fill"


@breaks("BUF-2", "A pool forgets what downloads read.", CPU)
class PoolForgetsDownloads(_CountingPool):
    """The host gets another buffer's bytes."""

    forgets = "download"


@breaks("BUF-2", "A pool forgets the inputs of launches.", CPU)
class PoolForgetsInputs(_CountingPool):
    """Only results are protected."""

    forgets = "input"


@breaks("BUF-2", "A pool knows of the last stream only that used some memory.", CPU)
class PoolKnowsOneStream(_CountingPool):
    """The last user takes the place of the one before."""

    def use(self, kind: str, buffer: Any, stream: BaseStream) -> None:
        uses = self.__dict__.setdefault("uses", [])
        uses[:] = [u for u in uses if u[0] is not buffer._memory or u[1] is stream]
        super().use(kind, buffer, stream)


@breaks("BUF-2", "A pool checks whether the first of several users is done.", CPU)
class PoolAsksTheFirstUser(_CountingPool):
    """It keeps the position of the first command."""

    def in_use(self, memory: Any) -> bool:
        uses = [u for u in self.__dict__.get("uses", []) if u[0] is memory]
        return bool(uses) and uses[0][1].progress.done < uses[0][2]


@breaks("BUF-2", "Closing a stream that waits frees the memory of its commands.", CPU)
class PoolForgetsClosedStreams(_CountingPool):
    """A closed stream is taken for an idle one."""

    def in_use(self, memory: Any) -> bool:
        uses = self.__dict__.get("uses", [])
        return any(m is memory and not s.is_closed and s.progress.done < p for m, s, p in uses)


# --- host memory of graphs and downloads ------------------------------------------------------


@breaks("CAP-3", "A graph does not keep the host memory of its uploads.", CPU)
class GraphDoesNotKeepItsSources(BaseStream):
    """It has the address only; a weak reference stands for it, and dead memory for zeros."""

    def upload(self, source: HostMemory, buffer: Buffer, offset: int) -> None:
        if not self.sink.is_capturing or not isinstance(owner_of(source), np.ndarray):
            super().upload(source, buffer, offset)
            return
        self._require_usable()
        checks.check_upload(self.device, source, buffer, offset)
        write = forgetful_upload(self.device, source, buffer, offset)
        self.sink.add(self, "upload", write)


@breaks("CAP-3", "A graph lets go of its host memory after the first replay.", CPU)
class GraphReadsAStaleSource(BaseStream):
    """Later replays send what the first one sent, if the source has gone from the caller."""

    def replay(self, graph: Any) -> None:
        super().replay(graph)
        if isinstance(graph, RecordedGraph) and graph._calls is not None:
            graph._calls = tuple(c for c in graph._calls if c[0] not in ("upload", "download"))


@breaks("CAP-1", "A replay uses the bytes that its buffers had when they were captured.", CPU)
class GraphKeepsItsBuffers(BaseStream):
    """Sources of copies are kept with the graph."""

    def copy(self, src: Buffer, src_offset: int, dst: Buffer, dst_offset: int, nbytes: int) -> None:
        if not self.sink.is_capturing or src.device is not self.device or src is dst:
            super().copy(src, src_offset, dst, dst_offset, nbytes)
            return
        checks.check_copy(self.device, src, src_offset, dst, dst_offset, nbytes)
        kept = own_buffer(src).memory.copy()
        memory, write = writable_memory(dst), self.device.write_memory
        part = kept[src_offset : src_offset + nbytes].data
        self.sink.add(self, "copy", lambda: write(memory, dst_offset, part))


@breaks("CPY-5", "A download does not keep its target.", CPU)
class TargetIsNotKept(BaseStream):
    """It has the address only; where the caller drops it, somebody else's memory is written."""

    def download(self, buffer: Buffer, offset: int, target: HostMemory) -> None:
        owner = owner_of(target)
        if self.sink.is_capturing or not isinstance(owner, np.ndarray) or target.readonly:
            super().download(buffer, offset, target)
            return
        self._require_usable()
        checks.check_download(self.device, buffer, offset, target)
        memory, nbytes = own_buffer(buffer).memory, target.nbytes
        start = np.frombuffer(target, np.uint8).ctypes.data - owner.ctypes.data if nbytes else 0
        watch = weakref.ref(owner)
        del owner, target

        def read() -> None:
            alive = watch()
            if alive is None:
                raise DeviceFault("written to memory that is gone")
            there = alive.reshape(-1).view(np.uint8)[start : start + nbytes]
            self.device.read_memory(memory, offset, there.data)

        self._submit("download", read)


@breaks("BUF-2", "A simulated device reuses memory that only a copy still writes.", SIM)
class SimReusesDestinations(SimStream):
    """Copies are not checked for what they write."""

    def copy(self, src: Buffer, src_offset: int, dst: Buffer, dst_offset: int, nbytes: int) -> None:
        super().copy(src, src_offset, dst, dst_offset, nbytes)
        device: Any = self.device
        if isinstance(dst, SimBuffer) and "hooked" not in dst.__dict__:
            dst.__dict__["hooked"] = True
            _reuse(device, dst)


def _reuse(device: Any, buffer: SimBuffer) -> None:
    """Give the array of a buffer to the next one of its length when it is closed."""
    close, allocate = buffer.close, device.allocate
    freed: list[Any] = []

    def close_and_free() -> None:
        if not buffer.is_closed:
            freed.append(buffer.array)
        close()

    def take(nbytes: int) -> SimBuffer:
        made: SimBuffer = allocate(nbytes)
        if freed and freed[0].nbytes == nbytes:
            made.array = freed.pop()
        return made

    setattr(buffer, "close", close_and_free)  # noqa: B010
    setattr(device, "allocate", take)  # noqa: B010
