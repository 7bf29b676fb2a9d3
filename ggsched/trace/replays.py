"""Captures of recorded devices: a replay is recorded as the commands of its graph.

A graph is a command of its origin alone (CAP-1): its other streams fork from the origin where the
replay begins, are joined to it where it ends, and have nothing to do with what is enqueued on the
live streams. So in a trace they are actors of their own.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from ggsched.backend.capture import Capture, DeviceGraph, offers_update
from ggsched.backend.protocols import Device
from ggsched.errors import UsageError
from ggsched.trace.recorder import Recorder
from ggsched.trace.schema import Access, Entry, Record, Wait, Work
from ggsched.trace.stamps import Stamp

Given = Callable[[int], Sequence[Entry]]
"""Returns the records of a command, by the host thread that enqueues it."""


class CaptureLog:
    """Takes the place of the recorder while streams are captured: nothing of it has happened yet.

    Attributes:
        given: What the streams were given, in order.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.clock = recorder.clock
        self.given: list[Given] = []

    @property
    def thread(self) -> int:
        """As the recorder's."""
        return self._recorder.thread

    def host_range(self, view: memoryview) -> tuple[Access, ...]:
        """As the recorder's."""
        return self._recorder.host_range(view)

    def add(self, entry: Entry, stamp: Stamp | None = None) -> None:
        """Add a record."""
        self.given.append(lambda thread: (entry,))

    def add_launch(self, works: Callable[[int], Sequence[Work]], stamp: Stamp) -> None:
        """Add the work of a launch, whose rows may be others in each replay."""
        self.given.append(works)

    def take_back(self, entry: Entry) -> None:
        """Leave out the record that was added last: what it says was refused."""
        self.given.pop()


class RecordedStream(Protocol):
    """What a capture needs of a stream whose commands are recorded.

    Attributes:
        actor: Its number in the trace.
        lanes: For an origin: by the actor of another stream, the actor of its part of graphs.
    """

    device: Device
    actor: int
    lanes: dict[int, int]

    def collect(self, log: CaptureLog | None) -> None:
        """Give records to a log from now on; with None to the recorder again."""


class TracedCapture:
    """A capture whose commands are noted for the replays.

    Args:
        streams: Those that are captured, the origin first.
        recorder: Theirs.

    Attributes:
        end_into: Updates a graph; only there if the inner capture has it.
    """

    end_into: Callable[[DeviceGraph], str]

    def __init__(
        self, inner: Capture, streams: Sequence["RecordedStream"], recorder: Recorder
    ) -> None:
        self._inner, self._streams = inner, streams
        self._recorder, self._log = recorder, CaptureLog(recorder)
        for stream in streams:
            stream.collect(self._log)
        if offers_update(inner):
            self.end_into = self._end_into

    def end(self) -> "TracedGraph":
        """End, and note what replays do."""
        try:
            graph = self._inner.end()
        finally:
            self._stop()
        return TracedGraph(graph, self._streams, self._log.given, self._recorder)

    def abort(self) -> None:
        """Abort the inner capture."""
        self._stop()
        self._inner.abort()

    def _end_into(self, graph: DeviceGraph) -> str:
        if not isinstance(graph, TracedGraph):
            raise UsageError("the graph was captured on a stream that is not recorded")
        assert offers_update(self._inner)
        why = self._inner.end_into(graph.inner)
        if not why:
            self._stop()
            graph.given = self._log.given
        return why

    def _stop(self) -> None:
        for stream in self._streams:
            stream.collect(None)


class TracedGraph:
    """A graph that knows the records of a replay.

    Attributes:
        given: The commands, in the order in which they were captured.
    """

    def __init__(
        self,
        inner: DeviceGraph,
        streams: Sequence["RecordedStream"],
        given: list[Given],
        recorder: Recorder,
    ) -> None:
        self.inner, self.given, self._recorder = inner, given, recorder
        origin = streams[0]
        self._origin: int = origin.actor
        self._lanes: dict[int, int] = {}
        for stream in streams[1:]:
            facts, number = stream.device.facts, stream.actor
            if number not in origin.lanes:
                name = f"{facts.name} in graphs of {origin.device.facts.name}"
                origin.lanes[number] = recorder.stream(name, facts.name, facts.copy_order)
            self._lanes[number] = origin.lanes[number]

    @property
    def nodes(self) -> int:
        """As the inner graph."""
        return self.inner.nodes

    def entries(self) -> list[Entry]:
        """Return the records of one replay, with events of its own."""
        thread, origin, lanes = self._recorder.thread, self._origin, self._lanes
        events: dict[int, int] = {}
        found: list[Entry] = []

        def order(earlier: int, later: int) -> None:
            event = self._recorder.event()
            found.extend((Record(earlier, event, thread), Wait(later, event, thread)))

        for lane in lanes.values():
            order(origin, lane)
        for records in self.given:
            for entry in records(thread):
                changed: dict[str, int] = {"actor": lanes.get(entry.actor, entry.actor)}
                if isinstance(entry, Record):
                    changed["event"] = events[entry.event] = self._recorder.event()
                elif isinstance(entry, Wait):
                    changed["event"] = events[entry.event]
                if isinstance(entry, Record | Wait | Work):
                    changed["by"] = thread
                found.append(msgspec.structs.replace(entry, **changed))
        for lane in lanes.values():
            order(lane, origin)
        return found

    def close(self) -> None:
        """Close the inner graph."""
        self.inner.close()
