"""The plug-in ``cpu``: numpy on the host, a worker thread per stream."""

from ggsched.backend.protocols import Backend


def open_backend() -> Backend:
    """Return the backend; the entry point of the plug-in."""
    from ggsched.backend.base import BaseBackend
    from ggsched_cpu.device import MAX_DEVICES, CpuDevice, CpuSettings

    settings = CpuSettings.from_environment()
    return BaseBackend(
        "cpu",
        lambda index: CpuDevice(index, settings),
        limit=MAX_DEVICES,
        contract_version=(1, 7),
    )
