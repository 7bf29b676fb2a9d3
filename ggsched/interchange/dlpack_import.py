"""Arrays of other libraries as numpy arrays over the same memory.

What is taken is borrowed: an input until ``Scheduler.run`` returns, which has copied it before it
enqueues anything; a weight as long as it is resident, on devices that read host memory as it is
(``imports_host_memory``), and until it is on the device elsewhere (CPY-4). The reference that is
kept keeps it alive; keeping it unchanged is up to whoever owns it. The host reads it, so whatever
writes it must be complete before it is given.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from ggsched.backend.arrays import BYTE, Array, numpy_dtype, numpy_shape
from ggsched.errors import GgschedError, InterchangeError, UsageError
from ggsched.interchange import capsule as dl
from ggsched.ir.dtype import BF16
from ggsched.ir.tensor import Tensor


class OffersDlpack(Protocol):
    """Anything that DLPack can be had of."""

    def __dlpack_device__(self) -> tuple[Any, int]:
        """Return kind and number of the device."""

    def __dlpack__(self, *, stream: Any = None) -> Any:
        """Return a capsule."""


class OffersArrayInterface(Protocol):
    """Anything that describes host memory as numpy does."""

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """Return the description."""


ArrayLike = Array | OffersDlpack | OffersArrayInterface
"""What an input or a weight may be given as."""

WeightsLike = Callable[[str], ArrayLike] | Mapping[str, ArrayLike]
"""Weights by name."""


def host_array(value: Any, where: str = "array") -> Array:
    """Return an array of another library as a numpy array, without a copy.

    Taken are numpy arrays, objects with ``__dlpack__`` in host memory, and objects with
    ``__array_interface__``. bfloat16 comes as its bits in uint16, from whatever library.

    Args:
        value: The array.
        where: Its name, for messages.

    Raises:
        InterchangeError: no array, one that the host cannot read, or of a type without a
            counterpart.
    """
    if type(value) is np.ndarray and value.dtype.kind != "V":
        return value  # as most are
    if isinstance(value, np.ma.MaskedArray):
        raise InterchangeError("a masked array", where=where, hint="fill it: x.filled(0)")
    if isinstance(value, np.ndarray):
        array: Array = value
    elif hasattr(value, "__dlpack__"):
        array = _by_dlpack(value, where)
    elif hasattr(value, "__array_interface__"):
        array = _by_description(value, where)
    else:
        raise InterchangeError(
            f"{type(value).__name__} is not an array",
            where=where,
            hint="give a numpy array, or anything with __dlpack__ or __array_interface__",
        )
    if array.dtype.kind == "V" and array.dtype.name == "bfloat16":  # ml_dtypes
        return array.view(np.uint16)
    return array


def host_arrays(values: Mapping[str, Any]) -> dict[str, Array]:
    """Return arrays by name as ``host_array`` does.

    Raises:
        InterchangeError: naming the one that cannot be taken.
    """
    return {name: host_array(value, name) for name, value in values.items()}


def host_weights(source: WeightsLike) -> Callable[[str], Array]:
    """Return weights by name as ``host_array`` does, each when it is requested.

    The function raises ``KeyError`` for a name that a mapping does not have, and
    ``InterchangeError`` for what cannot be taken.
    """
    if callable(source):
        return lambda name: host_array(source(name), name)
    return lambda name: host_array(source[name], name)


def check_array(array: Array, tensor: Tensor) -> None:
    """Refuse an array that does not have the host form of a tensor.

    The host form is the shape and the element type of the tensor in native byte order; bf16 as its
    bits in uint16; a quantised type as its raw blocks, uint8 ``(..., row_nbytes)``, with the
    outer axes of the tensor. Nothing is reshaped or converted: an array with as many bytes in
    another shape holds other elements.

    Raises:
        UsageError: another shape or element type.
    """
    if (array.shape, array.dtype) != _host_form(tensor):
        raise wrong_array(array, tensor)


def wrong_array(array: Array, tensor: Tensor) -> UsageError:
    """Return the error for an array that does not have the host form of a tensor."""
    shape, kind = _host_form(tensor)
    return UsageError(
        f"{array.dtype}{list(array.shape)} given for {kind}{list(shape)}",
        where=tensor.name,
        why=f"the graph declares {tensor.role.value} {tensor.dtype}{list(tensor.shape)}",
        hint=_remedy(array, tensor),
    )


def _host_form(tensor: Tensor) -> tuple[tuple[int, ...], np.dtype[Any]]:
    return numpy_shape(tensor.dtype, tensor.shape), numpy_dtype(tensor.dtype)


def _remedy(array: Array, tensor: Tensor) -> str:
    """Return how the array could be made to fit; which of several ways is meant is not known."""
    shape, kind = _host_form(tensor)
    extents = list(shape)
    if array.dtype != kind:
        if tensor.dtype.is_quantized:
            return f"give the raw blocks as uint8{extents}, the bytes of a row on the last axis"
        if array.dtype == BYTE and array.nbytes == tensor.nbytes:
            return f"raw bytes are taken for quantised types only: a.view(np.{kind}).reshape(...)"
        if tensor.dtype is BF16:
            return "give bfloat16, or its bits: a.view(np.uint16)"
        return f"convert it: a.astype(np.{kind})"
    if array.shape == shape[::-1]:
        return "transpose it: a.T"
    if array.size == np.prod(shape):
        return f"if its elements are in this order, a.reshape({extents})"
    return f"give an array of shape {extents}"


class CapsuleHolder:
    """A capsule that was requested already, for numpy to take."""

    def __init__(self, capsule: Any, number: int) -> None:
        self._capsule, self._number = capsule, number

    def __dlpack_device__(self) -> tuple[int, int]:
        return dl.CPU, self._number

    def __dlpack__(self, **_options: Any) -> Any:
        return self._capsule


def _by_dlpack(value: Any, where: str) -> Array:
    try:
        return _taken(value)
    except Exception as error:  # whatever a foreign library raises
        if hasattr(value, "__array_interface__") and not _is_elsewhere(value):
            return _by_description(value, where)
        raise _refused(value, where, "DLPack", error) from error


def _taken(value: Any) -> Array:
    kind, number = (int(part) for part in value.__dlpack_device__())
    if kind not in dl.HOST_KINDS:
        raise InterchangeError(
            f"lives on {dl.device_text(kind, number)}",
            why="the host cannot read it, and nothing is copied implicitly (CPY-6)",
            hint="copy it to the host first, e.g. x.cpu()",
        )
    try:
        handed = value.__dlpack__(max_version=(1, 0))
    except TypeError:  # of before version 1
        handed = value.__dlpack__()
    tensor = dl.tensor_of(handed)
    if tensor.device_kind not in dl.HOST_KINDS:
        raise InterchangeError("says that it is in host memory, and its capsule says otherwise")
    if (tensor.code, tensor.bits) == (dl.BFLOAT, 16):
        dl.relabel(tensor, dl.UINT)
    array: Array = np.from_dlpack(CapsuleHolder(handed, number))
    return array


def _is_elsewhere(value: Any) -> bool:
    try:
        return int(value.__dlpack_device__()[0]) not in dl.HOST_KINDS
    except Exception:
        return False


def _by_description(value: Any, where: str) -> Array:
    try:
        array = np.asarray(value)
    except Exception as error:  # whatever a foreign library raises
        raise _refused(value, where, "__array_interface__", error) from error
    if array.dtype.kind == "O":
        raise _refused(value, where, "__array_interface__", TypeError("elements are objects"))
    return array


def _refused(value: Any, where: str, way: str, error: Exception) -> InterchangeError:
    if isinstance(error, GgschedError):
        return InterchangeError(error.what, where=where, why=error.why, hint=error.hint)
    why = f"{type(error).__name__}: {error}"
    return InterchangeError(f"{way} of {type(value).__name__} fails", where=where, why=why)
