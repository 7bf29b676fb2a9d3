"""Reads files without trusting them: nothing is executed, no other folder is read."""

import errno
import os
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np

from ggsched.errors import ModelError, UsageError
from ggsched.files.mapping import map_file, require_unchanged
from ggsched.files.reading import contents, reason
from ggsched.ir.dtype import dtype_by_name
from ggsched_import.common.emit import Array
from ggsched_import.onnx.types import name_of

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
    try:
        data = contents(path, MAX_NBYTES)
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        hint = "keep weights in another file"
        raise ModelError("longer than 2 GiB", where=str(path), hint=hint) from error
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
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


class ExternalData:
    """Files beside a model's, which hold elements of its tensors; each is mapped once.

    Args:
        folder: Of the model's file; None where files of their own are not allowed.
    """

    def __init__(self, folder: Path | None) -> None:
        self._home = None if folder is None else os.path.realpath(folder)
        self._mapped: dict[str, Array] = {}

    def mapped(self, location: str, where: str) -> Array:
        """Return all bytes of a file.

        Raises:
            ModelError: it is not in the folder, or cannot be read.
        """
        if self._home is None:
            raise ModelError("its elements are in another file", where=where, hint="give a path")
        if location in self._mapped:
            return self._mapped[location]
        try:
            path = Path(os.path.realpath(os.path.join(self._home, location)))
        except ValueError:  # a zero byte or half a character
            path = Path(os.sep)
        if not location or os.path.isabs(location) or not path.is_relative_to(self._home):
            what = f"its file {location!r} is not in the folder of the model"
            raise ModelError(what, where=where)
        try:
            self._mapped[location] = map_file(path)
        except OSError as error:
            what = f"cannot read its file {location!r}"
            raise ModelError(what, where=where, why=reason(error)) from error
        return self._mapped[location]

    def require_unchanged(self) -> None:
        """Raise if a file is not what was mapped.

        Raises:
            ModelError: as ``MappedFile.require_unchanged``.
        """
        require_unchanged(self._mapped.values())


def elements_of(tensor: Any, external: ExternalData) -> Array:
    """Return the elements of a tensor of a file; those in another file are mapped.

    Args:
        tensor: A ``TensorProto``.
        external: Files beside the model's.

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
        return _external(tensor, external, shape, np.dtype(dtype_by_name(kind).host), nbytes)
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
    tensor: Any, external: ExternalData, shape: tuple[int, ...], kind: "np.dtype[Any]", nbytes: int
) -> Array:
    where = f"tensor {tensor.name!r}"
    entries = {text(e.key): text(e.value) for e in tensor.external_data}
    location = entries.get("location", "")
    try:
        offset = int(entries.get("offset", "0"))
        length = int(entries.get("length", str(nbytes)))
    except ValueError as error:
        raise ModelError("offset or length is not a number", where=where) from error
    if length != nbytes:
        raise ModelError(f"{length} bytes for {kind}{list(shape)}", where=where)
    if not nbytes:
        return np.zeros(shape, kind)
    data = external.mapped(location, where)
    if offset < 0 or offset + nbytes > len(data):
        raise ModelError(f"its bytes lie outside the file {location!r}", where=where)
    return data[offset : offset + nbytes].view(kind).reshape(shape)
