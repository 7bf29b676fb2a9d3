"""Element types of PyTorch and of ggsched, and how PyTorch joins them."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ggsched.errors import ModelError
from ggsched.interchange.dlpack_import import host_array
from ggsched.ir.dtype import dtype_by_name
from ggsched_import.common.emit import Array, Const, Value, widened

_NAMES: Final = {
    "torch.float32": "f32",
    "torch.float16": "f16",
    "torch.float64": "f64",
    "torch.bfloat16": "f32",
    "torch.int64": "i64",
    "torch.int32": "i32",
    "torch.int16": "i16",
    "torch.int8": "i8",
    "torch.uint8": "u8",
    "torch.uint16": "u16",
    "torch.uint32": "u32",
    "torch.uint64": "u64",
    "torch.bool": "bool",
}
"""bfloat16 is computed in f32: more exact, and numpy does not have it; products keep weights."""

COMPLEX: Final = {"torch.complex64": "c64", "torch.complex128": "c128"}
PART: Final = {"c64": "f32", "c128": "f64"}
"""The type of the real and of the imaginary parts of complex numbers."""

FLOATS: Final = ("f16", "f32", "f64")
DEFAULT_FLOAT: Final = "f32"

Scalar = bool | int | float


def name_of(dtype: Any, where: str = "") -> str:
    """Return the name of a ``torch.dtype``.

    Raises:
        ModelError: a type that ggsched does not have.
    """
    try:
        return _NAMES.get(str(dtype)) or COMPLEX[str(dtype)]
    except KeyError:
        raise ModelError(f"elements of type {dtype} are not supported", where=where) from None


def array_of(tensor: Any, where: str = "tensor") -> Array:
    """Return the elements of a ``torch.Tensor`` on the host, shared where that is possible.

    Shared are contiguous tensors of all types but bfloat16, which comes as f32. Complex numbers
    come as their parts, along a last axis of extent 2.

    Raises:
        ModelError: a tensor without elements on the host: of another device, fake, sparse.
    """
    found = _elements(tensor, where)
    return widened(found) if str(tensor.dtype) == "torch.bfloat16" else found


@dataclass(frozen=True, slots=True)
class Complex:
    """Complex numbers as their parts, of one type and shape."""

    real: Value
    imag: Value

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return self.real.shape


def const_of(tensor: Any, name: str) -> Const | Complex:
    """Return a ``torch.Tensor`` on the host as a constant; raise what ``array_of`` does."""
    if str(tensor.dtype) == "torch.bfloat16":
        return Const(None, name, _elements(tensor, name))
    return constant(array_of(tensor, name), tensor.dtype, name)


def constant(array: Array, dtype: Any, name: str = "") -> Const | Complex:
    """Return what ``array_of`` makes of a tensor of a type as a constant."""
    if str(dtype) not in COMPLEX:
        return Const(array, name)
    parts = (np.ascontiguousarray(array[..., i]).reshape(array.shape[:-1]) for i in (0, 1))
    real, imag = (
        Const(part, name and f"{name} ({of})") for part, of in zip(parts, ("re", "im"), strict=True)
    )
    return Complex(real, imag)


def _elements(tensor: Any, where: str) -> Array:
    """Return the elements, of bfloat16 as bits."""
    name_of(tensor.dtype, where)
    layout, device = str(tensor.layout), str(tensor.device)
    if layout != "torch.strided" or device != "cpu" or "Fake" in type(tensor).__name__:
        raise ModelError(
            f"a {type(tensor).__name__} ({layout}) on {device} has no elements here",
            where=where,
            hint="move the model to the CPU before the export: model.cpu()",
        )
    plain = tensor.detach().resolve_conj().resolve_neg()
    if str(tensor.dtype) in COMPLEX:
        from torch import view_as_real

        plain = view_as_real(plain)
    found = host_array(plain, where)
    return found if found.flags.c_contiguous else np.ascontiguousarray(found).reshape(found.shape)


def _category(name: str) -> int:
    kind = np.dtype(dtype_by_name(name).host).kind
    return {"b": 0, "u": 1, "i": 1, "f": 2}[kind]


def promoted(*values: str | Scalar) -> str:
    """Return the type that PyTorch joins operands in.

    Args:
        values: Names of the types of tensors, and scalars of Python, which count by their kind
            only: a float among integers makes ``f32``.
    """
    tensors = [v for v in values if isinstance(v, str)]
    scalars = [v for v in values if not isinstance(v, str)]
    joined = _joined(tensors) if tensors else "bool"
    for s in scalars:
        kind = 0 if isinstance(s, bool) else 1 if isinstance(s, int) else 2
        if kind > _category(joined):
            joined = "i64" if kind == 1 else DEFAULT_FLOAT
    return joined


def _joined(names: list[str]) -> str:
    top = max(map(_category, names))
    kinds = [np.dtype(dtype_by_name(n).host) for n in names if _category(n) == top]
    joined = np.result_type(*kinds)
    found = {np.dtype(dtype_by_name(n).host): n for n in _NAMES.values()}
    return found[joined]
