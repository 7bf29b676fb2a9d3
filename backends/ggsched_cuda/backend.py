"""The backend: devices by index, and several on one GPU."""

from typing import Final

from ggsched.backend.protocols import Device
from ggsched.errors import BackendUnavailable
from ggsched_cuda import cuda_contexts, driver
from ggsched_cuda.cuda_context import CudaContext
from ggsched_cuda.device import PARTS, CudaDevice
from ggsched_cuda_kernels.blas import driver as blas
from ggsched_cuda_kernels.sources import OLDEST_ARCH


class CudaBackend:
    """Finds the GPUs of the machine.

    ``cuda:0`` is a GPU. ``cuda:0/0`` to ``cuda:0/3`` are logical devices on it, each with a
    quarter of its memory and streams of its own; between two of them things go as between two
    GPUs that reach each other.

    Raises:
        BackendUnavailable: there is no driver or no GPU.
    """

    name: Final = "cuda"
    contract_version: Final = (1, 7)

    def __init__(self) -> None:
        self._found = driver.find_gpus()

    def device_count(self) -> int:
        """How many GPUs are offered."""
        return len(self._found)

    def open_device(self, index: int) -> Device:
        """Open a GPU; every call gives a device of its own."""
        return CudaDevice(self._gpu(index), f"cuda:{index}", 1)

    def open_part(self, index: int, part: int) -> Device:
        """Open a logical device of a GPU.

        Raises:
            BackendUnavailable: there is no such GPU, or no such part.
        """
        if not 0 <= part < PARTS:
            raise BackendUnavailable(
                f"there is no device cuda:{index}/{part}",
                why=f"a GPU has {PARTS} logical devices",
                hint="count from zero",
            )
        return CudaDevice(self._gpu(index), f"cuda:{index}/{part}", PARTS)

    def _gpu(self, index: int) -> CudaContext:
        if not 0 <= index < len(self._found):
            raise BackendUnavailable(
                f"there is no device cuda:{index}",
                why=f"there are {len(self._found)}",
                hint="count from zero; cuda:0/1 is the second logical device of the first GPU",
            )
        found = self._found[index]
        if found.arch < OLDEST_ARCH:
            raise BackendUnavailable(
                f"{found.name} is too old",
                where=f"cuda:{index}",
                why=f"it has compute capability {found.arch / 10}; kernels need {OLDEST_ARCH / 10}",
                hint="use its OpenCL device instead, e.g. --devices opencl:0",
            )
        blas.loading()
        try:
            return cuda_contexts.CUDA_CONTEXTS.open(found, len(self._found))
        except driver.CudaError as error:
            raise BackendUnavailable(
                "the GPU cannot be used",
                where=f"cuda:{index}",
                why=str(error),
                hint="after a fault CUDA ends all work of a process on a GPU: start it again",
            ) from error
