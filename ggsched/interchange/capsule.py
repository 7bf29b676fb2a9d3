"""What a DLPack capsule says of its tensor, and bfloat16, which numpy does not know.

numpy does the exchange itself. It knows no bfloat16, so a capsule that it makes of the bits is
relabelled before it is given away, and one that comes in is relabelled before numpy takes it: in
both cases whoever relabels owns the capsule. The layout is that of ``dlpack.h``, version 1.
"""

import ctypes
from typing import Any, Final

from ggsched.errors import InterchangeError

UINT: Final = 1
BFLOAT: Final = 4
CPU: Final = 1
CUDA_HOST: Final = 3
ROCM_HOST: Final = 11
HOST_KINDS: Final = frozenset({CPU, CUDA_HOST, ROCM_HOST})
"""Kinds of devices whose memory the host reads without further ado."""

KIND_NAMES: Final = {2: "CUDA", 4: "OpenCL", 7: "Vulkan", 8: "Metal", 10: "ROCm", 14: "oneAPI"}
MAX_AXES: Final = 64
_NAMES: Final = (b"dltensor", b"dltensor_versioned")


class Version(ctypes.Structure):
    """``DLPackVersion``."""

    _fields_ = (("major", ctypes.c_uint32), ("minor", ctypes.c_uint32))


class Tensor(ctypes.Structure):
    """``DLTensor``, with ``DLDevice`` and ``DLDataType`` unfolded."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_kind", ctypes.c_int32),
        ("device_number", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class Versioned(ctypes.Structure):
    """``DLManagedTensorVersioned``."""

    _fields_ = (
        ("version", Version),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    )


def tensor_of(capsule: Any) -> Tensor:
    """Return the tensor that a capsule carries; it lives as long as the capsule is unconsumed.

    Raises:
        InterchangeError: no DLPack capsule, consumed already, of another major version, or with a
            shape that cannot be.
    """
    api = ctypes.pythonapi
    is_valid, get_pointer = api.PyCapsule_IsValid, api.PyCapsule_GetPointer
    is_valid.argtypes = get_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    is_valid.restype, get_pointer.restype = ctypes.c_int, ctypes.c_void_p
    name = next((n for n in _NAMES if is_valid(capsule, n)), None)
    if name is None:
        raise InterchangeError(f"{type(capsule).__name__} is not an unused DLPack capsule")
    address = get_pointer(capsule, name)
    if name == b"dltensor":
        tensor = Tensor.from_address(address)  # first member of the managed tensor
    else:
        whole = Versioned.from_address(address)
        if whole.version.major != 1:
            raise InterchangeError(f"DLPack version {whole.version.major} is not known")
        tensor = whole.tensor
    _check(tensor)
    return tensor


def relabel(tensor: Tensor, code: int) -> None:
    """Give the elements of a tensor another meaning of the same width."""
    tensor.code = code


def device_text(kind: int, number: int) -> str:
    """Return a DLPack device for people, e.g. ``CUDA 0``."""
    return f"{KIND_NAMES.get(kind, f'kind {kind} of DLPack')} {number}"


def _check(tensor: Tensor) -> None:
    if not 0 <= tensor.ndim <= MAX_AXES or (tensor.ndim and not tensor.shape):
        raise InterchangeError(f"a tensor of {tensor.ndim} axes")
    shape = [tensor.shape[i] for i in range(tensor.ndim)]
    if any(extent < 0 for extent in shape):
        raise InterchangeError(f"a tensor of shape {shape}")
    if not tensor.data and 0 not in shape:
        raise InterchangeError("a tensor without memory", why=f"its shape is {shape}")
    if tensor.lanes != 1:
        raise InterchangeError(f"elements of {tensor.lanes} lanes", hint="one lane is known")
