"""The store: weights and states that live longer than a plan, and the streams all plans share.

A weight or state is resident once on the device that a plan names as its home; every plan that is
bound to the store uses that one buffer. Streams are shared too, so that work of two plans on one
device stays in order and ``max_streams`` is not used up by plans that are idle.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Final

import numpy as np

from ggsched.backend.fill import fill
from ggsched.backend.protocols import Buffer, Device, HostMemory, Stream
from ggsched.errors import GgschedError, SyncTimeout, UsageError
from ggsched.interchange.dlpack_import import check_array
from ggsched.ir.dtype import DType
from ggsched.ir.tensor import Tensor
from ggsched.plan.memory import Arena
from ggsched.run.expert_ledger import ExpertLedger
from ggsched.run.release import close_all
from ggsched.run.row_cache import RowCache

WeightSource = Callable[[str], np.ndarray] | Mapping[str, np.ndarray]
"""Gives a weight by name, in the host form of the tensor that the graph declares."""

ZERO: Final = bytes(1)

Progress = Callable[[str, int], None]
"""Called with the name and the bytes of each weight that has become resident."""


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
    ) -> None:
        self.devices = tuple(devices)
        self.timeout_s = timeout_s
        self._weights = weights
        self._progress = progress
        self._resident: dict[str, Resident] = {}
        self._streams: dict[tuple[int, int], Stream] = {}
        self._hanging: set[tuple[int, int]] = set()
        self._generations: dict[str, int] = {}
        self._row_caches: dict[str, RowCache] = {}
        self.ledger = ExpertLedger()

    def stream(self, device: int, index: int) -> Stream:
        """Return the ``index``-th stream of a device, made on first use."""
        key = (device, index)
        if key not in self._streams:
            self._streams[key] = self.devices[device].create_stream()
        return self._streams[key]

    def tensor(self, arena: Arena, tensor: Tensor) -> Buffer:
        """Return the buffer of a weight, state or cache arena, made and filled on first use.

        Args:
            arena: The arena.
            tensor: The weight or state; for a cache, the weight that is cached.

        Raises:
            UsageError: the weight is missing or of another shape or type, or the name is resident
                elsewhere, as something else, or in another shape or type.
            OutOfDeviceMemory: it does not fit.
        """
        key = _key(arena)
        known = self._resident.get(key)
        if known is None:
            known = self._resident[key] = self._made(arena, tensor)
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
        self._fill(held.device, held.buffer, data, name)

    def release(self, names: Collection[str]) -> None:
        """Close the buffers of weights and states that no plan uses; the next use fills anew."""
        for name in names:
            self._generations[name] = self._generation(name) + 1
            self._row_caches.pop(name, None)  # where the name is that of a cache
        close_all([self._resident.pop(name).buffer for name in sorted(names)])

    def clear_states(self) -> None:
        """Fill all states with zeros and wait until that is done."""
        states = {name: r for name, r in self._resident.items() if r.kind == "state"}
        for name, r in states.items():  # all devices at once
            with self._filling(name):
                fill(self.stream(r.device, 0), r.buffer, 0, r.nbytes, ZERO)
        for device, name in {r.device: name for name, r in states.items()}.items():
            with self._filling(name):
                self.stream(device, 0).sync(self.timeout_s)

    def nbytes_by_device(self, kind: str) -> dict[str, int]:
        """Return the resident bytes of ``"weight"``, ``"state"`` or ``"cache"`` by device name."""
        out: dict[str, int] = {}
        for r in list(self._resident.values()):  # another thread may be adding to them
            if r.kind == kind:
                name = self.devices[r.device].facts.name
                out[name] = out.get(name, 0) + r.nbytes
        return out

    def drain(self, *, patient: bool = True) -> list[GgschedError]:
        """Wait for all streams, ``timeout_s`` at most; return what went wrong.

        Unless it is patient it does not wait again for a stream that hung before.
        """
        failures: list[GgschedError] = []
        end = monotonic() + self.timeout_s
        for key, stream in self._streams.items():
            hung = key in self._hanging and not patient
            try:
                stream.sync(0.0 if hung else max(0.0, end - monotonic()))
                self._hanging.discard(key)
            except SyncTimeout as error:
                self._hanging.add(key)
                failures.append(error)
            except GgschedError as error:
                failures.append(error)
        return failures

    def close(self) -> None:
        """Release buffers and streams; legal twice and after a fault."""
        self.drain(patient=False)
        buffers = [r.buffer for r in self._resident.values()]
        streams = list(self._streams.values())
        self._resident.clear()
        self._streams.clear()
        close_all([*buffers, *streams])

    def _made(self, arena: Arena, tensor: Tensor) -> Resident:
        device, imported = self.devices[arena.device], False
        if arena.kind == "cache":
            buffer = device.allocate(arena.nbytes)
        elif arena.kind == "state":
            buffer = self._filled(arena, None)
        else:
            data = self._host_bytes(arena, tensor)
            imported = device.facts.imports_host_memory and _is_aligned(
                data, device.facts.alignment
            )
            buffer = device.import_host(data) if imported else self._filled(arena, data)
            if self._progress is not None:
                self._progress(arena.name, arena.nbytes)
        here = (arena.device, arena.nbytes, arena.kind)
        return Resident(buffer, *here, tensor.dtype, tensor.shape, imported)

    def _filled(self, arena: Arena, data: HostMemory | None) -> Buffer:
        buffer = self.devices[arena.device].allocate(arena.nbytes)
        try:
            self._fill(arena.device, buffer, data, arena.name)
        except GgschedError:
            buffer.close()
            raise
        return buffer

    def _fill(self, device: int, buffer: Buffer, data: HostMemory | None, name: str) -> None:
        """Write all bytes of a buffer, zeros without data, and wait until that is done."""
        with self._filling(name):
            stream = self.stream(device, 0)
            if data is None:
                fill(stream, buffer, 0, buffer.nbytes, ZERO)
            else:
                stream.upload(data, buffer, 0)
            stream.sync(self.timeout_s)

    @contextmanager
    def _filling(self, name: str) -> Iterator[None]:
        """Forget what was cached of a tensor; let errors name it."""
        self._generations[name] = self._generation(name) + 1
        try:
            yield
        except GgschedError as error:
            error.add_note(f"while filling {name!r}")
            raise

    def _host_bytes(self, arena: Arena, tensor: Tensor) -> HostMemory:
        try:
            source = self._weights
            array = source(arena.name) if callable(source) else source[arena.name]
        except KeyError:
            raise UsageError(
                "no data for this weight", where=arena.name, hint="pass it in weights={name: array}"
            ) from None
        check_array(array, tensor)
        return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data.toreadonly()


def _key(arena: Arena) -> str:
    """Return under which name an arena is resident: a weight may be cached on several devices."""
    return arena.name if arena.kind != "cache" else f"{arena.name} on device {arena.device}"


def _is_aligned(data: HostMemory, alignment: int) -> bool:
    address = np.frombuffer(data, np.uint8).ctypes.data if data.nbytes else 0
    # A mapped file aligns tensors to 32 bytes, which host kernels handle as well.
    return address % min(alignment, 32) == 0
