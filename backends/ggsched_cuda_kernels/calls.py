"""What a program is made of: kernels, products by cuBLAS, and functions of user-defined ops."""

from dataclasses import dataclass, replace
from typing import Final

from ggsched.backend.precision import Precision
from ggsched.backend.program import Operand, OperandMemory
from ggsched_kernels import KernelCall
from ggsched_kernels.calls import ArgPlaceholder, MirrorOutput, StreamCall
from ggsched_kernels.lowering_context import LoweringContext

Place = tuple[OperandMemory | ArgPlaceholder, int]
"""Memory, and an offset in bytes."""

GROUP_ALIGNMENT: Final = 1024
"""Bytes of which stages begin at a multiple, where groups multiply."""


@dataclass(frozen=True, slots=True)
class ProductCall:
    """``y[b, m, n] = sum_k x[b, m, k] w[b, n, k]`` by cuBLAS.

    Attributes:
        size: m, n, k.
        w: Where w is; of type ``kind`` like x.
        x: Where x is.
        y: Where y is; f32.
        kind: Type of w and x, a constant of ``ggsched_cuda_kernels.blas.driver``.
        rows: Distances of rows of w, x, y in elements.
        batches: Number of batches, and their distances in w, x, y in elements.
        adds: Whether to add to what y holds.
        label: The node that it belongs to, for messages.
        has_columns: Whether elements of columns of w lie side by side, not those of rows; the
            distance of w in ``rows`` is then from one element of a row to the next.
        more: Other weights that the same x is multiplied with, and where to; only with one batch.
        precision: What factors of f32 may be rounded to.
        is_narrow: Whether y is of type ``kind`` instead.
    """

    size: tuple[int, int, int]
    w: Place
    x: Place
    y: Place
    kind: int
    rows: tuple[int, int, int]
    batches: tuple[int, int, int, int]
    adds: bool
    label: str
    has_columns: bool = False
    more: tuple[tuple[Place, Place], ...] = ()
    precision: Precision = "f32"
    is_narrow: bool = False


Call = KernelCall | ProductCall | StreamCall


class CudaLoweringContext(LoweringContext):
    """A node while it is being lowered; its calls may be products too."""

    calls: list[Call]  # type: ignore[assignment]

    def product(self, call: ProductCall) -> None:
        """Add a product."""
        self.calls.append(call)

    def can_also_write(self, y: Operand, arg: int, places: int) -> None:
        """Say that the last call can write a result to other places, by arguments from one on."""
        call = self.calls[-1]
        assert isinstance(call, KernelCall)
        self.calls[-1] = replace(call, also=MirrorOutput(y.buffer, y.offset, y.nbytes, arg, places))

    def can_meet(self, arg: int) -> None:
        """Say that the last call can meet one of another GPU, by its arguments from one on."""
        call = self.calls[-1]
        assert isinstance(call, KernelCall)
        self.calls[-1] = replace(call, meets=arg)

    def can_write_halves(self) -> None:
        """Say that the last call can write its result as bf16 too, by its last argument."""
        call = self.calls[-1]
        assert isinstance(call, KernelCall)
        self.calls[-1] = replace(call, halves=len(call.args) - 1)
