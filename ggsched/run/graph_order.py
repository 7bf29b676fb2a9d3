"""Which stream keeps the work of each stream in order: itself, or the origin of graphs.

A replay is a command of the graph's first stream, its origin, and is ordered with no other stream
(CAP-1). So a stream whose last commands were in a graph does not keep what follows behind them; the
origin does. One object for all plans that share streams knows the keeper of each, so each command
comes behind all earlier ones of its stream, whichever plans and graphs these were part of.
"""

from collections.abc import Sequence

from ggsched.backend.protocols import Stream


class GraphOrder:
    """The keeper of each stream: a stream that is ordered behind all of its work so far.

    Each method enqueues what is missing before it takes note, so an exception at any point leaves
    the keepers true.
    """

    def __init__(self) -> None:
        self._keepers: dict[int, Stream] = {}
        """By identity of the stream; streams without an entry keep themselves in order."""

    def gather(self, origin: Stream, others: Sequence[Stream]) -> None:
        """Order an origin behind all work of other streams, and let it be their keeper.

        Has to come before each replay. Nothing is enqueued for streams that it keeps already.

        Args:
            origin: The stream that the replay is a command of.
            others: The other streams of the graph.
        """
        keepers = self._keepers
        if id(origin) in keepers:
            self.release((origin,))
        for stream in others:
            if keepers.get(id(stream)) is not origin:
                self.release((stream,))
                _join(stream, (origin,))
                keepers[id(stream)] = origin

    def release(self, streams: Sequence[Stream]) -> None:
        """Order streams behind all of their work: before commands that are no part of a graph.

        Args:
            streams: Those that the commands are enqueued on.
        """
        kept: dict[int, list[Stream]] = {}
        for stream in streams:
            if id(stream) in self._keepers:
                kept.setdefault(id(self._keepers[id(stream)]), []).append(stream)
        for waiting in kept.values():
            _join(self._keepers[id(waiting[0])], waiting)
            for stream in waiting:
                del self._keepers[id(stream)]

    def drained(self) -> None:
        """Take note that all streams were drained, so that each keeps its own order."""
        self._keepers.clear()


def _join(earlier: Stream, later: Sequence[Stream]) -> None:
    """Let streams wait for all that another one was given so far."""
    event = earlier.device.create_event()
    earlier.record(event)
    for stream in later:
        stream.wait(event)
    event.close()  # a stream of its own backend goes on waiting (EVT-5)
