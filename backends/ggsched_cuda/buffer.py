"""Device memory."""

import weakref
from collections.abc import Callable
from typing import Any

from ggsched.backend.base_buffer import BaseBuffer
from ggsched.backend.protocols import Device


class CudaBuffer(BaseBuffer):
    """A range of device memory (BUF-1..4).

    Args:
        device: Whose memory it is.
        address: Where it starts; every GPU that reaches this one uses the same address.
        free: Frees memory when all that is enqueued is complete.
    """

    def __init__(
        self, device: Device, nbytes: int, address: int, free: Callable[[int], None]
    ) -> None:
        super().__init__(device, nbytes, address)
        self._free = weakref.finalize(self, free, address)
        self._free.atexit = False

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The bytes, for other libraries (INT-2). The order is the caller's affair."""
        return {
            "shape": (self.nbytes,),
            "typestr": "|u1",
            "data": (self.memory, False),
            "version": 3,
        }

    def close(self) -> None:
        """Release the memory; legal twice (ERR-3). It is free when all that is enqueued is done."""
        super().close()
        self._free()
