"""The store: weights and states that live longer than a plan, and the streams all plans share.

A weight or state is resident once on the device that a plan names as its home; every plan that is
bound to the store uses that one buffer. Streams are shared too, so that work of two plans on one
device stays in order and ``max_streams`` is not used up by plans that are idle.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from ggsched.backend.arrays import aligned_bytes
from ggsched.backend.interrupts import is_interrupt
from ggsched.backend.page_lock import PageLock, lock_pages, locks_pages
from ggsched.backend.plugin_calls import broken_by, name_of, plugin_call
from ggsched.backend.progress import progress_of, wait_patiently
from ggsched.backend.protocols import Buffer, Device, HostMemory, Stream
from ggsched.errors import GgschedError, OutOfDeviceMemory, SyncTimeout, UsageError
from ggsched.files.mapping import MappedFile, file_behind
from ggsched.interchange.dlpack_import import check_array
from ggsched.ir.dtype import DType
from ggsched.ir.tensor import Tensor
from ggsched.plan.memory import Arena
from ggsched.run.expert_ledger import ExpertLedger
from ggsched.run.graph_order import GraphOrder
from ggsched.run.loading import Loader, NoteWrite
from ggsched.run.release import close_all
from ggsched.run.row_cache import RowCache
from ggsched.run.weight_rows import WeightRows, rows_of

WeightSource = Callable[[str], np.ndarray] | Mapping[str, np.ndarray]
"""Gives a weight by name, in the host form of the tensor that the graph declares."""

PAGE_NBYTES: Final = 4096

Progress = Callable[[str, int], None]
"""Called with the name and the bytes of each weight that has become resident."""


def report_stage(progress: Progress | None, what: str) -> None:
    """Report what is being done to ``progress``, if that has a method ``stage``."""
    report = getattr(progress, "stage", None)
    if report is not None:
        report(what)


@dataclass(frozen=True, slots=True)
class Resident:
    """A weight, state or cache on a device.

    Attributes:
        buffer: Its bytes.
        device: Index of the device.
        nbytes: Length of the buffer.
        kind: ``"weight"``, ``"state"`` or ``"cache"``.
        dtype: Element type of the tensor; for a cache, of the weight that is cached.
        shape: Extents of that tensor.
        imported: Whether the bytes are borrowed host memory.
    """

    buffer: Buffer
    device: int
    nbytes: int
    kind: str
    dtype: DType
    shape: tuple[int, ...]
    imported: bool = False

    def matches(self, tensor: Tensor) -> bool:
        """Whether a tensor of a graph has the shape and the element type of the resident one."""
        return (self.dtype, self.shape) == (tensor.dtype, tensor.shape)


class TensorStore:
    """Weights, states and streams on a list of devices. Not thread safe.

    Releases in this order on ``close``: streams are drained by their owners first, then buffers,
    then streams. Devices belong to the caller.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        weights: WeightSource,
        *,
        timeout_s: float,
        progress: Progress | None = None,
        note: NoteWrite | None = None,
    ) -> None:
        self.devices = tuple(devices)
        self.timeout_s = timeout_s
        self._weights = weights
        self._progress = progress
        self._note = note
        self._loader: Loader | None = None
        self._loaded: list[str] = []
        self._files: dict[int, MappedFile] = {}
        self._locks: dict[str, PageLock | None] = {}
        self._constants: dict[str, bytes] = {}
        self._resident: dict[str, Resident] = {}
        self._streams: dict[tuple[int, int], Stream] = {}
        self._hanging: set[tuple[int, int]] = set()
        self._generations: dict[str, int] = {}
        self._row_caches: dict[str, RowCache] = {}
        self.ledger = ExpertLedger()
        self.graph_order = GraphOrder()

    def hold(self, constants: Mapping[str, bytes]) -> None:
        """Take the bytes of weights that a graph brings along, by name."""
        self._constants.update(constants)

    def stream(self, device: int, index: int) -> Stream:
        """Return the ``index``-th stream of a device, made on first use."""
        key = (device, index)
        if key not in self._streams:
            owner = self.devices[device]
            made = plugin_call(name_of(owner), "create_stream", owner.create_stream, Stream)
            self._streams[key] = made
        return self._streams[key]

    def stage(self, what: str) -> None:
        """Report what is being done to ``progress``."""
        report_stage(self._progress, what)

    @property
    def streams(self) -> tuple[Stream, ...]:
        """All streams that were made."""
        return tuple(self._streams.values())

    is_lost: Final = False
    """Whether a machine of the devices was lost; see ``Store``."""

    def progress(self) -> object:
        """Return a value that changes while any stream progresses."""
        return tuple(progress_of(stream) for stream in self._streams.values())

    @contextmanager
    def loading(self) -> Iterator[Loader]:
        """Let tensors of the block be filled at the same time; all of them are when it ends.

        Raises:
            DeviceFault: one could not be filled.
        """
        if self._loader is not None:
            yield self._loader
            return
        self._loaded, known = [], self.names
        loader = self._loader = Loader(
            self.devices,
            lambda d: self.stream(d, 0),
            timeout_s=self.timeout_s,
            note=self._note,
            own_thread=self._note is None,
        )
        try:
            yield loader
        except BaseException:
            loader.cancel()
            raise
        finally:
            self._loader = None
            try:
                loader.close()
                if loader.is_cancelled:
                    self.release(self.names - known)
            except BaseException as error:
                self.release(self.names - known)  # nobody knows what they hold
                if not getattr(error, "__notes__", ()):
                    names = self._loaded
                    error.add_note(
                        f"while filling {names[0]!r}"
                        if len(names) == 1
                        else f"while filling {len(names)} tensors"
                    )
                raise

    def begin_uploads(self) -> None:
        """Let what waits in a block of ``loading`` be on its way: its memory has been allocated."""
        if self._loader is not None:
            self._loader.begin()

    def require_files(self) -> None:
        """Raise if a file whose mapping devices read was changed since.

        Raises:
            ModelError: what was computed, or would be, is not what the file says.
        """
        for file in self._files.values():
            file.require_unchanged()

    def tensor(self, arena: Arena, tensor: Tensor, *, reader: int | None = None) -> Buffer:
        """Return the buffer of a weight, state or cache arena, made and filled on first use.

        Args:
            tensor: The weight or state; for a cache, the weight that is cached.
            reader: Another device that copies from it, so that its home, if that is host memory,
                is memory that this device reads at the full rate of its link.

        Raises:
            UsageError: the weight is missing or of another shape or type, or the name is resident
                elsewhere, as something else, or in another shape or type.
            OutOfDeviceMemory: it does not fit.
        """
        key = _key(arena)
        known = self._resident.get(key)
        if known is None:
            with self.loading() as loader:
                known = self._make(arena, tensor, loader, reader)
        wanted = (arena.device, arena.nbytes, arena.kind)
        if (known.device, known.nbytes, known.kind) != wanted or not known.matches(tensor):
            here, there = (self.devices[d].facts.name for d in (known.device, arena.device))
            raise UsageError(
                f"is resident as {known.kind} of {known.nbytes} bytes on {here}, "
                f"{known.dtype}{list(known.shape)}",
                where=arena.name,
                why=f"this plan wants a {arena.kind} of {arena.nbytes} bytes on {there}, "
                f"{tensor.dtype}{list(tensor.shape)}",
                hint="plan with the same homes, or use another scheduler"
                if known.matches(tensor)
                else "one name is one tensor in all graphs of a scheduler: rename one of them, "
                "or use another scheduler",
            )
        return known.buffer

    def lock(self, arena: Arena, device: int) -> None:
        """Let a device copy from and to a state in host memory at the full rate of its link."""
        key = _key(arena)
        if key not in self._locks:
            memory = self._resident[key].buffer.host_view()
            self._locks[key] = lock_pages(self.devices[device], memory)

    def row_cache(self, arena: Arena, slots: int) -> RowCache:
        """Return what is known about the rows in a cache arena.

        Rows of an earlier generation of the weight do not count: those before its bytes were
        read again (``release``).
        """
        key = _key(arena)
        if key not in self._row_caches:
            self._row_caches[key] = RowCache(slots, partial(self._generation, arena.name))
        return self._row_caches[key]

    @property
    def row_caches(self) -> tuple[RowCache, ...]:
        """All row caches."""
        return tuple(self._row_caches.values())

    def _generation(self, name: str) -> int:
        return self._generations.get(name, 0)

    @property
    def names(self) -> frozenset[str]:
        """Names of everything that is resident."""
        return frozenset(self._resident)

    def holds(self, arenas: Iterable[Arena]) -> bool:
        """Whether all weights, states and caches of these are resident."""
        return all(not a.name or _key(a) in self._resident for a in arenas)

    def resident(self, name: str) -> Resident | None:
        """Return a weight or state that is on a device, or None."""
        return self._resident.get(name)

    def fill(self, name: str, data: HostMemory) -> None:
        """Write all bytes of a resident tensor and wait until that is done.

        Args:
            name: A tensor that is resident.
            data: Its bytes, borrowed meanwhile (CPY-4).
        """
        held = self._resident[name]
        with self.loading() as loader, self._filling(name):
            loader.upload(held.device, held.buffer, data, name)

    def release(self, names: Collection[str]) -> None:
        """Close the buffers of weights and states that no plan uses; the next use fills anew."""
        for name in names:
            self._generations[name] = self._generation(name) + 1
            self._row_caches.pop(name, None)  # where the name is that of a cache
        close_all([lock for n in names if (lock := self._locks.pop(n, None)) is not None])
        close_all([self._resident.pop(name).buffer for name in sorted(names)])

    def clear_states(self) -> None:
        """Fill all states with zeros and wait until that is done."""
        states = {name: r for name, r in self._resident.items() if r.kind == "state"}
        with self.loading() as loader:
            for name, r in states.items():
                with self._filling(name):
                    loader.clear(r.device, r.buffer)

    def nbytes_by_device(self, kind: str) -> dict[str, int]:
        """Return the resident bytes of ``"weight"``, ``"state"`` or ``"cache"`` by device name."""
        out: dict[str, int] = {}
        for r in list(self._resident.values()):  # another thread may be adding to them
            if r.kind == kind:
                name = self.devices[r.device].facts.name
                out[name] = out.get(name, 0) + r.nbytes
        return out

    def drain(self, *, patient: bool = True) -> list[GgschedError]:
        """Wait for all streams until none has progressed for ``timeout_s``; return what went wrong.

        Unless it is patient it does not wait again for a stream that hung before.
        """
        failures: list[GgschedError] = []
        timeout_s = self.timeout_s
        for key, stream in self._streams.items():
            hung = key in self._hanging and not patient
            try:
                wait_patiently(stream.sync, self.progress, 0.0 if hung else timeout_s)
                self._hanging.discard(key)
            except SyncTimeout as error:
                timeout_s = 0.0  # none progressed
                self._hanging.add(key)
                failures.append(error)
            except GgschedError as error:
                failures.append(error)
            except Exception as error:
                if is_interrupt(error):
                    raise
                failures.append(broken_by(name_of(self.devices[key[0]]), "sync", error))
        self.graph_order.drained()
        return failures

    def close(self) -> None:
        """Release buffers and streams; legal twice and after a fault."""
        self.drain(patient=False)
        locks = [lock for lock in self._locks.values() if lock is not None]
        buffers = [r.buffer for r in self._resident.values()]
        close_all([*locks, *buffers, *self._streams.values()], self._forget)

    def _forget(self) -> None:
        self._resident.clear()
        self._streams.clear()
        self._locks.clear()

    def _make(self, arena: Arena, tensor: Tensor, loader: Loader, reader: int | None) -> Resident:
        """Make a buffer and let it be filled; ``loading`` releases it if anything fails."""
        if arena.kind != "weight":
            held = self._keep(arena, tensor, self._allocated(arena))
            if arena.kind == "state":
                with self._filling(arena.name):
                    loader.clear(arena.device, held.buffer)
            return held
        device, imported = self.devices[arena.device], False
        data, progress = self._host_bytes(arena, tensor), self._progress
        report = partial(progress, arena.name, arena.nbytes) if progress is not None else None
        if device.facts.imports_host_memory:
            joined = data.joined() if isinstance(data, WeightRows) else data
            data = memory = self._readable(arena.name, joined, loader, reader)
            imported = _is_aligned(memory, device.facts.alignment)
        if not imported:
            held = self._keep(arena, tensor, self._allocated(arena))
            with self._filling(arena.name):
                loader.upload(arena.device, held.buffer, data, arena.name, report)
            return held
        with _naming(arena):
            buffer = _imported(device, memory)
        held = self._keep(arena, tensor, buffer, imported=True)
        self._note_file(memory)
        if report is not None:
            report()
        return held

    def _keep(
        self, arena: Arena, tensor: Tensor, buffer: Buffer, *, imported: bool = False
    ) -> Resident:
        here = (arena.device, arena.nbytes, arena.kind)
        held = Resident(buffer, *here, tensor.dtype, tensor.shape, imported)
        self._resident[_key(arena)] = held
        return held

    def _readable(
        self, name: str, data: HostMemory, loader: Loader, reader: int | None
    ) -> HostMemory:
        """Return host memory with these bytes that a device can read at the rate of its link.

        Pages of a file are not locked: they are read into memory of ours, by several threads.
        """
        if reader is None or not locks_pages(self.devices[reader]):
            return data
        try:
            memory = aligned_bytes(data.nbytes, PAGE_NBYTES).data
        except MemoryError:
            return data
        loader.read(data, memory)
        lock = lock_pages(self.devices[reader], memory)
        if lock is None:
            return data
        self._locks[name] = lock
        return memory.toreadonly()

    def _allocated(self, arena: Arena) -> Buffer:
        device, nbytes = self.devices[arena.device], arena.nbytes
        with _naming(arena):
            return plugin_call(name_of(device), "allocate", lambda: device.allocate(nbytes), Buffer)

    def _note_file(self, data: HostMemory) -> None:
        found = file_behind(data)
        if found is not None:
            self._files[found[0].start] = found[0]

    @contextmanager
    def _filling(self, name: str) -> Iterator[None]:
        """Forget what was cached of a tensor; let errors name it."""
        self._generations[name] = self._generation(name) + 1
        self._loaded.append(name)
        try:
            yield
        except GgschedError as error:
            error.add_note(f"while filling {name!r}")
            raise

    def _host_bytes(self, arena: Arena, tensor: Tensor) -> HostMemory | WeightRows:
        if arena.name in self._constants:
            return memoryview(self._constants[arena.name])
        try:
            source = self._weights
            array = source(arena.name) if callable(source) else source[arena.name]
        except KeyError:
            raise UsageError(
                "no data for this weight", where=arena.name, hint="pass it in weights={name: array}"
            ) from None
        check_array(array, tensor)
        if (rows := rows_of(array)) is not None:
            return rows
        return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data.toreadonly()


def _key(arena: Arena) -> str:
    """Return under which name an arena is resident: a weight may be cached on several devices."""
    return arena.name if arena.kind != "cache" else f"{arena.name} on device {arena.device}"


@contextmanager
def _naming(arena: Arena) -> Iterator[None]:
    """Let the error for memory that a device has not got name what it was for."""
    try:
        yield
    except OutOfDeviceMemory as error:
        raise OutOfDeviceMemory(
            error.what,
            where=error.where,
            why=f"for {arena.kind} {arena.name!r}; {error.why}",
            hint=error.hint,
            details=error.details,
        ) from error


def _imported(device: Device, data: HostMemory) -> Buffer:
    return plugin_call(name_of(device), "import_host", lambda: device.import_host(data), Buffer)


def _is_aligned(data: HostMemory, alignment: int) -> bool:
    address = np.frombuffer(data, np.uint8).ctypes.data if data.nbytes else 0
    # A mapped file aligns tensors to 32 bytes, which host kernels handle as well.
    return address % min(alignment, 32) == 0
