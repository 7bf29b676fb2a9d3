"""Happens-before: what must be complete before what may begin, and nothing more.

The actors are the host and the streams. A device that keeps copies and launches of a stream in
order is one lane per stream; any other device has two, the launches and the copies, each in order
by itself (STR-1). What is enqueued happens after everything that the host knew at that time.
"""

from ggsched.plan.bundle import Plan
from ggsched.sanitize.clock import Clock, join, new_clock

HOST_LANE = 0

HOST_WRITES = -1
HOST_READS = -2
"""What the log of the host's lane calls its accesses to inputs and outputs."""


class EventOrder:
    """Clocks of all lanes while the host enqueues a plan, run after run.

    Attributes:
        clocks: Clock of each lane; the host's is the first.
        log: For each lane the pieces of work in order, as (command, run). Number n of the lane
            in a clock stands for the first n of these.
    """

    def __init__(self, plan: Plan) -> None:
        self._lanes: list[tuple[int, int]] = []
        count = HOST_LANE + 1
        for stream in plan.streams.streams:
            one = plan.devices[stream.device].copy_order == "stream"
            self._lanes.append((count, count) if one else (count, count + 1))
            count = self._lanes[-1][1] + 1
        self._has_barrier = [
            plan.devices[s.device].copy_order == "barrier" for s in plan.streams.streams
        ]
        self.clocks = [new_clock(count) for _ in range(count)]
        self.log: list[list[tuple[int, int]]] = [[] for _ in range(count)]
        self._events: dict[int, Clock] = {}
        self._host_news = 0  # how often the host has learned something
        self._heard = [0] * count

    @property
    def host_knows_all(self) -> bool:
        """Whether the host knows all work so far to be done, and so does what it enqueues next."""
        known = self.clocks[HOST_LANE]
        return all(clock[lane] <= known[lane] for lane, clock in enumerate(self.clocks))

    def begin_run(self) -> None:
        """Forget events: those of the next run are others, with the same ids."""
        self._events = {}

    def lane(self, stream: int, is_copy: bool) -> int:
        """Return the lane of a stream that runs copies, or launches."""
        return self._lanes[stream][is_copy]

    def work(self, lane: int, command: int, run: int) -> Clock:
        """Enqueue a piece of work; return the clock that it begins with, itself included."""
        if self._heard[lane] != self._host_news:
            self._hear(lane)
        clock = self.clocks[lane]
        clock[lane] += 1
        self.log[lane].append((command, run))
        return clock

    def host_work(self, command: int, run: int) -> Clock:
        """Let the host itself do something; return its clock, this included."""
        clock = self.clocks[HOST_LANE]
        clock[HOST_LANE] += 1
        self.log[HOST_LANE].append((command, run))
        self._host_news += 1
        return clock

    def record(self, stream: int, event: int) -> None:
        """Let an event stand for all that the stream has so far, on both lanes (EVT-1)."""
        if event not in self._events:
            self._events[event] = self._all_of(stream)

    def wait(self, stream: int, event: int) -> None:
        """Hold both lanes of a stream until the event's work is done (EVT-2)."""
        known = self._events.get(event)
        if known is not None:
            first, second = self._lanes[stream]
            join(self.clocks[first], known)
            if second != first:
                join(self.clocks[second], known)

    def barrier(self, stream: int) -> None:
        """Join the two lanes of a stream, where the device has barriers."""
        if self._has_barrier[stream]:
            known = self._all_of(stream)
            for lane in self._lanes[stream]:
                join(self.clocks[lane], known)

    def host_sync(self, stream: int, event: int | None) -> None:
        """Let the host wait for an event, or for the whole stream (STR-5)."""
        known = self._all_of(stream) if event is None else self._events.get(event)
        if known is not None:
            join(self.clocks[HOST_LANE], known)
            self._host_news += 1

    def _all_of(self, stream: int) -> Clock:
        first, second = self._lanes[stream]
        self._hear(first)
        known = list(self.clocks[first])
        if second != first:
            self._hear(second)
            join(known, self.clocks[second])
        return known

    def _hear(self, lane: int) -> None:
        if self._heard[lane] != self._host_news:
            join(self.clocks[lane], self.clocks[HOST_LANE])
            self._heard[lane] = self._host_news
