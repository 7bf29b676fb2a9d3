"""Host memory that devices give out, or that stands for memory of their own (BUF-1, BUF-6)."""

from ggsched.backend.arrays import Array, aligned_bytes
from ggsched.backend.checks import check_length, no_host_memory_error
from ggsched.backend.protocols import HostMemory
from ggsched.topology.caps import DeviceFacts


def allocate_host(facts: DeviceFacts, nbytes: int) -> HostMemory:
    """Return writable host memory that starts at a multiple of the device's alignment.

    Raises:
        UsageError: the length is negative.
        OutOfDeviceMemory: the system gives no more.
    """
    return host_bytes(facts, nbytes).data


def host_bytes(facts: DeviceFacts, nbytes: int) -> Array:
    """Return such memory as an array; see ``allocate_host``."""
    check_length(facts, nbytes)
    try:
        return aligned_bytes(nbytes, facts.alignment)
    except (MemoryError, OverflowError, ValueError) as error:  # numpy's limit is a ValueError
        raise no_host_memory_error(facts, nbytes) from error
