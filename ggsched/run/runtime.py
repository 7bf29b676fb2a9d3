"""Where the plans of a scheduler run: this process, unless its devices bring another place."""

import logging
from collections.abc import Sequence
from typing import Final

from ggsched.backend.checked import checked
from ggsched.backend.protocols import Device, HostMemory
from ggsched.backend.registry import open_devices
from ggsched.config import Settings, exported
from ggsched.errors import BackendUnavailable, GgschedError, UsageError
from ggsched.ir.graph import Graph
from ggsched.plan.bundle import Plan
from ggsched.run.executor import Executor
from ggsched.run.protocols import OpensRuntime, Runtime
from ggsched.run.resources import Resources
from ggsched.run.store import Progress, TensorStore, WeightSource
from ggsched.trace.recorder import Recorder
from ggsched.trace.tracing import traced


def open_runtime(
    devices: Sequence[Device],
    weights: WeightSource,
    settings: Settings,
    progress: Progress | None,
    recorder: Recorder | None,
) -> Runtime:
    """Return where plans for open devices run, with nothing on them.

    Raises:
        UsageError: devices that do not belong together.
    """
    for device in devices:
        if isinstance(device, OpensRuntime):
            return device.open_runtime(devices, weights, settings, progress, recorder)
    if settings.checked:
        devices = checked(devices)
    if recorder is not None:
        devices = traced(devices, recorder)

    def note_write(memory: HostMemory) -> None:
        assert recorder is not None
        recorder.add(recorder.host_work("read a weight", writes=[memory]))

    store = TensorStore(
        devices,
        weights,
        timeout_s=settings.timeout_s,
        progress=progress,
        note=None if recorder is None else note_write,
    )

    def bind(graph: Graph, plan: Plan) -> Executor:
        store.hold(graph.constants)
        resources = Resources(graph, plan, store)
        return Executor(
            graph,
            plan,
            resources,
            timeout_s=settings.timeout_s,
            recorder=recorder,
            captures=settings.capture,
        )

    return Runtime(store, bind, store)


# --- devices --------------------------------------------------------------------------------------


_LOG: Final = logging.getLogger("ggsched")


def names_of(devices: Sequence[str] | Sequence[Device] | None) -> list[str] | None:
    """Return the names among what a caller gave; None for all usable devices."""
    return None if devices is None else [d for d in devices if isinstance(d, str)]


def opened(
    devices: Sequence[str] | Sequence[Device] | None, settings: Settings
) -> tuple[list[Device], list[Device]]:
    """Return the devices that the caller of this function has to close, and all devices.

    Raises:
        UsageError: a device name that makes no sense, no devices, or names beside open devices.
        BackendUnavailable: a device that is not there.
        BackendBroken: a plug-in that fails or lies about itself.
    """
    if devices is None or all(isinstance(d, str) for d in devices):
        with exported(settings):
            found = list(open_devices(names_of(devices), allow=settings.backends, on_skip=_say))
        return found, found
    if names := names_of(devices):
        raise UsageError(
            f"the devices are names ({', '.join(names)}) and open devices",
            hint="give names alone, or open all of them with open_devices",
        )
    return [], [d for d in devices if not isinstance(d, str)]


def _say(skipped: GgschedError) -> None:
    """Say which backend is left out where all usable devices were requested.

    That a machine has no GPU, or a library is not installed, is reported by ``ggsched devices`` and
    is nothing to be warned of at each run; a plug-in that is broken is.
    """
    level = logging.INFO if isinstance(skipped, BackendUnavailable) else logging.WARNING
    _LOG.log(level, "left out: %s", skipped.one_line())
