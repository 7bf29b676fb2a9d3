"""Element types and their sizes in memory.

Quantised types store blocks of consecutive elements of the last axis; the layouts are those of
GGUF files (ggml's ``block_q8_0``, ``block_q4_0``, ``block_mxfp4``).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ggsched.errors import GraphError


@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """An element type.

    Attributes:
        name: As printed and as in GGUF, e.g. ``"q8_0"``.
        block: Elements in one block; 1 for plain types.
        block_nbytes: Bytes of one block.
    """

    name: str
    block: int
    block_nbytes: int

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
Q8_0: Final = DType("q8_0", 32, 34)
Q4_0: Final = DType("q4_0", 32, 18)
MXFP4: Final = DType("mxfp4", 32, 17)

ALL_DTYPES: Final = (F32, F16, BF16, I32, Q8_0, Q4_0, MXFP4)
FLOAT_DTYPES: Final = (F32, F16, BF16, Q8_0, Q4_0, MXFP4)
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
