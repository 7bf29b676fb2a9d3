"""Known: what is known to be complete, while items and synchronisation are written down."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

from ggsched.passes.order.clocks import Clocks
from ggsched.passes.order.hazards import Dependency, Lanes

SyncKind = Literal["wait", "barrier", "host_event", "host_stream"]


class Enqueued(Protocol):
    """What has a stream: an item of the outline, or the work of one."""

    @property
    def stream(self) -> int:
        """Stream that runs it, or ``NO_STREAM``."""


class Sync(NamedTuple):
    """One synchronisation that must stand before an item.

    Attributes:
        means: An event wait, a barrier on the stream, or the host waiting for the event or for
            the whole stream.
        stream: Stream that waits; for the host's waits the stream waited for.
        earlier: Item that must be complete, after which an event is recorded.
        dependency: The hazard.
        next_run: Whether the later item belongs to the next run.
        later: The later item.
    """

    means: SyncKind
    stream: int
    earlier: int
    dependency: Dependency
    later: int
    next_run: bool = False


class HappensBefore:
    """What the next item of each lane comes after.

    Attributes:
        clocks: Vector clocks of the lanes.
        items: The items of each lane so far.
    """

    def __init__(self, outline: Sequence[Enqueued], lanes: Lanes) -> None:
        self.stream_of = [item.stream for item in outline]
        self.lanes = lanes
        self.clocks = Clocks(lanes.count, lanes.host)
        self.items: list[list[int]] = [[] for _ in range(lanes.count)]

    def copy(self) -> "HappensBefore":
        """Return what goes on by itself from here."""
        other = HappensBefore((), self.lanes)
        other.stream_of = self.stream_of
        other.clocks = self.clocks.copy()
        other.items = [list(items) for items in self.items]
        return other

    def enqueue(self, item: int, number: int) -> None:
        """Put an item on its lane under a number, which is another one in the next run."""
        lane = self.lanes.of_item[item]
        self.clocks.enqueue(lane, number)
        self.items[lane].append(number)

    def covers(self, item: int, d: Dependency) -> bool:
        """Whether ``item``, if it is enqueued now, comes after the earlier item anyway."""
        of_item = self.lanes.of_item
        return self.clocks.knows(of_item[item], of_item[d[4]], d[4])

    def note(self, s: Sync, first: int = 0) -> None:
        """Note what a synchronisation implies in a run whose items count from ``first``."""
        clocks, of_stream = self.clocks, self.lanes.of_stream
        seen: Sequence[int]
        lanes: Sequence[int]
        match s.means:
            case "wait":
                seen, lanes = self._event_clock(s.earlier, first), of_stream[s.stream]
            case "barrier":
                seen, lanes = clocks.of_lanes(of_stream[s.stream]), of_stream[s.stream]
            case "host_stream":
                seen, lanes = clocks.of_lanes(of_stream[s.stream]), (self.lanes.host,)
            case "host_event":
                seen, lanes = self._event_clock(s.earlier, first), (self.lanes.host,)
        for lane in lanes:
            clocks.join(lane, seen)

    def _event_clock(self, earlier: int, first: int) -> Sequence[int]:
        """Return what an event right after ``earlier`` covers: all lanes of its stream (EVT-1)."""
        number = first + earlier
        joined: Sequence[int] = self.clocks.after(number)
        lanes = self.lanes.of_stream[self.stream_of[earlier]]
        for lane in lanes if len(lanes) > 1 else ():
            if lane == self.lanes.of_item[earlier]:
                continue
            k = bisect_left(self.items[lane], number)
            if k:
                after = self.clocks.after(self.items[lane][k - 1])
                joined = list(map(max, joined, after))
        return joined
