"""Element types and their sizes in memory.

Quantised types store blocks of consecutive elements of the last axis. Each is declared here, by the
layout of its block in GGUF files (ggml's ``block_q8_0`` and so on); see ``ggsched.ir.blocks``.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from ggsched.errors import GraphError
from ggsched.ir.blocks import Bits, BlockLayout, Integers, Real


@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """An element type.

    Attributes:
        name: As printed and as in GGUF, e.g. ``"q8_0"``.
        block: Elements in one block; 1 for plain types.
        block_nbytes: Bytes of one block.
        layout: Of a block; None for plain types.
    """

    name: str
    block: int
    block_nbytes: int
    layout: BlockLayout | None = None

    @property
    def is_quantized(self) -> bool:
        """Whether elements are packed in blocks."""
        return self.block > 1

    def row_nbytes(self, elements: int) -> int:
        """Bytes of ``elements`` consecutive elements of the last axis.

        Raises:
            GraphError: ``elements`` is not a whole number of blocks.
        """
        blocks, rest = divmod(elements, self.block)
        if rest:
            raise GraphError(
                f"a row of {elements} elements does not fill whole {self.name} blocks",
                why=f"one block holds {self.block} elements",
                hint="quantised tensors need rows of whole blocks",
            )
        return blocks * self.block_nbytes

    def __str__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Callable[[str], "DType"], tuple[str]]:
        """Pickle and copy by name: types are compared with ``is``."""
        return dtype_by_name, (self.name,)


F32: Final = DType("f32", 1, 4)
F16: Final = DType("f16", 1, 2)
BF16: Final = DType("bf16", 1, 2)
I32: Final = DType("i32", 1, 4)
_NIBBLES: Final = Bits(at=0, count=32, width=4, run=16)
_FIFTH: Final = Bits(at=0, count=32, width=1, up=4)
# Twice the e2m1 numbers; scales are halved in turn.
_E2M1: Final = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)


def _quantized(name: str, layout: BlockLayout) -> DType:
    return DType(name, layout.elements, layout.nbytes, layout)


def _at(at: int, bits: Bits) -> Bits:
    return replace(bits, at=at)


Q8_0: Final = _quantized(
    "q8_0", BlockLayout(Integers((Bits(2, 32, width=8),), is_signed=True), Real(0))
)
Q4_0: Final = _quantized("q4_0", BlockLayout(Integers((_at(2, _NIBBLES),), zero=8), Real(0)))
Q4_1: Final = _quantized("q4_1", BlockLayout(Integers((_at(4, _NIBBLES),)), Real(0), Real(2)))
Q5_0: Final = _quantized(
    "q5_0", BlockLayout(Integers((_at(6, _NIBBLES), _at(2, _FIFTH)), zero=16), Real(0))
)
Q5_1: Final = _quantized(
    "q5_1", BlockLayout(Integers((_at(8, _NIBBLES), _at(4, _FIFTH))), Real(0), Real(2))
)
MXFP4: Final = _quantized(
    "mxfp4",
    BlockLayout(
        Integers((_at(1, _NIBBLES),), table=(*_E2M1, *(-x for x in _E2M1))),
        Real(0, "e8m0_half"),
    ),
)

QUANTIZED_DTYPES: Final = (Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, MXFP4)
ALL_DTYPES: Final = (F32, F16, BF16, I32, *QUANTIZED_DTYPES)
FLOAT_DTYPES: Final = (F32, F16, BF16, *QUANTIZED_DTYPES)
_BY_NAME: Final = {dtype.name: dtype for dtype in ALL_DTYPES}


def dtype_by_name(name: str) -> DType:
    """Return the type called ``name``.

    Raises:
        GraphError: there is none.
    """
    try:
        return _BY_NAME[name]
    except KeyError:
        known = ", ".join(_BY_NAME)
        raise GraphError(f"unknown element type {name!r}", hint=f"known types: {known}") from None
