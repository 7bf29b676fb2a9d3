"""Element types of ONNX and of ggsched."""

from typing import Final

from ggsched.errors import ModelError
from ggsched.ir.dtype import DType

_CODES: Final = {
    1: "f32",
    2: "u8",
    3: "i8",
    4: "u16",
    5: "i16",
    6: "i32",
    7: "i64",
    9: "bool",
    10: "f16",
    11: "f64",
    12: "u32",
    13: "u64",
}
_NAMES: Final = {name: code for code, name in _CODES.items()}
_OTHERS: Final = {8: "string", 14: "complex64", 15: "complex128", 16: "bfloat16"}


def name_of(code: int, where: str) -> str:
    """Return the name of the type that an ONNX file means by a number.

    Raises:
        ModelError: a type that ggsched does not have.
    """
    try:
        return _CODES[code]
    except KeyError:
        known = _OTHERS.get(code, f"number {code}")
        raise ModelError(f"elements of type {known} are not supported", where=where) from None


def code_of(dtype: DType) -> int:
    """Return the number of a type in ONNX files."""
    return _NAMES[dtype.name]
