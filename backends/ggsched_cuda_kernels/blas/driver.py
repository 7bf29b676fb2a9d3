"""The only file that knows ``nvmath``: cuBLAS, with one handle for each stream (LCH-5).

Products of f32 are computed in f32 unless a precision says otherwise.
"""

import ctypes
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from itertools import pairwise
from threading import Thread
from typing import Any, Final

from ggsched.backend.precision import Precision
from ggsched.errors import BackendUnavailable

F32: Final = 0
F16: Final = 2
BF16: Final = 14
_TRANSPOSED: Final = 1
_PLAIN: Final = 0
_COMPUTE: Final[dict[Precision, int]] = {"f32": 68, "tf32": 77, "bf16": 75}
"""Results are f32 and sums are made in f32; what factors of f32 may be rounded to."""
_DEFAULT_ALGORITHM: Final = -1
_DEFAULT_MATH: Final = 0
_ALIGNMENT: Final = 256  # bytes; more makes no difference to cuBLAS

BATCH_ALIGNMENT: Final = 16
"""Batches are a multiple of these bytes apart, so that tensor cores load all like the first."""

_ONE: Final = ctypes.c_float(1.0)
_ZERO: Final = ctypes.c_float(0.0)
ONE: Final = ctypes.addressof(_ONE)
ZERO: Final = ctypes.addressof(_ZERO)

WORKSPACE_NBYTES: Final = 32 << 20
"""What NVIDIA recommends for compute capability 9.0; with less some products are slower."""


@cache
def loading() -> Thread:
    """Return the thread that loads the library, begun by the first call.

    That takes a third of a second, in which a context can be made and weights be loaded; it needs
    no context. What goes wrong is found again by who needs the library.
    """
    thread = Thread(target=_load, name="ggsched cublas", daemon=True)
    thread.start()
    return thread


def _load() -> None:
    with suppress(Exception):
        _cublas().get_property(0)  # the bindings load the library when it is first called


def _cublas() -> Any:
    try:
        from nvmath.bindings import cublas
    except (ImportError, OSError) as error:
        raise BackendUnavailable(
            "nvmath.bindings cannot be imported",
            where="cuda",
            why=str(error),
            hint='pip install "ggsched[cuda]"',
        ) from error
    return cublas


def make_handle() -> int:
    """Return a handle in the current context.

    Raises:
        BackendUnavailable: cuBLAS cannot be loaded.
    """
    loading().join()
    cublas = _cublas()
    try:
        handle = int(cublas.create())
    except Exception as error:  # nvmath raises errors of its own for a library that is absent
        raise BackendUnavailable(
            "cuBLAS cannot be started",
            where="cuda",
            why=str(error),
            hint="pip install nvidia-cublas",
        ) from error
    cublas.set_math_mode(handle, _DEFAULT_MATH)
    return handle


def bind_handle(handle: int, stream: int, workspace: int) -> None:
    """Let a handle work on a stream, with a workspace of that stream alone.

    With a workspace given nothing is allocated later, so products can be captured, and with one
    stream for each handle the results of a product do not change from run to run (LCH-4).
    """
    cublas = _cublas()
    cublas.set_stream(handle, stream)
    cublas.set_workspace(handle, workspace, WORKSPACE_NBYTES)


def batches_of(
    places: Sequence[tuple[int, int]], kind: int, is_narrow: bool = False
) -> tuple[int, int, int, int] | None:
    """Return products of one x as batches, see ``Product``; None if they are not evenly apart.

    Args:
        places: Addresses of weights, and of results.
        kind: Type of the weights.
        is_narrow: Whether results are of that type instead of f32.
    """
    size = 4 if kind == F32 else 2
    sizes = size, size if is_narrow else 4
    steps = []
    for addresses, size in zip(zip(*places, strict=True), sizes, strict=True):
        apart = {b - a for a, b in pairwise(addresses)}
        step = min(apart)
        if len(apart) > 1 or step <= 0 or step % BATCH_ALIGNMENT:
            return None
        steps.append(step // size)
    return len(places), steps[0], 0, steps[1]


class Product:
    """``y[b, m, n] = sum_k x[b, m, k] w[b, n, k]``, with everything bound.

    Args:
        handle: The stream's handle.
        m, n, k: Rows of x, rows of w, length of the sum.
        w, x, y: Addresses. Elements lie side by side along the last axis.
        kind: Type of w and of x; y is f32, or with ``is_narrow`` of that type.
        rows: Distances of rows of w, x, y in elements.
        batches: Number of batches, and distances of those of w, x, y in elements.
        adds: Whether to add to what y holds.
        has_columns: Whether elements of w lie side by side along its columns instead.
        precision: What factors of f32 may be rounded to.

    Attributes:
        handle: The stream's handle.
        kind_of_call: What cuBLAS may choose its kernel by: all but the addresses, of which
            alignment counts.
    """

    __slots__ = ("_arguments", "_call", "handle", "kind_of_call")

    def __init__(
        self,
        handle: int,
        m: int,
        n: int,
        k: int,
        w: int,
        x: int,
        y: int,
        *,
        kind: int,
        rows: tuple[int, int, int],
        batches: tuple[int, int, int, int] = (1, 0, 0, 0),
        adds: bool = False,
        has_columns: bool = False,
        precision: Precision = "f32",
        is_narrow: bool = False,
    ) -> None:
        count, step_w, step_x, step_y = batches
        aligned = (w % _ALIGNMENT, x % _ALIGNMENT, y % _ALIGNMENT)
        self.handle = handle
        how = (precision, rows, batches, adds, has_columns, is_narrow)
        self.kind_of_call = (m, n, k, aligned, kind, *how)
        # cuBLAS counts columns first, so it computes y^T = w x^T.
        self._call = _cublas().gemm_strided_batched_ex
        self._arguments = (
            handle, _PLAIN if has_columns else _TRANSPOSED, _PLAIN, n, m, k, ONE,
            w, kind, rows[0], step_w,
            x, kind, rows[1], step_x,
            ONE if adds else ZERO,
            y, kind if is_narrow else F32, rows[2], step_y,
            count, _COMPUTE[precision], _DEFAULT_ALGORITHM,
        )  # fmt: skip

    def __call__(self) -> tuple[int]:
        """Enqueue it; returns what a launch returns, and raises if cuBLAS refuses."""
        self._call(*self._arguments)
        return (0,)
