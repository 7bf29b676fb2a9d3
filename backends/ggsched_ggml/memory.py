"""Memory of ggml's buffers, and the streams that its backends are; freed when nobody has them."""

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from ggsched.backend.base_issuing import HostWrites
from ggsched.backend.protocols import HostMemory
from ggsched_ggml.driver import TYPES, Handle, Library

WINDOW_NBYTES: Final = 1 << 30
"""Most bytes of a tensor of bytes: ggml's RPC sends extents and strides in 32 bits."""
_COMPUTE: Final = 2
"""Use of a buffer. To weights some backends add padding, in bytes of others."""


def freed_with(owner: object, free: Callable[..., object], *args: Any) -> None:
    """Call a function once nobody has an object any more."""
    weakref.finalize(owner, free, *args).atexit = False


class Memory:
    """A buffer of ggml with tensors of bytes over all of it.

    Args:
        buffer: The handle, which it owns.
        skip: Bytes at the beginning that are somebody else's.
        source: Host memory that it is made of, if any.

    Attributes:
        base: Address of the first byte; on some devices not one of the host's.
        windows: The tensors, one behind the other.
    """

    def __init__(
        self,
        library: Library,
        buffer: Handle,
        nbytes: int,
        skip: int = 0,
        source: HostMemory | None = None,
    ) -> None:
        self.buffer, self.nbytes, self.source = buffer, nbytes, source
        self.base = library.ggml_backend_buffer_get_base(buffer) + skip
        library.ggml_backend_buffer_set_usage(buffer, _COMPUTE)
        windows = [
            bytes_at(library, buffer, self.base + start, min(WINDOW_NBYTES, nbytes - start))
            for start in range(0, max(nbytes, 1), WINDOW_NBYTES)
        ]
        self.windows = [tensor for _, tensor in windows]
        freed_with(self, _free, library, [context for context, _ in windows], buffer)

    def pieces(self, offset: int, nbytes: int) -> Iterator[tuple[Handle, int, int, int]]:
        """Yield for each window that bytes lie in: tensor, where there, their start, number."""
        start = 0
        while start < nbytes:
            window, at = divmod(offset + start, WINDOW_NBYTES)
            size = min(nbytes - start, WINDOW_NBYTES - at)
            yield self.windows[window], at, start, size
            start += size

    @property
    def data(self) -> HostMemory:
        """The bytes, of a buffer in host memory; it lives as long as the view."""
        if self.source is not None:
            return self.source.toreadonly()
        view: HostMemory = np.asarray(_Bytes(self)).data
        return view


class _Bytes:
    """An array's view of a buffer, which it keeps."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        place = {"shape": (memory.nbytes,), "data": (memory.base, False)}
        self.__array_interface__ = {**place, "typestr": "|u1", "version": 3}


def bytes_at(library: Library, buffer: Handle, address: int, nbytes: int) -> tuple[Handle, Handle]:
    """Return a context with a tensor of bytes in a buffer; the caller frees the context."""
    context = library.context(2 * library.ggml_tensor_overhead())
    tensor = library.ggml_new_tensor_4d(context, TYPES["i8"], nbytes, 1, 1, 1)
    library.ggml_backend_tensor_alloc(buffer, tensor, address)
    return context, tensor


def _address_of(view: HostMemory) -> int:
    return int(np.frombuffer(view, np.uint8).ctypes.data) if view.nbytes else 0


def _free(library: Library, contexts: Sequence[Handle], buffer: Handle) -> None:
    for context in contexts:
        library.ggml_free(context)
    library.ggml_backend_buffer_free(buffer)


def allocate(library: Library, kind: Handle, nbytes: int) -> Memory:
    """Return memory of a buffer type.

    Raises:
        MemoryError: there is none.
    """
    buffer = library.ggml_backend_buft_alloc_buffer(kind, max(nbytes, 1))
    if not buffer:
        raise MemoryError(nbytes)
    return Memory(library, buffer, nbytes)


def imported(library: Library, device: Handle, source: HostMemory, alignment: int) -> Memory:
    """Return memory over host memory, which starts at a multiple of the alignment before it."""
    address = _address_of(source) or alignment  # of no bytes anywhere
    skip = address % alignment
    size = max(1, source.nbytes + skip)
    buffer = library.ggml_backend_dev_buffer_from_host_ptr(device, address - skip, size, size)
    if not buffer:
        raise MemoryError(source.nbytes)
    return Memory(library, buffer, source.nbytes, skip, source)


class BackendStream:
    """A ``ggml_backend_t``, which is a stream of a device.

    Args:
        host_writes: What is shared with other streams.

    Attributes:
        borrowed: What transfers that were enqueued read or write, until they are complete.

    Raises:
        MemoryError: the device makes no more.
    """

    def __init__(self, library: Library, device: Handle, host_writes: HostWrites) -> None:
        handle = library.ggml_backend_dev_init(device, None)
        if not handle:
            raise MemoryError
        self.library, self.handle, self._device = library, handle, device
        self.borrowed: list[object] = []
        self._host_writes = host_writes
        freed_with(self, library.ggml_backend_free, handle)

    def write(self, memory: Memory, offset: int, source: HostMemory) -> None:
        """Enqueue a transfer to the device; the source is read later, perhaps."""
        set_async, address = self.library.ggml_backend_tensor_set_async, _address_of(source)
        if self._host_writes.writers(address, source.nbytes):
            self.synchronize()
            self._host_writes.wait(address, source.nbytes)
        for tensor, at, start, size in memory.pieces(offset, source.nbytes):
            set_async(self.handle, tensor, address + start, at, size)

    def read(self, memory: Memory, offset: int, target: HostMemory) -> None:
        """Enqueue a transfer to the host; the target is written later, perhaps."""
        get_async, address = self.library.ggml_backend_tensor_get_async, _address_of(target)
        self._host_writes.add(self.handle, address, target.nbytes)
        for tensor, at, start, size in memory.pieces(offset, target.nbytes):
            get_async(self.handle, tensor, address + start, at, size)

    def copy(self, src: Memory, src_offset: int, dst: Memory, dst_offset: int, size: int) -> None:
        """Enqueue a copy within the device."""
        library = self.library
        for start in range(0, size, WINDOW_NBYTES):
            length = min(WINDOW_NBYTES, size - start)
            ends = (src, src.base + src_offset + start), (dst, dst.base + dst_offset + start)
            made = [bytes_at(library, m.buffer, address, length) for m, address in ends]
            library.ggml_backend_tensor_copy_async(self.handle, self.handle, made[0][1], made[1][1])
            for context, _ in made:
                library.ggml_free(context)

    def synchronize(self) -> None:
        """Block until everything that was enqueued is complete."""
        self.library.ggml_backend_synchronize(self.handle)
        self.borrowed.clear()
        self._host_writes.clear(self.handle)

    def record(self) -> "BackendEvent":
        """Return an event of ggml that stands for what was enqueued so far."""
        event = BackendEvent(self.library, self._device)
        self.library.ggml_backend_event_record(event.handle, self.handle)
        return event

    def wait(self, point: "BackendEvent") -> None:
        """Let the stream wait for an event of ggml."""
        self.library.ggml_backend_event_wait(self.handle, point.handle)
        self.borrowed.append(point)


class BackendEvent:
    """A ``ggml_backend_event_t``."""

    def __init__(self, library: Library, device: Handle) -> None:
        self.handle = library.ggml_backend_event_new(device)
        if not self.handle:
            raise MemoryError
        freed_with(self, library.ggml_backend_event_free, self.handle)
