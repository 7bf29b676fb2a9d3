"""Buffers: device memory that can be closed."""

from typing import Any

from ggsched.backend import checks
from ggsched.backend.program import OperandMemory
from ggsched.backend.protocols import Device, HostMemory
from ggsched.errors import UsageError


class BaseBuffer:
    """A range of device memory (BUF-1..4).

    Args:
        device: Whose memory it is.
        memory: Whatever the device's ``acquire_memory`` returned.
        readonly: Whether it was imported from host memory.
        is_zero: Whether the memory is all zeros.
    """

    def __init__(
        self,
        device: Device,
        nbytes: int,
        memory: Any,
        *,
        readonly: bool = False,
        is_zero: bool = False,
    ) -> None:
        self.nbytes = nbytes
        self.device = device
        self.readonly = readonly
        self.is_closed = False
        self.is_zero = is_zero
        """Whether it is known to be all zeros: nobody has had its memory yet."""
        self._memory = memory

    @property
    def memory(self) -> Any:
        """The memory behind it, for the device, which may write it.

        Raises:
            UsageError: the buffer is closed (ERR-3).
        """
        if self.is_closed:
            raise checks.closed_error("buffer")
        self.is_zero = False
        return self._memory

    @property
    def zeros(self) -> Any:
        """The memory while ``is_zero``, for the device, which does not write it."""
        return self._memory

    def host_view(self) -> HostMemory:
        """Return the bytes themselves (BUF-4)."""
        memory = self.memory
        if not self.device.facts.is_host:
            raise UsageError(
                "the memory is not host memory",
                where=self.device.facts.name,
                hint="download it",
            )
        view: HostMemory = memory.data
        return view

    def close(self) -> None:
        """Release the memory; legal twice (ERR-3)."""
        self.is_closed = True
        self.is_zero = False
        self._memory = None


def own_buffer(buffer: OperandMemory) -> BaseBuffer:
    """Return a buffer whose device the checks have compared, as what it is."""
    assert isinstance(buffer, BaseBuffer)
    return buffer


def writable_memory(buffer: OperandMemory) -> Any:
    """Return the memory of a buffer that a command is to write.

    Raises:
        UsageError: the buffer was imported from host memory, or is closed.
    """
    own = own_buffer(buffer)
    if own.readonly:
        raise UsageError("the buffer is read-only", why="it was imported from host memory")
    return own.memory
