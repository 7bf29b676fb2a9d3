"""Devices of array libraries whose arrays are immutable: JAX, MLX, XLA.

    def open_backend():
        facts = functional_facts("mine", KERNELS)
        return BaseBackend("mine", lambda i: FunctionalDevice(facts, KERNELS, Library()))

A kernel is a function from arrays to an array: ``kernel(inputs, params)`` returns the new content
of the output, also for ops that write through an operand or in place. Memory is a table of arrays
by byte range: a result stays an array of the library until someone reads other bytes than it
has. So a chain of ops never leaves the device, and only strided views and partial reads go through
host memory.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from ggsched.backend.arrays import bind
from ggsched.backend.base import BaseDevice, host_facts
from ggsched.backend.base_buffer import own_buffer
from ggsched.backend.program import BoundNode, Operand
from ggsched.backend.protocols import HostMemory
from ggsched.ir.ops import Param
from ggsched.topology.caps import DeviceFacts

FunctionalKernel = Callable[[Sequence[Any], Mapping[str, Param]], Any]
"""``kernel(inputs, params)`` returns an array of the output's shape and type."""


class ArrayLibrary(Protocol):
    """What a device needs of a library."""

    def from_host(self, array: "np.ndarray[Any, Any]") -> Any:
        """Return an immutable array with the content of one of numpy, which may change later."""

    def to_host(self, array: Any) -> "np.ndarray[Any, Any]":
        """Return the content as an array of numpy; wait for it if it is computed elsewhere."""


def functional_facts(backend: str, kernels: Iterable[str], **changes: Any) -> DeviceFacts:
    """Return the facts of a ``FunctionalDevice``.

    Args:
        backend: Its name.
        kernels: Ops, on operands of f32; or keys such as ``"get_rows:i32"``.
        changes: Replace fields.

    Examples:
        >>> from ggsched.backend.functional import functional_facts
        >>> sorted(functional_facts("mine", ["add", "get_rows:i32"]).ops)
        ['add:f32', 'get_rows:i32']
    """
    keys = [k if ":" in k else f"{k}:f32" for k in kernels]
    return host_facts(backend, keys, **{"is_host": False, "kind": "accelerator", **changes})


@dataclass(frozen=True, slots=True)
class _Piece:
    """An array that holds the bytes of a range.

    Attributes:
        key: Type and shape.
        end: One past the last byte.
        array: Of the library.
        is_stored: Whether the host bytes below have the same content.
    """

    key: tuple[str, tuple[int, ...]]
    end: int
    array: Any
    is_stored: bool


class ArrayMemory:
    """A range of bytes: host bytes, and arrays of a library that stand for parts of them.

    Pieces do not overlap. A piece that is not stored is newer than the host bytes below it.
    """

    def __init__(self, nbytes: int, library: ArrayLibrary) -> None:
        self._bytes = np.empty(nbytes, np.uint8)
        self._library = library
        self._pieces: dict[int, _Piece] = {}
        self._lock: Final = threading.RLock()

    def read(self, offset: int, target: HostMemory) -> None:
        """Copy bytes into host memory."""
        with self._lock:
            end = offset + target.nbytes
            self._store(offset, end)
            np.copyto(np.frombuffer(target, np.uint8), self._bytes[offset:end])

    def write(self, offset: int, source: HostMemory) -> None:
        """Copy host bytes here."""
        with self._lock:
            end = offset + source.nbytes
            self._drop(offset, end)
            np.copyto(self._bytes[offset:end], np.frombuffer(source, np.uint8))

    def get(self, operand: Operand) -> Any:
        """Return an operand as an array of the library."""
        start, end = operand.offset, operand.offset + operand.nbytes
        key = operand.dtype.name, operand.shape
        is_whole = _is_contiguous(operand)
        with self._lock:
            piece = self._pieces.get(start)
            if is_whole and piece is not None and piece.key == key and piece.end == end:
                return piece.array
            self._store(start, end)
            host = bind(operand, self._bytes[start:end].data)
            array = self._library.from_host(np.array(host))
            if is_whole and not any(self._overlapping(start, end)) and end > start:
                self._pieces[start] = _Piece(key, end, array, is_stored=True)
            return array

    def put(self, operand: Operand, array: Any) -> None:
        """Make an array the content of an operand."""
        start, end = operand.offset, operand.offset + operand.nbytes
        if start == end:
            return
        with self._lock:
            if _is_contiguous(operand):
                self._drop(start, end)
                key = operand.dtype.name, operand.shape
                self._pieces[start] = _Piece(key, end, array, is_stored=False)
            else:
                self._drop(start, end, keeps=True)
                bind(operand, self._bytes[start:end].data)[...] = self._library.to_host(array)

    def _overlapping(self, start: int, end: int) -> list[int]:
        return [at for at, piece in self._pieces.items() if at < end and piece.end > start]

    def _store(self, start: int, end: int) -> None:
        """Bring the host bytes of a range up to date."""
        for at in self._overlapping(start, end):
            piece = self._pieces[at]
            if not piece.is_stored:
                host = np.ascontiguousarray(self._library.to_host(piece.array))
                self._bytes[at : piece.end] = host.reshape(-1).view(np.uint8)
                self._pieces[at] = _Piece(piece.key, piece.end, piece.array, is_stored=True)

    def _drop(self, start: int, end: int, *, keeps: bool = False) -> None:
        """Forget arrays of a range that is written; what lies outside of it is stored first."""
        for at in self._overlapping(start, end):
            if keeps or at < start or self._pieces[at].end > end:
                self._store(at, self._pieces[at].end)
            del self._pieces[at]


class FunctionalDevice(BaseDevice):
    """A device that computes with functions from immutable arrays to immutable arrays.

    Args:
        facts: What ``functional_facts`` returns, or other facts that are true.
        kernels: By op.
        library: Brings arrays from and to host memory.
    """

    def __init__(
        self,
        facts: DeviceFacts,
        kernels: Mapping[str, FunctionalKernel],
        library: ArrayLibrary,
    ) -> None:
        super().__init__(facts, {})
        self.functions = kernels
        self.library = library

    def acquire_memory(self, nbytes: int) -> ArrayMemory:
        """Return fresh memory, of undefined content (BUF-1)."""
        return ArrayMemory(nbytes, self.library)

    def read_memory(self, memory: Any, offset: int, target: HostMemory) -> None:
        """Copy bytes into host memory."""
        memory.read(offset, target)

    def write_memory(self, memory: Any, offset: int, source: HostMemory) -> None:
        """Copy host bytes into the memory."""
        memory.write(offset, source)

    def _bind(self, node: BoundNode) -> Callable[[], None]:
        function = self.functions[node.op]
        sources = [(own_buffer(o.buffer).memory, o) for o in node.inputs]
        target, out, params = own_buffer(node.output.buffer).memory, node.output, node.params

        def step() -> None:
            target.put(out, function([memory.get(o) for memory, o in sources], params))

        return step


def _is_contiguous(operand: Operand) -> bool:
    """Whether elements fill the bytes of an operand in order."""
    step = operand.dtype.block_nbytes
    for extent, stride in zip(reversed(operand.shape), reversed(operand.strides), strict=True):
        if extent != 1 and stride != step:
            return False
        step *= extent
    return not operand.dtype.is_quantized
