"""Collectives of a simulation: those of gloo, in the order that NCCL would give them.

As with NCCL an asynchronous collective is work of a stream of the process group: that stream waits
for the caller's, and ``Work.wait()`` lets the caller's wait for it. A synchronous one is work of
the caller's stream.
"""

import re
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch
from torch import distributed
from torch.utils._python_dispatch import _disable_current_modes

from ggsched_race.simulated_cuda import Device, SimulatedStream

_COLLECTIVES: Final = re.compile(r"gather|reduce|scatter|broadcast|all_?to_?all|^send$|^recv")
"""Methods of process groups, by any of their names in versions of PyTorch."""


class _Local(threading.local):
    is_called: bool = False
    end: Any = None


class SimulatedNccl:
    """Which collectives are under way.

    Args:
        cuda: The simulation.
    """

    def __init__(self, cuda: Device) -> None:
        self._cuda = cuda
        self._stream = SimulatedStream(stream_ptr=cuda.handle())
        self._local = _Local()
        self._ends: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

    def before(self) -> None:
        """Let the stream of collectives wait for the caller's, where they differ."""
        if self._local.is_called:
            self._stream.wait_stream(self._cuda.current())

    def after(self) -> None:
        """Note what a wait for the collective waits for."""
        if self._local.is_called:
            self._local.end = self._stream.record_event()

    def replaced(self) -> Iterator[tuple[Any, str, Any]]:
        """Yield (owner, name, value) of what is replaced in ``torch.distributed``."""
        if not distributed.is_available():
            return
        group, work = distributed.ProcessGroup, torch._C._distributed_c10d.Work
        names = [name for name in vars(group) if _COLLECTIVES.search(name)]
        yield from ((group, name, self._calling(getattr(group, name))) for name in names)
        yield from ((work, n, self._waiting(getattr(work, n))) for n in ("wait", "synchronize"))
        begin = distributed.init_process_group

        def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> None:
            kwargs.pop("device_id", None)
            begin("gloo" if backend is None or "nccl" in backend else backend, *args, **kwargs)

        yield distributed, "init_process_group", init_process_group

    def _calling(self, native: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            local = self._local
            options = [a for a in (*args, *kwargs.values()) if hasattr(a, "asyncOp")]
            local.is_called = all(o.asyncOp for o in options)  # without options it is one
            try:
                work = native(*args, **kwargs)
            finally:
                local.is_called, end, local.end = False, local.end, None
            if work is not None and end is not None:
                self._ends[work] = end
            return work

        return call

    def _waiting(self, native: Callable[..., Any]) -> Callable[..., Any]:
        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            with _disable_current_modes():  # gloo copies here, on the host
                result = native(work, *args, **kwargs)
            end = self._ends.get(work)
            if end is not None:
                self._cuda.current().wait_event(end)
            return result

        return wait
