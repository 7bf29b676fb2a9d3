"""The backend: devices by index."""

from dataclasses import replace
from typing import Final

from ggsched.backend.protocols import Device
from ggsched.errors import BackendUnavailable
from ggsched_opencl import driver
from ggsched_opencl.device import OpenClDevice
from ggsched_opencl.matrix_units import has_ptx, local_nbytes

MAX_DEVICES: Final = 64


class OpenClBackend:
    """Finds the OpenCL devices of the machine.

    ``device_count`` is the number of physical devices; an index beyond it opens a further logical
    device on physical device ``index % device_count``. Each open device has a context of its own,
    so memory is copied between two of them as between strangers: through the host. A closed one
    leaves its context with compiled programs to the next.

    Attributes:
        notes: Which platforms were chosen and why others were not; nothing where all are used.

    Raises:
        BackendUnavailable: there is no device.
    """

    name: Final = "opencl"
    contract_version: Final = (1, 7)

    def __init__(self) -> None:
        found = driver.find_devices()
        self._found = tuple(
            replace(f, has_ptx=True, local_nbytes=local_nbytes(f.handle))
            if not f.is_cpu and has_ptx(f.handle)
            else f
            for f in found.devices
        )
        self.notes = found.notes

    def device_count(self) -> int:
        """How many devices are offered."""
        return len(self._found)

    def open_device(self, index: int) -> Device:
        """Open a device; every call gives a device of its own."""
        if not 0 <= index < MAX_DEVICES:
            raise BackendUnavailable(
                f"there is no device opencl:{index}",
                why=f"there are {len(self._found)}, and logical ones up to {MAX_DEVICES - 1}",
                hint="count from zero",
            )
        return OpenClDevice(index, self._found[index % len(self._found)])
