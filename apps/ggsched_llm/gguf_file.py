"""GGUF files: metadata and tensors of a model, memory-mapped.

``open_gguf`` checks everything that the header says against the bytes that are there: types,
shapes, alignment, that each tensor lies inside the file and that no two share bytes. After that
``raw`` cannot fail. The header is parsed by ``gguf_header``, which says why it is our own.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ggsched.errors import ModelError
from ggsched.files.mapping import map_file
from ggsched.files.reading import reason
from ggsched.ir import dtype as dtypes
from ggsched.ir.dtype import DType
from ggsched_llm.gguf_header import (
    INCOMPLETE,
    Header,
    MetaValue,
    TensorInfo,
    parse_header,
    quoted,
    shown,
)

_PATHS: Final = "give a .gguf file, or a folder of Hugging Face, which has config.json"
DEFAULT_ALIGNMENT: Final = 32
GGUF_CODES: Final[Mapping[DType, int]] = {
    dtypes.F32: 0,
    dtypes.F16: 1,
    dtypes.Q4_0: 2,
    dtypes.Q4_1: 3,
    dtypes.Q5_0: 6,
    dtypes.Q5_1: 7,
    dtypes.Q8_0: 8,
    dtypes.Q2_K: 10,
    dtypes.Q3_K: 11,
    dtypes.Q4_K: 12,
    dtypes.Q5_K: 13,
    dtypes.Q6_K: 14,
    dtypes.IQ4_NL: 20,
    dtypes.IQ4_XS: 23,
    dtypes.I32: 26,
    dtypes.BF16: 30,
    dtypes.MXFP4: 39,
}
"""Numbers of element types in files. Those of the package ``gguf``, which takes a while to import
and brings a tokenizer along."""

_BY_CODE: Final = {code: dtype for dtype, code in GGUF_CODES.items()}


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor of a file.

    Attributes:
        name: As in the file.
        dtype: Element type.
        shape: Outermost axis first, as in numpy.
        offset: First byte, from the start of the file.
        part: Which file of a model of several holds it, see ``ggsched_llm.gguf_split``.
        pieces: What it is made of along its first axis, where it does not lie in one place.
        source: What computes its bytes, where they are nowhere in the file.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    part: int = 0
    pieces: "tuple[GgufTensor, ...]" = ()
    source: "Callable[[GgufFile], NDArray[np.uint8]] | None" = None

    @property
    def is_mapped(self) -> bool:
        """Whether its bytes are in one place of the file."""
        return self.source is None and not self.pieces


@dataclass(frozen=True, slots=True, eq=False)
class GgufFile:
    """A GGUF file that passed all checks.

    Attributes:
        path: Where it was opened, as given.
        version: 2 or 3.
        metadata: Plain Python values by key; arrays are tuples.
        tensors: By name, in file order.
        data: Every byte of the file, mapped read-only.
        more: The same of further parts of the model.
    """

    path: str
    version: int
    metadata: Mapping[str, MetaValue]
    tensors: Mapping[str, GgufTensor]
    data: NDArray[np.uint8]
    more: tuple[NDArray[np.uint8], ...] = ()

    def raw(self, name: str) -> NDArray[np.uint8]:
        """Return the bytes of a tensor, uint8 (nbytes,), read-only; a copy if not in one place.

        Raises:
            ModelError: there is no such tensor.
        """
        tensor = self.tensors.get(name)
        if tensor is None:
            raise ModelError(f"no tensor {quoted(name)}", where=self.path)
        if tensor.is_mapped:
            return self._bytes(tensor)
        pieces = [self._bytes(piece) for piece in tensor.pieces]
        made = tensor.source(self) if tensor.source else np.concatenate(pieces)
        made.flags.writeable = False
        return made

    def _bytes(self, tensor: GgufTensor) -> NDArray[np.uint8]:
        data = self.more[tensor.part - 1] if tensor.part else self.data
        return data[tensor.offset : tensor.offset + tensor.nbytes]


def open_gguf(path: str | os.PathLike[str]) -> GgufFile:
    """Open and check a GGUF file. No weight is read.

    The file must not change while it is open: it is mapped, not copied. If it does, whoever reads
    it says so (``ggsched.files.mapping``).

    Raises:
        ModelError: it cannot be read, it is damaged, or it holds something that is not supported.
    """
    file = os.fspath(path)
    data = _map(file)
    header = parse_header(data.data, file)
    alignment = header.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        why = "it must be a power of two"
        raise ModelError(
            f"general.alignment is {shown(alignment)}", where=file, why=why, hint=INCOMPLETE
        )
    tensors = _tensors(file, header, alignment, len(data))
    _check_order(file, tensors.values(), -(-header.end // alignment) * alignment, alignment)
    return GgufFile(file, header.version, header.metadata, tensors, data)


def _map(file: str) -> NDArray[np.uint8]:
    try:
        return map_file(file)
    except OSError as error:
        raise ModelError(
            "cannot read the file", where=file, why=reason(error), hint=_PATHS
        ) from error


def _tensors(file: str, header: Header, alignment: int, size: int) -> dict[str, GgufTensor]:
    start = -(-header.end // alignment) * alignment
    out: dict[str, GgufTensor] = {}
    for info in header.tensors:
        where = f"{file}: tensor {quoted(info.name)}"
        dtype = _dtype(where, info.type_code)
        nbytes = _nbytes(where, info, dtype)
        if info.offset % alignment:
            why = f"the alignment is {alignment}"
            raise ModelError(
                f"offset {info.offset} is not aligned", where=where, why=why, hint=INCOMPLETE
            )
        first = start + info.offset
        if first + nbytes > size:
            why = f"its bytes are [{first}, {first + nbytes}), the file has {size}"
            raise ModelError("lies outside the file", where=where, why=why, hint=INCOMPLETE)
        out[info.name] = GgufTensor(info.name, dtype, info.extents[::-1], first, nbytes)
    return out


def _dtype(where: str, code: int) -> DType:
    dtype = _BY_CODE.get(code)
    if dtype is not None:
        return dtype
    known = ", ".join(d.name for d in dtypes.GGUF_DTYPES)
    from gguf.constants import GGMLQuantizationType

    try:
        name = GGMLQuantizationType(code).name.lower()
    except ValueError:
        why = "GGUF has no such type"
        raise ModelError(f"type {code}", where=where, why=why, hint=INCOMPLETE) from None
    hint = f"supported: {known}; quantise the model to one of them"
    raise ModelError(f"type {name} is not supported", where=where, hint=hint)


def _nbytes(where: str, info: TensorInfo, dtype: DType) -> int:
    shape = list(info.extents[::-1])
    if 0 in shape:
        raise ModelError(f"shape {shape}", where=where, why="an axis of length 0", hint=INCOMPLETE)
    if shape[-1] % dtype.block:
        why = f"a row of {dtype} must be a multiple of {dtype.block} elements"
        raise ModelError(f"shape {shape}", where=where, why=why, hint=INCOMPLETE)
    return prod(shape) // dtype.block * dtype.block_nbytes


def _check_order(file: str, tensors: Iterable[GgufTensor], start: int, alignment: int) -> None:
    """Refuse tensors that share bytes, and holes between them, as llama.cpp does.

    A hole is the trace of a wrong type, shape or offset that still lies inside the file.
    """
    end, last = start, ""
    for tensor in sorted(tensors, key=lambda t: t.offset):
        if tensor.offset < end:
            what = f"tensors {quoted(last)} and {quoted(tensor.name)} share bytes"
            raise ModelError(what, where=file, hint=INCOMPLETE)
        hole = tensor.offset - end
        if hole >= alignment:
            what = f"{hole} bytes before tensor {quoted(tensor.name)} belong to no tensor"
            raise ModelError(what, where=file, why="types or shapes are wrong", hint=INCOMPLETE)
        end, last = tensor.offset + tensor.nbytes, tensor.name
