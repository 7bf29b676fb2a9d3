"""Where the plans of a scheduler run: this process, unless its devices bring another place."""

from collections.abc import Sequence

from ggsched.backend.checked import checked
from ggsched.backend.protocols import Device, HostMemory
from ggsched.config import Settings
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
