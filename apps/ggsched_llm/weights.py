"""The bytes of weights, in the type that the graph wants."""

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ggsched.errors import InternalError
from ggsched.ir.dtype import BF16, F16, F32, I32, DType
from ggsched_llm.gguf_file import GGUF_CODES, GgufFile, GgufTensor
from ggsched_shard.layout import Split

# What numpy calls the type; blocks of quantised types are plain bytes.
_HOST: Final[dict[DType, type[np.generic]]] = {
    F32: np.float32,
    F16: np.float16,
    BF16: np.uint16,
    I32: np.int32,
}
# Converting in pieces keeps gguf's intermediate copies (some 4 per element) out of the way.
CHUNK_ELEMENTS: Final = 1 << 20


def stored_array(file: GgufFile, name: str) -> NDArray[Any]:
    """Return a tensor as it stands in the file, without a copy if its bytes are aligned.

    The result is read-only: float32, float16 or int32 of the tensor's shape, uint16 bits for
    bf16, uint8 (.., bytes of a row) for quantised types.

    Raises:
        ModelError: there is no such tensor.
    """
    raw, tensor = file.raw(name), file.tensors[name]
    host = np.dtype(_HOST.get(tensor.dtype, np.uint8))
    if tensor.offset % host.itemsize:  # only with general.alignment < 4
        raw = raw.copy()
        raw.flags.writeable = False
    view = np.asarray(raw).view(host)
    return view.reshape(*tensor.shape[:-1], -1)


def converted_array(file: GgufFile, name: str) -> NDArray[np.float32]:
    """Return a tensor of any float type as a fresh float32 array of its shape.

    Raises:
        ModelError: there is no such tensor.
        InternalError: it is not of a float type, which ``load_model`` excludes.
    """
    raw, tensor = file.raw(name), file.tensors[name]
    if tensor.dtype is I32:
        raise InternalError("cannot convert i32 to f32", where=name)
    out = np.empty(prod(tensor.shape), np.float32)
    dtype = tensor.dtype
    step = CHUNK_ELEMENTS // dtype.block * dtype.block
    # A damaged scale gives inf or NaN, which is what the file says.
    with np.errstate(all="ignore"):
        for start in range(0, out.size, step):
            stop = min(start + step, out.size)
            first, last = dtype.row_nbytes(start), dtype.row_nbytes(stop)
            out[start:stop] = _floats(raw[first:last], tensor)
    return out.reshape(tensor.shape)


def with_arrays(file: GgufFile, arrays: Mapping[str, NDArray[np.float32]]) -> GgufFile:
    """Return a file with tensors that were computed, beside or instead of its own."""
    tensors, at, part = dict(file.tensors), 0, len(file.more) + 1
    raw = [np.ascontiguousarray(a).view(np.uint8).reshape(-1) for a in arrays.values()]
    for (name, values), data in zip(arrays.items(), raw, strict=True):
        tensors[name] = GgufTensor(name, F32, values.shape, at, len(data), part)
        at += len(data)
    more = (*file.more, np.concatenate(raw)) if raw else file.more
    return replace(file, tensors=tensors, more=more)


def part_array(whole: NDArray[Any], dtype: DType, split: Split, part: int) -> NDArray[Any]:
    """Return a participant's part of a weight.

    A part of the outermost axis is a view of the whole, so it is used where the file is mapped;
    others are read when they are loaded, and nothing beside them. Several segments are joined.

    Args:
        whole: As ``weight_array`` returns it: rows of quantised types are bytes.
        dtype: Of the weight.
        split: How it is split.
        part: The participant.
    """
    pieces = []
    spans = split.spans(part)
    for first, stop in [span for span in spans if span[0] < span[1]] or spans[:1]:
        if dtype.is_quantized and split.axis == whole.ndim - 1:
            first, stop = dtype.row_nbytes(first), dtype.row_nbytes(stop)
        index = (*(slice(None) for _ in range(split.axis)), slice(first, stop))
        pieces.append(whole[index])
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces, axis=split.axis)


def _floats(raw: NDArray[np.uint8], tensor: GgufTensor) -> NDArray[np.float32]:
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    # A copy is aligned, and one chunk is small.
    kind = GGMLQuantizationType(GGUF_CODES[tensor.dtype])
    values: NDArray[np.float32] = dequantize(np.array(raw), kind).reshape(-1)
    return values
