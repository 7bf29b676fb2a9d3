"""CAP-4: updates that keep the old, reach back, or refuse and do harm."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from ggsched.backend.base import BaseDevice
from ggsched.backend.capture import DeviceGraph
from ggsched.backend.list_capture import RecordedCapture, RecordedGraph
from ggsched.backend.program_body import Body
from ggsched.backend.protocols import Stream
from ggsched.backend.timing import HostTaken
from ggsched.errors import UsageError
from tests.mutants.baselines import CPU
from tests.mutants.mutant import breaks, graft

EndInto = Callable[[DeviceGraph], str]


def _changed(
    capture: RecordedCapture, change: Callable[[EndInto, DeviceGraph], str]
) -> RecordedCapture:
    """Return a capture whose ``end_into`` is changed."""
    own = capture.end_into
    capture.end_into = lambda graph: change(own, graph)  # type: ignore[method-assign]
    return capture


def _refusing(
    capture: RecordedCapture, harm: Callable[[RecordedCapture, Any], None]
) -> RecordedCapture:
    """Return a capture that refuses each update, and does harm."""

    def refuse(update: EndInto, graph: Any) -> str:
        capture.require_graph(graph)
        harm(capture, graph)
        return "no update today"

    return _changed(capture, refuse)


@breaks("CAP-4", "An update keeps the old commands, and says that it was made.", CPU)
class UpdateKeepsTheOld(BaseDevice):
    """The addresses are those of the first capture."""

    def begin_capture(self, streams: Sequence[Stream]) -> RecordedCapture:
        def keep(update: EndInto, graph: Any) -> str:
            calls = getattr(graph, "_calls", None)
            why = update(graph)
            graph._calls = calls
            return why

        return _changed(super().begin_capture(streams), keep)


@breaks("CAP-4", "An updated graph runs the old commands, too.", CPU)
class UpdateAddsToTheOld(BaseDevice):
    """Nothing is taken out."""

    def begin_capture(self, streams: Sequence[Stream]) -> RecordedCapture:
        def add(update: EndInto, graph: Any) -> str:
            calls = graph._calls if isinstance(graph, RecordedGraph) else ()
            why = update(graph)
            graph._calls = (*(calls or ()), *graph._calls)
            return why

        return _changed(super().begin_capture(streams), add)


@breaks("CAP-4", "Replays that are enqueued run what their graph is updated to.", CPU)
class UpdateReachesBack(BaseDevice):
    """A replay looks into its graph when it runs."""

    def begin_capture(self, streams: Sequence[Stream]) -> RecordedCapture:
        capture = super().begin_capture(streams)
        end = capture.end
        capture.end = lambda: graft(end(), _LateGraph)  # type: ignore[method-assign]
        return capture


class _LateGraph(RecordedGraph):
    def body(self) -> Body:
        return _LateBody(self, super().body())


class _LateBody:
    """What a graph is when it runs, or when it was closed."""

    def __init__(self, graph: RecordedGraph, body: Body) -> None:
        self._graph = graph
        self._body = body

    def run(self) -> None:
        with suppress(UsageError):
            self._body = RecordedGraph.body(self._graph)
        self._body.run()

    def run_timed(self, taken: HostTaken) -> None:
        taken.run(self.run)

    def failed_node(self, error: BaseException) -> str:
        return self._body.failed_node(error)


@breaks("CAP-4", "An update that is refused empties the graph.", CPU)
class RefusalEmptiesTheGraph(BaseDevice):
    """It releases the old commands before it looks at the new ones."""

    def begin_capture(self, streams: Sequence[Stream]) -> RecordedCapture:
        def harm(capture: RecordedCapture, graph: Any) -> None:
            capture.stop()
            graph._calls = ()

        return _refusing(super().begin_capture(streams), harm)


@breaks("CAP-4", "What was captured is lost when an update is refused.", CPU)
class RefusalLosesTheCapture(BaseDevice):
    """A new graph has nothing in it."""

    def begin_capture(self, streams: Sequence[Stream]) -> RecordedCapture:
        def harm(capture: RecordedCapture, graph: Any) -> None:
            capture.stop()
            capture._calls.clear()

        return _refusing(super().begin_capture(streams), harm)


@breaks("CAP-4", "Streams are captured on when an update is refused.", CPU)
class RefusalGoesOn(BaseDevice):
    """Only ``end`` and ``abort`` stop a capture."""

    def begin_capture(self, streams: Sequence[Stream]) -> RecordedCapture:
        return _refusing(super().begin_capture(streams), lambda capture, graph: None)


@breaks("CAP-4", "A graph of another stream is updated.", CPU)
class AnyGraphIsUpdated(BaseDevice):
    """Whose it is is not looked at."""

    def begin_capture(self, streams: Sequence[Stream]) -> RecordedCapture:
        def take(update: EndInto, graph: Any) -> str:
            graph.stream = streams[0]
            return update(graph)

        return _changed(super().begin_capture(streams), take)
