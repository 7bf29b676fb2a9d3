"""Element types and their sizes in memory.

Quantised types store blocks of consecutive elements of the last axis. Each is declared by the
layout of its block in GGUF files; see ``ggsched.ir.blocks`` and ``ggsched.ir.layouts``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from ggsched.errors import GraphError
from ggsched.ir.blocks import BlockLayout
from ggsched.ir.layouts import LAYOUTS

Kind = Literal["float", "int", "uint", "bool"]


@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """An element type; its declaration here is the only one.

    Attributes:
        name: As printed and as in GGUF, e.g. ``"q8_0"``.
        block: Elements in one block; 1 for plain types.
        layout: Of a block; None for plain types.
        host: How numpy spells the type in which the host holds an element: bf16 as its bits,
            quantised types as bytes.
        kind: What the elements are.

    Examples:
        >>> from ggsched.ir.dtype import dtype_by_name
        >>> dtype_by_name("q8_0").row_nbytes(64)
        68
    """

    name: str
    block: int
    block_nbytes: int
    layout: BlockLayout | None = None
    host: str = "u1"
    kind: Kind = "float"

    @property
    def is_quantized(self) -> bool:
        """Whether elements are packed in blocks."""
        return self.block > 1

    def row_nbytes(self, elements: int) -> int:
        """Bytes of ``elements`` consecutive elements of the last axis.

        Args:
            elements: Their number.

        Raises:
            GraphError: ``elements`` is not a whole number of blocks.

        Examples:
            >>> dtype_by_name("f16").row_nbytes(64)
            128
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


F32: Final = DType("f32", 1, 4, host="<f4")
F16: Final = DType("f16", 1, 2, host="<f2")
BF16: Final = DType("bf16", 1, 2, host="<u2")
I32: Final = DType("i32", 1, 4, host="<i4", kind="int")
F64: Final = DType("f64", 1, 8, host="<f8")
I64: Final = DType("i64", 1, 8, host="<i8", kind="int")
I16: Final = DType("i16", 1, 2, host="<i2", kind="int")
I8: Final = DType("i8", 1, 1, host="i1", kind="int")
U64: Final = DType("u64", 1, 8, host="<u8", kind="uint")
U32: Final = DType("u32", 1, 4, host="<u4", kind="uint")
U16: Final = DType("u16", 1, 2, host="<u2", kind="uint")
U8: Final = DType("u8", 1, 1, host="u1", kind="uint")
BOOL: Final = DType("bool", 1, 1, host="?", kind="bool")


def _quantized(name: str) -> DType:
    layout = LAYOUTS[name]
    return DType(name, layout.elements, layout.nbytes, layout)


Q8_0: Final = _quantized("q8_0")
Q4_0: Final = _quantized("q4_0")
Q4_1: Final = _quantized("q4_1")
Q5_0: Final = _quantized("q5_0")
Q5_1: Final = _quantized("q5_1")
MXFP4: Final = _quantized("mxfp4")
IQ4_NL: Final = _quantized("iq4_nl")
Q2_K: Final = _quantized("q2_k")
Q3_K: Final = _quantized("q3_k")
Q4_K: Final = _quantized("q4_k")
Q5_K: Final = _quantized("q5_k")
Q6_K: Final = _quantized("q6_k")
IQ4_XS: Final = _quantized("iq4_xs")

_SUPER_BLOCKS: Final = (Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_XS)
QUANTIZED_DTYPES: Final = (Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, MXFP4, IQ4_NL, *_SUPER_BLOCKS)
GGUF_DTYPES: Final = (F32, F16, BF16, I32, *QUANTIZED_DTYPES)
"""Types of weights in GGUF files, which the built-in ops compute with."""

ARRAY_DTYPES: Final = (F32, F16, F64, I64, I32, I16, I8, U64, U32, U16, U8, BOOL)
"""Types that the op library ``nd`` computes with: those of numpy's arrays."""

ALL_DTYPES: Final = (*GGUF_DTYPES, *(t for t in ARRAY_DTYPES if t not in GGUF_DTYPES))
FLOAT_DTYPES: Final = (F32, F16, BF16, *QUANTIZED_DTYPES)
KV_DTYPES: Final = (F32, F16, BF16, Q8_0)
"""Types of keys and values that attention reads, and of rows that ``set_rows`` writes."""

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
