"""The plug-in ``torch``: PyTorch on the CPU, as a device with memory of its own.

It imports ``ggsched.backend``, ``topology``, ``ir`` and ``errors``, as every plug-in should, and
nothing of PyTorch before a device is opened.
"""

from ggsched.backend.protocols import Backend


def open_backend() -> Backend:
    """Return the backend; the entry point of the plug-in."""
    from ggsched.backend.base import BaseBackend
    from ggsched_torch.driver import require_torch

    require_torch()
    from ggsched_torch.device import MAX_DEVICES, TorchDevice

    return BaseBackend("torch", TorchDevice, limit=MAX_DEVICES, contract_version=(1, 5))
