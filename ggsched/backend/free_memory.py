"""How much of a device's memory is free. The contract does not require devices to report it."""

from typing import Final, Protocol, runtime_checkable

from ggsched.backend.offline_device import OfflineDevice
from ggsched.backend.protocols import Device
from ggsched.files.reading import contents

_MEMINFO: Final = "/proc/meminfo"


@runtime_checkable
class ReportsFreeMemory(Protocol):
    """A device that reports how much of its memory no buffer holds."""

    @property
    def free_nbytes(self) -> int:
        """Bytes that are free."""


def free_nbytes(device: Device) -> int:
    """Return the bytes of a device's memory that are free, as far as is known.

    What the device reports, or else all of its memory; for host memory no more than the system can
    give without swapping. Of an offline device all memory is free.
    """
    free = device.facts.memory_nbytes
    if isinstance(device, OfflineDevice):
        return free
    if isinstance(device, ReportsFreeMemory):
        free = min(free, device.free_nbytes)
    if device.facts.is_host:
        available = available_host_nbytes()
        free = free if available is None else min(free, available)
    return max(0, free)


def available_host_nbytes(meminfo: str = _MEMINFO) -> int | None:
    """Return what Linux calls ``MemAvailable`` in bytes; None if it is unknown."""
    try:
        for line in contents(meminfo).decode("ascii", "replace").splitlines():
            name, _, rest = line.partition(":")
            if name == "MemAvailable":
                return int(rest.split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        return None
    return None
