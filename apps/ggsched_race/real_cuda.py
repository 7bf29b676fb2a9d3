"""CUDA as PyTorch has it."""

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from ggsched_race.recording import StreamKey

_NON_BLOCKING: Final = 1


class RealCuda:
    """The platform of a process with GPUs."""

    def __init__(self) -> None:
        torch._C._activate_gpu_trace()
        self._is_in_use = False

    def device_of(self, tensor: Any) -> int | None:
        """Return the device of a tensor; None for the host."""
        device: int = tensor.get_device()
        return device if device >= 0 else None

    def address(self, storage: Any) -> int:
        """Return the address of device memory."""
        return int(storage.data_ptr())

    def is_pinned(self, tensor: Any) -> bool:
        """Whether a device can access a tensor of the host."""
        return bool(tensor.is_pinned())

    def stream(self, device: int | None) -> StreamKey:
        """Return the key of the calling thread's stream."""
        if not self._is_in_use:
            self._is_in_use = torch.cuda.is_initialized()
            if not self._is_in_use:
                return device or 0, 0
        device = torch._C._cuda_getDevice() if device is None else device
        return device, torch._C._cuda_getCurrentRawStream(device)

    def key_of(self, stream: Any) -> StreamKey:
        """Return the key of a stream object, of ``torch.cuda`` or of the dispatcher."""
        if not hasattr(stream, "cuda_stream"):
            stream = torch.cuda.Stream(
                stream_id=stream.stream_id,
                device_index=stream.device_index,
                device_type=stream.device_type,
            )
        return stream.device.index, stream.cuda_stream

    def is_blocking(self, stream: Any) -> bool:
        """Whether a stream of another library follows the legacy default stream."""
        if not isinstance(stream, torch.cuda.ExternalStream):
            return False
        flags = ctypes.c_uint(_NON_BLOCKING)
        try:
            runtime = ctypes.CDLL(f"libcudart.so.{(torch.version.cuda or '').partition('.')[0]}")
            runtime.cudaStreamGetFlags(ctypes.c_void_p(stream.cuda_stream), ctypes.byref(flags))
        except (OSError, AttributeError):  # linked otherwise, so it cannot be asked
            return False
        return not flags.value & _NON_BLOCKING

    def before_op(self) -> None:
        """Do nothing: the engine has called its hooks already."""

    def run(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Call an op."""
        return func(*args, **kwargs)

    def launch(self, native: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call what launches a kernel that is no op."""
        return native(*args, **kwargs)

    def wait_for_all(self) -> None:
        """Let the host wait for the devices."""
        torch.cuda.synchronize()
