"""Device memory."""

from collections.abc import Callable

from ggsched.backend.checks import closed_error
from ggsched.backend.program import OperandMemory
from ggsched.backend.protocols import Device, HostMemory
from ggsched.errors import UsageError
from ggsched_opencl.driver import Handle


class OpenClBuffer:
    """A range of device memory (BUF-1..4).

    Offsets go to kernels as numbers, so there are no sub-buffers and no rule about where a region
    may start but that of its elements.

    Args:
        device: Whose memory it is.
        nbytes: Its length.
        handle: The OpenCL buffer.
        forget: Told when it is closed.
        readonly: Whether it was imported from host memory.
    """

    def __init__(
        self,
        device: Device,
        nbytes: int,
        handle: Handle,
        forget: Callable[["OpenClBuffer"], None],
        *,
        readonly: bool = False,
    ) -> None:
        self.device = device
        self.nbytes = nbytes
        self.readonly = readonly
        self._handle = handle
        self._forget = forget

    @property
    def handle(self) -> Handle:
        """The OpenCL buffer.

        Raises:
            UsageError: it is closed (ERR-3).
        """
        if self._handle is None:
            raise closed_error("buffer")
        return self._handle

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._handle is None

    def host_view(self) -> HostMemory:
        """Refuse: the memory is the device's (BUF-4)."""
        raise UsageError(
            "the memory is not host memory", where=self.device.facts.name, hint="download it"
        )

    def close(self) -> None:
        """Release the memory; legal twice (ERR-3). OpenCL defers it while commands use it."""
        self._handle = None
        self._forget(self)


def readable(buffer: OperandMemory) -> Handle:
    """Return the handle of one of this backend's buffers; the caller has checked whose it is."""
    assert isinstance(buffer, OpenClBuffer)
    return buffer.handle


def writable(buffer: OperandMemory) -> Handle:
    """Return the handle of a buffer that a command is to write.

    Raises:
        UsageError: it was imported from host memory, or is closed.
    """
    assert isinstance(buffer, OpenClBuffer)
    if buffer.readonly:
        raise UsageError("the buffer is read-only", why="it was imported from host memory")
    return buffer.handle
