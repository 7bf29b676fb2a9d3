"""A device that offers its memory and its streams to other libraries, for the rules INT.

Its memory is the host's. It describes it as a CUDA device would describe its own, which is all that
these rules are about.
"""

from typing import Any

import numpy as np

from ggsched.backend.base import BaseBuffer, BaseDevice, BaseStream, host_facts
from ggsched.backend.checks import closed_error
from ggsched_testing.conformance import Harness
from ggsched_testing.conformance.exact import EXACT_OPS

CPU_DEVICE = (1, 0)
"""DLPack's kind and number of the host."""


class ExportingBuffer(BaseBuffer):
    """A buffer with DLPack and ``__cuda_array_interface__``."""

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the kind of the device and its number."""
        return CPU_DEVICE

    def __dlpack__(self, **options: Any) -> Any:
        """Return a capsule over the buffer's own bytes (INT-1)."""
        return self.memory.__dlpack__(**options)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Describe the buffer's own bytes (INT-2)."""
        address = self.memory.ctypes.data
        return {"shape": (self.nbytes,), "typestr": "|u1", "data": (address, False), "version": 3}


class ExportingStream(BaseStream):
    """A stream with ``__cuda_stream__``."""

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return the version of the protocol and a handle (INT-3)."""
        if self.is_closed:
            raise closed_error("stream")
        return 0, id(self.progress)


class ExportingDevice(BaseDevice):
    """A synchronous device of host memory."""

    def __init__(self, index: int) -> None:
        op = EXACT_OPS[0]
        facts = host_facts("exports", [f"{op.name}:f32"], name=f"exports:{index}")
        super().__init__(facts, {op.name: lambda out, x, _: np.copyto(out, op.apply(*x))})

    def allocate(self, nbytes: int) -> BaseBuffer:
        """Return a fresh buffer."""
        made = super().allocate(nbytes)
        return self._register(ExportingBuffer(self, nbytes, made.memory))

    def make_stream(self, name: str) -> BaseStream:
        """Return a new stream."""
        return ExportingStream(self, name)


def exports_harness() -> Harness:
    """Return the harness of two of them."""
    return Harness("exports:0", lambda count, seed: [ExportingDevice(i) for i in range(count)])
