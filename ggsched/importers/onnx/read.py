"""Reads files without trusting them: nothing is executed, no other folder is read."""

import os
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np

from ggsched.errors import ModelError, UsageError
from ggsched.importers.common.emit import Array
from ggsched.importers.onnx.types import name_of
from ggsched.ir.dtype import dtype_by_name

_EXTERNAL: Final = 1
MAX_NBYTES: Final = (1 << 31) - 1
"""Longest file: that of a protobuf message."""


def import_onnx() -> Any:
    """Return the package ``onnx``.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import onnx
    except ImportError as error:
        raise UsageError(
            "the package onnx is missing", where="from_onnx", hint="pip install 'ggsched[onnx]'"
        ) from error
    return onnx


def read_model(path: Path) -> Any:
    """Return the message in a file, without the data of other files.

    Raises:
        ModelError: it is not an ONNX model.
        OSError: it cannot be read.
    """
    onnx = import_onnx()
    if path.stat().st_size > MAX_NBYTES:
        raise ModelError("longer than 2 GiB", where=str(path), hint="keep weights in another file")
    model = onnx.ModelProto()
    try:
        model.ParseFromString(path.read_bytes())
    except (ValueError, RecursionError, RuntimeError) as error:
        raise _not_a_model(path, str(error)) from error
    except Exception as error:  # DecodeError, which derives from Exception only
        raise _not_a_model(path, str(error)) from error
    if not model.HasField("graph") or not model.opset_import:
        raise _not_a_model(path, "it has no graph or no op sets")
    return model


def _not_a_model(path: Path, why: str) -> ModelError:
    return ModelError("not an ONNX model", where=str(path), why=" ".join(why.split()))


def text(name: Any) -> str:
    """Return a name of a file.

    Raises:
        ModelError: it is not valid UTF-8, of which protobuf makes bytes.
    """
    if not isinstance(name, str):
        raise ModelError(f"the name {name!r} is not valid UTF-8")
    return name


def elements_of(tensor: Any, folder: Path | None) -> Array:
    """Return the elements of a tensor of a file; those in another file are mapped.

    Args:
        tensor: A ``TensorProto``.
        folder: Of the model's file; None where files of their own are not allowed.

    Raises:
        ModelError: a type that is not supported, elements that are missing, or a file that is not
            in the folder.
    """
    where = f"tensor {tensor.name!r}"
    kind = name_of(tensor.data_type, where)
    shape = tuple(tensor.dims)
    nbytes = prod(shape) * dtype_by_name(kind).block_nbytes
    if any(n < 0 for n in shape) or nbytes > 1 << 50:
        raise ModelError(f"shape {list(shape)}", where=where)
    if tensor.data_location == _EXTERNAL:
        return _external(tensor, folder, shape, np.dtype(dtype_by_name(kind).host), nbytes)
    if tensor.HasField("raw_data") and len(tensor.raw_data) != nbytes:
        raise ModelError(f"{len(tensor.raw_data)} bytes for {kind}{list(shape)}", where=where)
    numpy_helper = import_onnx().numpy_helper
    try:
        return np.ascontiguousarray(numpy_helper.to_array(tensor)).reshape(shape)
    except (ValueError, TypeError, OverflowError) as error:
        raise ModelError(
            "its elements do not fit its shape", where=where, why=str(error)
        ) from error


def _external(
    tensor: Any, folder: Path | None, shape: tuple[int, ...], kind: "np.dtype[Any]", nbytes: int
) -> Array:
    where = f"tensor {tensor.name!r}"
    entries = {e.key: e.value for e in tensor.external_data}
    location = entries.get("location", "")
    if folder is None:
        raise ModelError("its elements are in another file", where=where, hint="give a path")
    path = Path(os.path.realpath(folder / location))
    home = Path(os.path.realpath(folder))
    if not location or Path(location).is_absolute() or not path.is_relative_to(home):
        raise ModelError(f"its file {location!r} is not in the folder of the model", where=where)
    try:
        offset = int(entries.get("offset", "0"))
        length = int(entries.get("length", str(nbytes)))
    except ValueError as error:
        raise ModelError("offset or length is not a number", where=where) from error
    if length != nbytes:
        raise ModelError(f"{length} bytes for {kind}{list(shape)}", where=where)
    if not path.is_file():
        raise ModelError(f"there is no file {location!r}", where=where)
    if offset < 0 or offset + nbytes > path.stat().st_size:
        raise ModelError(f"its bytes lie outside the file {location!r}", where=where)
    if not nbytes:
        return np.zeros(shape, kind)
    return np.memmap(path, kind, "r", offset, shape)
