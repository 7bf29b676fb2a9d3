"""Models whose tensors are divided among several files, as llama-gguf-split writes them.

The first file holds the metadata of the model; each says which part it is, of how many. The parts
lie beside each other and end in ``-00001-of-00003.gguf``.
"""

import os
import re
from dataclasses import replace
from typing import Final

from ggsched.errors import ModelError
from ggsched_llm.gguf_file import GgufFile, GgufTensor, open_gguf
from ggsched_llm.gguf_header import quoted, shown

_LARGEST: Final = {"split.count": 1 << 16, "split.no": 1 << 16, "split.tensors.count": 1 << 32}
_NAME: Final = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)
_FETCH: Final = "fetch all parts of one model into one folder"


def open_model_file(path: str | os.PathLike[str]) -> GgufFile:
    """Open a GGUF file, with the other parts of its model if there are any.

    Any of the parts may be named.

    Raises:
        ModelError: as ``open_gguf``, or a part is missing or belongs to another model.
    """
    given = os.fspath(path)
    file = open_gguf(given)
    count = _number(file, "split.count", 0)
    if count <= 1:
        return file
    name = _NAME.fullmatch(given)
    if name is None or int(name[3]) != count:
        why = f"it is one of {count} parts, so its name must end in -00001-of-{count:05}.gguf"
        raise ModelError("cannot find the other parts", where=given, why=why, hint=_FETCH)
    paths = [f"{name[1]}-{i + 1:05}-of-{count:05}.gguf" for i in range(count)]
    missing = [part for part in paths if not os.path.exists(part)]
    if missing:
        what = f"{len(missing)} of {count} parts are missing, the first is {quoted(missing[0])}"
        raise ModelError(what, where=given, hint=_FETCH)
    return _joined([open_gguf(part) for part in paths])


def _joined(files: list[GgufFile]) -> GgufFile:
    """Return one file that holds the tensors of all."""
    first, count = files[0], len(files)
    tensors: dict[str, GgufTensor] = {}
    for i, file in enumerate(files):
        for key, wanted in (("split.no", i), ("split.count", count)):
            found = _number(file, key, -1)
            if found != wanted:
                what = f"key {key} is {found} where it should be {wanted}"
                raise ModelError(what, where=file.path, why="a foreign part", hint=_FETCH)
        for tensor in file.tensors.values():
            if tensor.name in tensors:
                what = f"tensor {quoted(tensor.name)} is in an earlier part too"
                raise ModelError(what, where=file.path, why="a foreign part", hint=_FETCH)
            tensors[tensor.name] = replace(tensor, part=i)
    total = _number(first, "split.tensors.count", len(tensors))
    if total != len(tensors):
        what = f"the parts have {len(tensors)} tensors, the model has {total}"
        raise ModelError(what, where=first.path, why="a foreign part", hint=_FETCH)
    return replace(first, tensors=tensors, more=tuple(file.data for file in files[1:]))


def _number(file: GgufFile, key: str, default: int) -> int:
    value = file.metadata.get(key, default)
    if type(value) is not int or not -1 <= value <= _LARGEST[key]:
        raise ModelError(f"key {key} is {shown(value)}", where=file.path, why="a damaged part")
    return value
