"""Device memory."""

import weakref
from collections.abc import Callable
from typing import Any

from ggsched.backend.checks import closed_error
from ggsched.backend.program import OperandMemory
from ggsched.backend.protocols import Device, HostMemory
from ggsched.errors import UsageError


class CudaBuffer:
    """A range of device memory (BUF-1..4).

    Args:
        device: Whose memory it is.
        nbytes: Its length.
        address: Where it starts; every GPU that reaches this one uses the same address.
        free: Frees memory when all that is enqueued is complete.
        forget: Told when the buffer is closed.
    """

    def __init__(
        self,
        device: Device,
        nbytes: int,
        address: int,
        *,
        free: Callable[[int], None],
        forget: Callable[["CudaBuffer"], None],
    ) -> None:
        self.device = device
        self.nbytes = nbytes
        self._address: int | None = address
        self._forget = forget
        self._free = weakref.finalize(self, free, address)
        self._free.atexit = False

    @property
    def address(self) -> int:
        """Where it starts.

        Raises:
            UsageError: it is closed (ERR-3).
        """
        if self._address is None:
            raise closed_error("buffer")
        return self._address

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._address is None

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The bytes, for other libraries (INT-2). The order is the caller's affair."""
        return {
            "shape": (self.nbytes,),
            "typestr": "|u1",
            "data": (self.address, False),
            "version": 3,
        }

    def host_view(self) -> HostMemory:
        """Refuse: the memory is the device's (BUF-4)."""
        raise UsageError(
            "the memory is not host memory", where=self.device.facts.name, hint="download it"
        )

    def close(self) -> None:
        """Release the memory; legal twice (ERR-3). It is free when all that is enqueued is done."""
        if self._address is not None:
            self._address = None
            self._forget(self)
            self._free()


def address_of_buffer(buffer: OperandMemory) -> int:
    """Return the address of one of this backend's buffers; the caller has checked whose it is."""
    assert isinstance(buffer, CudaBuffer)
    return buffer.address
