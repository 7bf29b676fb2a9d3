"""Tensors for other libraries, by DLPack and ``__array_interface__``."""

from collections.abc import Callable
from typing import Any, Final

from ggsched.backend.arrays import Array, numpy_dtype
from ggsched.errors import InterchangeError
from ggsched.interchange import capsule as dl
from ggsched.ir.dtype import BF16, DType

HERE: Final = (dl.CPU, 0)
"""DLPack's kind and number of the host."""


def _no_sync() -> None:
    """Nothing is under way."""


class ExportedTensor:
    """A tensor in host memory that others may take; see ``docs/reference/interchange.md``.

    Each way of taking it waits first until what was enqueued on it is complete (STR-5, BUF-4). What
    was taken before does not include later work: ``sync`` again before reading it.

    Attributes:
        name: Of the tensor, for messages.
        dtype: Element type.
        shape: As in the graph; quantised types end in the bytes of a row.
        device: Name of the device that holds the tensor.
        is_view: Whether the memory is the tensor's own; else it is a copy of when it was made.
        copied_nbytes: Bytes that were copied to make it, 0 for a view.
        copy_s: Seconds that took.
    """

    def __init__(
        self,
        array: Array,
        dtype: DType,
        *,
        name: str = "array",
        device: str = "host",
        is_view: bool = True,
        copy_s: float = 0.0,
        sync: Callable[[], None] = _no_sync,
    ) -> None:
        """Offer an array.

        Args:
            array: The bytes; bf16 as its bits in uint16, quantised types as uint8 rows.
            dtype: What they mean.
            name: For messages.
            device: Name of the device that holds the tensor.
            is_view: Whether these are the tensor's own bytes.
            copy_s: Seconds that were spent on copying them, if they are not.
            sync: Called before anybody looks at the bytes; raises if they are not there any more.
        """
        self.name, self.dtype, self.device, self.is_view = name, dtype, device, is_view
        self.copied_nbytes = 0 if is_view else array.nbytes
        self.copy_s = copy_s
        self._array, self._sync = array, sync

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents, outermost first."""
        return self._array.shape

    @property
    def nbytes(self) -> int:
        """Length in bytes."""
        return self._array.nbytes

    @property
    def is_readonly(self) -> bool:
        """Whether nobody may write it: weights, and copies, whose writes would reach nobody."""
        return not self._array.flags.writeable

    def sync(self) -> None:
        """Wait until all work on the tensor is complete and visible to the host (STR-5).

        Raises:
            InterchangeError: the tensor was released.
            DeviceFault: a command failed.
            SyncTimeout: a device did not answer.
        """
        self._sync()

    def numpy(self) -> Array:
        """Return the bytes as a numpy array, bf16 as its bits in uint16, after ``sync``."""
        self._sync()
        return self._array

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return kind and number of DLPack's device: the host."""
        return HERE

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[Any, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Return a capsule, after ``sync``, as the Python array API standard has it.

        Args:
            stream: The host has no streams: None.
            max_version: Newest version of DLPack that the consumer knows; before 1.0 it cannot be
                informed that a tensor is read-only.
            dl_device: Where it is wanted: the host, or None.
            copy: True for a copy of the consumer's own, which it may write; False for none at
                all, which a tensor of a device that is not the host cannot give.

        Raises:
            InterchangeError: what is requested cannot be had.
            DeviceFault: a command failed.
            SyncTimeout: a device did not answer.
        """
        if stream is not None:
            raise self._no("has no stream", "the host has none (array API: stream is None)")
        if dl_device is not None and tuple(map(int, dl_device)) != HERE:
            where = dl.device_text(*map(int, dl_device))
            raise self._no(f"is in host memory, not on {where}", hint="copy it there afterwards")
        if copy is False and not self.is_view:
            raise self._no(f"is a copy of what {self.device} holds", hint="allow a copy")
        is_told = max_version is not None and max_version[0] >= 1
        if self.is_readonly and not copy and not is_told:
            raise self._no(
                "is read-only",
                "DLPack before 1.0, which the consumer requests, cannot say so",
                "call it with max_version=(1, 0), or with copy=True",
            )
        self._sync()
        array = self._array.copy() if copy else self._array
        capsule = array.__dlpack__(max_version=(1, 0) if is_told else None)
        if self.dtype is BF16:
            dl.relabel(dl.tensor_of(capsule), dl.BFLOAT)
        return capsule

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """Return numpy's description of the bytes, after ``sync``.

        Raises:
            InterchangeError: bf16, which it has no name for, or the tensor was released.
        """
        if self.dtype is BF16:
            raise self._no(
                "has no __array_interface__",
                "bf16 has no name there",
                "take it by DLPack, or the bits with numpy()",
            )
        self._sync()
        return self._array.__array_interface__

    def __repr__(self) -> str:
        how = "view" if self.is_view else "copy"
        return f"<{how} of {self.name} {self.dtype}{list(self.shape)} on {self.device}>"

    def _no(self, what: str, why: str = "", hint: str = "") -> InterchangeError:
        return InterchangeError(what, where=self.name, why=why, hint=hint)


def given(array: Array, dtype: DType, name: str = "array") -> ExportedTensor:
    """Offer an output of a run to others; needed for bf16 only, whose bits come as uint16.

    Raises:
        InterchangeError: the array is not what ``Scheduler.run`` gives for the type.
    """
    wanted = numpy_dtype(dtype)
    if array.dtype != wanted:
        why = f"its arrays are of {wanted}"
        raise InterchangeError(f"{array.dtype} given for {dtype}", where=name, why=why)
    return ExportedTensor(array, dtype, name=name)
