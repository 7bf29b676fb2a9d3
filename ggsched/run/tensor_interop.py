"""Weights and states of a store for other libraries, and states from them."""

import time
from collections.abc import Callable
from functools import partial

import numpy as np

from ggsched.backend.arrays import Array, numpy_dtype, numpy_shape
from ggsched.backend.plugin_calls import name_of, plugin_faults
from ggsched.backend.protocols import HostMemory
from ggsched.errors import InterchangeError, UsageError
from ggsched.interchange.dlpack_export import ExportedTensor
from ggsched.interchange.dlpack_import import ArrayLike, check_array, host_array
from ggsched.ir.tensor import Role, Tensor
from ggsched.run.call_guard import CallGuard, guarded
from ggsched.run.store import Resident, TensorStore


class Exchange:
    """What ``Scheduler.exchange`` gives; the rules stand in ``docs/reference/interchange.md``.

    Args:
        store: Where the tensors are resident.
        drain: Waits for all work, and raises what went wrong.
        guard: Held during each call.
    """

    def __init__(self, store: TensorStore, drain: Callable[[], None], guard: CallGuard) -> None:
        self._store, self._drain, self.guard = store, drain, guard

    @guarded(may_nest=True)
    def give(self, tensor: Tensor) -> ExportedTensor:
        """Return a resident weight or state for other libraries.

        On a host device it is the tensor's own memory, without a copy: weights read-only, states
        to be written too, between runs. Of another device it is a read-only copy, with its bytes
        and seconds in ``copied_nbytes`` and ``copy_s``. All work is waited for (STR-5), here and
        each time that somebody takes it.

        Args:
            tensor: As ``graph.named`` gives it.

        Raises:
            UsageError: no weight or state, not resident, resident in another shape or type, or
                another thread is in a call; the latter also when it is taken.
            DeviceFault: a command failed.
            SyncTimeout: a device did not answer.
        """
        held = self._held(tensor)
        facts = held.buffer.device.facts
        self._drain()
        if not facts.is_host:
            began = time.perf_counter()
            array = _shaped(tensor, self._downloaded(held), is_writable=False)
            seconds = time.perf_counter() - began
            return ExportedTensor(
                array,
                tensor.dtype,
                name=tensor.name,
                device=facts.name,
                is_view=False,
                copy_s=seconds,
                sync=partial(self._require_held, tensor.name, held),
            )
        memory = held.buffer.host_view()
        array = _shaped(tensor, memory, is_writable=held.kind == "state")

        def sync() -> None:
            with self.guard.hold(f"sync of {tensor.name!r}", may_nest=True):
                self._require_held(tensor.name, held)
                self._drain()

        return ExportedTensor(array, tensor.dtype, name=tensor.name, device=facts.name, sync=sync)

    @guarded()
    def set_state(self, tensor: Tensor, value: ArrayLike) -> None:
        """Fill a resident state from an array of any library.

        The array is borrowed until this returns (CPY-4).

        Args:
            tensor: As ``graph.named`` gives it.
            value: In the state's shape and of its type; bf16 also as its bits in uint16.

        Raises:
            UsageError: no state, not resident, another shape or type, or another thread is in a
                call.
            InterchangeError: the array cannot be read.
        """
        held = self._held(tensor)
        if held.kind != "state":
            raise UsageError(f"is a {held.kind}, not a state", where=tensor.name)
        array = host_array(value, tensor.name)
        check_array(array, tensor)
        whole = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self._drain()
        self._store.fill(tensor.name, whole.data.toreadonly())

    def _require_held(self, name: str, held: Resident) -> None:
        """Refuse what was given of a tensor that is not the resident one any more."""
        if self._store.resident(name) is not held:
            raise InterchangeError(
                "was released", where=name, hint="get it from the scheduler again"
            )

    def _held(self, tensor: Tensor) -> Resident:
        if tensor.is_view or tensor.role not in (Role.WEIGHT, Role.STATE):
            raise UsageError(
                "is not a weight or state", where=tensor.name, hint="use graph.named(name)"
            )
        held = self._store.resident(tensor.name)
        if held is None:
            raise UsageError(
                "is not resident",
                where=tensor.name,
                hint="prepare or run a graph that uses it first",
            )
        if not held.matches(tensor):
            raise UsageError(
                f"is resident as {held.dtype}{list(held.shape)}",
                where=tensor.name,
                why=f"requested {tensor.dtype}{list(tensor.shape)}",
                hint="use graph.named(name) of a graph that was run",
            )
        return held

    def _downloaded(self, held: Resident) -> HostMemory:
        stream = self._store.stream(held.device, 0)
        target = np.empty(held.nbytes, np.uint8).data
        with plugin_faults(name_of(stream.device), "download"):
            stream.download(held.buffer, 0, target)
            stream.sync(self._store.timeout_s)
        return target


def _shaped(tensor: Tensor, memory: HostMemory, *, is_writable: bool) -> Array:
    kind, shape = numpy_dtype(tensor.dtype), numpy_shape(tensor.dtype, tensor.shape)
    array: Array = np.ndarray(shape, kind, memory) if tensor.nbytes else np.empty(shape, kind)
    if not is_writable:
        array.flags.writeable = False
    return array
