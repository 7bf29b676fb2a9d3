"""What a function that enqueues on a stream gets for operands: where they lie on the device."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ggsched.errors import UsageError
from ggsched.ir.dtype import DType


@dataclass(frozen=True, slots=True)
class DeviceArray:
    """A contiguous array in a device's memory, for the commands of one call.

    CuPy, numba and PyTorch take arrays of CUDA as they are (``cupy.asarray(x)``,
    ``torch.as_tensor(x)``), by ``__cuda_array_interface__``. For pyopencl:
    ``pyopencl.array.Array(queue, x.shape, x.dtype, data=x.memory, offset=x.offset)``.

    Attributes:
        memory: The library's handle: a ``pyopencl.Buffer``, or the address of a buffer of CUDA.
        offset: Bytes from its start to the first element.
        shape: Extents; of quantised operands, whose elements are bytes, those of the rows of
            blocks.
        dtype: Of numpy; ``uint16`` for bf16, and ``uint8`` for quantised operands.
        stream: The stream that the commands go to.

    Examples:
        >>> import numpy as np
        >>> from ggsched.backend.device_array import DeviceArray
        >>> DeviceArray(4096, 64, (2, 8), np.dtype("<f4"), stream=7).pointer
        4160
    """

    memory: Any
    offset: int
    shape: tuple[int, ...]
    dtype: npt.DTypeLike
    stream: Any

    @property
    def pointer(self) -> int:
        """Address of the first element.

        Raises:
            UsageError: the memory has no address, as that of OpenCL.
        """
        if not isinstance(self.memory, int):
            raise UsageError("memory without an address", hint="use memory and offset")
        return self.memory + self.offset

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if not isinstance(self.memory, int):
            raise AttributeError("__cuda_array_interface__")
        typestr, data = np.dtype(self.dtype).str, (self.pointer, False)
        found = {"shape": self.shape, "typestr": typestr, "data": data}
        return {**found, "strides": None, "stream": self.stream, "version": 3}


def device_array(
    memory: Any, offset: int, dtype: DType, shape: tuple[int, ...], stream: Any
) -> DeviceArray:
    """Return an operand without gaps as an array."""
    if dtype.is_quantized:
        row = shape[-1] // dtype.block * dtype.block_nbytes
        return DeviceArray(memory, offset, (*shape[:-1], row), np.dtype("u1"), stream)
    return DeviceArray(memory, offset, shape, np.dtype(dtype.host), stream)


__all__ = ["DeviceArray", "device_array"]
