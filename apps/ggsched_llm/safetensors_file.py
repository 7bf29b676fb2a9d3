"""safetensors files as a source of weights, memory-mapped.

    with Scheduler(devices, weights=open_safetensors("model.safetensors")) as scheduler: ...

The library ``safetensors`` (extra ``safetensors``) checks the file: lengths, offsets, that tensors
neither overlap nor leave holes. The bytes are then looked at where they lie, which its numpy
interface does not do: it copies each tensor, and knows no bfloat16.
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from tempfile import NamedTemporaryFile
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

from ggsched.errors import ModelError
from ggsched.files.mapping import map_file, require_unchanged
from ggsched.files.reading import reason
from ggsched.ir.dtype import BF16, F16, F32, I32, DType

Array = npt.NDArray[Any]

TYPES: Final[Mapping[str, DType]] = {"F32": F32, "F16": F16, "BF16": BF16, "I32": I32}
_NUMPY: Final = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "I32": "<i4"}
_MAX_HEADER: Final = 100_000_001
"""The library takes 100,000,000 bytes."""
_INCOMPLETE: Final = "the file is damaged or was cut off; fetch it again"


@dataclass(frozen=True, slots=True)
class SafetensorsTensor:
    """A tensor of a file.

    Attributes:
        name: As in the file.
        type_name: As in the file, e.g. ``"BF16"``; ``TYPES`` has those that ggsched knows.
        shape: Outermost axis first, as in numpy.
        offset: First byte, from the start of the file.
    """

    name: str
    type_name: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class SafetensorsFile(Mapping[str, Array]):
    """A safetensors file that passed all checks: read-only arrays over the mapped file, by name.

    bf16 comes as its bits in uint16, as ``Scheduler`` takes it.

    Attributes:
        path: Where it was opened, as given.
        metadata: Texts by key.
        tensors: By name, in file order.
    """

    def __init__(
        self,
        path: str,
        metadata: Mapping[str, str],
        tensors: Mapping[str, SafetensorsTensor],
        data: npt.NDArray[np.uint8],
    ) -> None:
        self.path, self.metadata, self.tensors, self._data = path, metadata, tensors, data

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        """Every byte of the file, mapped read-only."""
        return self._data

    def dtype(self, name: str) -> DType:
        """Return the element type of a tensor.

        Raises:
            KeyError: there is no such tensor.
            ModelError: ggsched has no such type.
        """
        tensor = self.tensors[name]
        if tensor.type_name not in TYPES:
            raise ModelError(
                f"type {tensor.type_name} is not supported",
                where=f"{self.path}: tensor {name!r}",
                hint=f"supported: {', '.join(TYPES)}",
            )
        return TYPES[tensor.type_name]

    def __getitem__(self, name: str) -> Array:
        """Return a tensor, read-only, without a copy.

        Raises:
            KeyError: there is no such tensor.
            ModelError: ggsched has no such type.
        """
        self.dtype(name)
        t = self.tensors[name]
        raw = self._data[t.offset : t.offset + t.nbytes]
        return raw.view(_NUMPY[t.type_name]).reshape(t.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)


def open_safetensors(path: str | os.PathLike[str]) -> SafetensorsFile:
    """Open and check a safetensors file. No weight is read.

    The file must not change while it is open: it is mapped, not copied.

    Raises:
        ModelError: it cannot be read or is damaged, or the library ``safetensors`` is missing.
    """
    file = os.fspath(path)
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        why, hint = "the library safetensors is missing", "pip install 'ggsched[safetensors]'"
        raise ModelError("cannot read the file", where=file, why=why, hint=hint) from error
    try:
        data = map_file(file)
        length = int.from_bytes(data[:8].tobytes(), "little")
        header = data[8 : 8 + min(length, _MAX_HEADER)].tobytes()
        # The library maps what it checks, and would crash if that were cut short meanwhile.
        with NamedTemporaryFile() as copy:
            copy.write(data[:8].tobytes() + header)
            copy.truncate(len(data))
            copy.flush()
            with safe_open(copy.name, framework="np") as checked:
                metadata = dict(checked.metadata() or {})
        require_unchanged([data])
        return SafetensorsFile(file, metadata, _tensors(header), data)
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        why = " ".join(str(error).split()) or type(error).__name__
        raise ModelError("not a safetensors file", where=file, why=why, hint=_INCOMPLETE) from error
    except OSError as error:
        hint = "give the path of a .safetensors file that can be read"
        raise ModelError(
            "cannot read the file", where=file, why=reason(error), hint=hint
        ) from error


def _tensors(text: bytes) -> dict[str, SafetensorsTensor]:
    """Return where each tensor lies, by the header that the library has found to be right."""
    length, header = len(text), cast(dict[str, Any], json.loads(text))
    header.pop("__metadata__", None)
    found = []
    for name, entry in header.items():
        first, end = entry["data_offsets"]
        shape = tuple(entry["shape"])
        start = 8 + length + first
        found.append(SafetensorsTensor(name, entry["dtype"], shape, start, end - first))
    return {t.name: t for t in sorted(found, key=lambda t: (t.offset, t.nbytes))}
