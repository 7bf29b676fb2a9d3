"""Devices whose captures update graphs, refuse to, cannot, or break; each counts its graphs."""

from ggsched.backend.base import host_facts
from ggsched.backend.list_capture import RecordedCapture
from ggsched.errors import DeviceFault
from ggsched_cpu.device import CpuDevice, CpuSettings
from tests.backends.device_settings import KERNELS, TIMEOUT_S, FarDevice

WHY = "another number of nodes"


class Graphs:
    """All graphs of a device, and in which order they were made and closed."""

    def __init__(self):
        self.log = []
        self.open = []

    def add(self, graph):
        close = graph.close
        self.log.append("made")
        self.open.append(graph)

        def watched():
            if graph in self.open:
                self.open.remove(graph)
                self.log.append("closed")
            close()

        graph.close = watched
        return graph


class Updates(RecordedCapture):
    """Updates each graph."""

    def end(self):
        return self._streams[0].device.graphs.add(super().end())

    def end_into(self, graph):
        why = super().end_into(graph)
        self._streams[0].device.graphs.log.append("updated")
        return why


class Refuses(Updates):
    """Says why it does not."""

    def end_into(self, graph):
        self.require_graph(graph)
        self.stop()
        return WHY


class RefusesAndBreaks(Refuses):
    """Refuses, and then makes no graph at all."""

    def end(self):
        if self._streams[0].device.graphs.log:
            raise DeviceFault("no graphs today")
        return super().end()


class Breaks(Updates):
    """The driver fails."""

    def end_into(self, graph):
        self.require_graph(graph)
        self.abort()
        raise DeviceFault("no updates today")


class Plain:
    """A capture without ``end_into``."""

    def __init__(self, device, streams):
        inner = Updates(device, streams)
        self.end, self.abort = inner.end, inner.abort


KINDS = {
    "updates": Updates,
    "refuses": Refuses,
    "plain": Plain,
    "breaks": Breaks,
    "refuses and breaks": RefusesAndBreaks,
}


class UpdatingFar(FarDevice):
    """A device whose memory is not host memory, with captures of a kind."""

    def __init__(self, kind):
        ops = [f"{op}:f32" for op in KERNELS]
        super().__init__(host_facts("far", ops, is_host=False), KERNELS)
        self.kind = kind
        self.graphs = Graphs()

    def begin_capture(self, streams):
        return KINDS[self.kind](self, streams)


class UpdatingCpu(CpuDevice):
    """A processor with streams of its own, with captures of a kind."""

    def __init__(self, kind, index=0):
        super().__init__(index, CpuSettings(sync=False, timeout_s=TIMEOUT_S))
        self.kind = kind
        self.graphs = Graphs()

    def begin_capture(self, streams):
        return KINDS[self.kind](self, streams)
