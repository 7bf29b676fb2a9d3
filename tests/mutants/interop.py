"""INT: memory and streams that are described as what they are not."""

from typing import Any

import numpy as np

from tests.mutants.baselines import EXPORTS
from tests.mutants.mutant import breaks
from tests.mutants.mutate_exports import ExportingBuffer, ExportingStream

# --- INT-1 ------------------------------------------------------------------------------------


@breaks("INT-1", "DLPack exports a copy.", EXPORTS)
class ExportIsACopy(ExportingBuffer):
    """What is written later is not seen."""

    def __dlpack__(self, **options: Any) -> Any:
        return np.array(self.memory).__dlpack__(**options)


@breaks("INT-1", "DLPack exports words instead of bytes.", EXPORTS)
class ExportOfWords(ExportingBuffer):
    """The type is a guess."""

    def __dlpack__(self, **options: Any) -> Any:
        whole = self.memory[: self.nbytes // 4 * 4]
        return whole.view(np.float32).__dlpack__(**options)


@breaks("INT-1", "DLPack exports the memory of a closed buffer.", EXPORTS)
class ExportOfClosedBuffer(ExportingBuffer):
    """Somebody else may have it by now."""

    def __dlpack__(self, **options: Any) -> Any:
        memory = np.zeros(self.nbytes, np.uint8) if self.is_closed else self.memory
        return memory.__dlpack__(**options)


# --- INT-2 ------------------------------------------------------------------------------------


class _Described(ExportingBuffer):
    """Changes a part of the description."""

    def changed(self) -> dict[str, Any]:
        """Return what is described otherwise."""
        return {}

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Describe it wrongly."""
        return {**super().__cuda_array_interface__, **self.changed()}


@breaks("INT-2", "__cuda_array_interface__ says that the buffer is read-only.", EXPORTS)
class DescribedAsReadOnly(_Described):
    """Nobody could write to it."""

    def changed(self) -> dict[str, Any]:
        return {"data": (self.memory.ctypes.data, True)}


@breaks("INT-2", "__cuda_array_interface__ gives the length rounded up.", EXPORTS)
class DescribedAsLonger(_Described):
    """Its user reads what is behind."""

    def changed(self) -> dict[str, Any]:
        return {"shape": (-(-self.nbytes // 64) * 64,)}


@breaks("INT-2", "__cuda_array_interface__ describes a closed buffer.", EXPORTS)
class DescribedWhenClosed(ExportingBuffer):
    """The address was kept."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": (self.nbytes,), "typestr": "|u1", "data": (64, False), "version": 3}


# --- INT-3 ------------------------------------------------------------------------------------


@breaks("INT-3", "All streams have the handle of the default stream.", EXPORTS)
class HandleOfTheDefaultStream(ExportingStream):
    """What others enqueue is ordered with nothing."""

    def __cuda_stream__(self) -> tuple[int, int]:
        version, _ = super().__cuda_stream__()
        return version, 0


@breaks("INT-3", "__cuda_stream__ gives a version that does not exist.", EXPORTS)
class HandleOfAnotherVersion(ExportingStream):
    """Its users refuse it."""

    def __cuda_stream__(self) -> tuple[int, int]:
        _, handle = super().__cuda_stream__()
        return 1, handle


@breaks("INT-3", "__cuda_stream__ gives the handle of a closed stream.", EXPORTS)
class HandleOfAClosedStream(ExportingStream):
    """The driver may have given it to another one."""

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, id(self.progress)
