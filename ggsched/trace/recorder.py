"""Collects records while they happen: bounded, cheap, from any number of threads."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count, repeat
from time import perf_counter
from typing import Any, Final, assert_never

from ggsched.backend.host_borrow import address_of
from ggsched.backend.timing import Clock
from ggsched.ids import show
from ggsched.plan.bundle import Plan
from ggsched.topology.caps import CopyOrder
from ggsched.trace.host_memory import HOST_SPACE, HostMap
from ggsched.trace.schema import (
    NOBODY,
    Access,
    Actor,
    Alloc,
    Barrier,
    CaptureBegin,
    CaptureEnd,
    Entry,
    Free,
    Record,
    Sync,
    Trace,
    TracedPlan,
    Wait,
    Work,
)
from ggsched.trace.setup import RunSetup
from ggsched.trace.stamps import OpenRun, Stamp, Stamper, closed_runs

DEFAULT_LIMIT: Final = 1_000_000
"""Records that are kept. One is a few bytes where it repeats, and some hundred in a file."""


class Recorder:
    """A trace that grows.

    What is kept is the beginning: once the limit is reached nothing more is added, so that the
    trace can be checked all the same.

    Args:
        limit: How many records to keep at most.
        times: Whether devices report when commands ran. Without, only calls of the host have times,
            and recording costs less.
        replays: Whether runs are captured as if nothing was recorded. A replay is then recorded as
            the commands of its graph, without times. Else all commands are enqueued one by one.

    Attributes:
        replays: Whether devices offer capture, and record replays.
        clock: What times are in.
        log: Called with each call, as text, when it is made; or None.
        setup: How the run was set up, where the caller says so.
        elsewhere: Returns what other machines recorded so far (``ggsched_cluster.recorded``), where
            the devices are theirs.
    """

    def __init__(
        self, limit: int = DEFAULT_LIMIT, *, times: bool = True, replays: bool = False
    ) -> None:
        self.log: Callable[[str], None] | None = None
        self.setup: RunSetup | None = None
        self.elsewhere: Callable[[], Any] | None = None
        self._limit = limit
        self._times = times
        self.replays = replays
        self._lock = threading.Lock()
        self.clock: Clock = perf_counter
        self._origin_s = perf_counter()
        self._is_clock_chosen = False
        self._entries: list[tuple[Entry, Stamp | None]] = []
        self._plans: list[TracedPlan] = []
        self._runs: list[OpenRun] = []
        self._refused: list[Entry] = []
        self._dropped = 0
        self._actors: list[Actor] = []
        self._own = threading.local()
        self._memory = count()
        self._events = count()
        self._host = HostMap(self._declare_host("host memory", 0, 1 << 62))

    @property
    def origin_s(self) -> float:
        """Time of the clock that times of the trace count from."""
        return self._origin_s

    # --- when ----------------------------------------------------------------------------------

    def uses(self, clock: Clock) -> bool:
        """Whether times of a clock can be compared with the others; the first one is taken."""
        if not self._times:
            return False
        if not self._is_clock_chosen:
            self._is_clock_chosen = True
            if clock != self.clock:
                self.clock = clock
                self._origin_s = clock()
        return clock == self.clock

    @contextmanager
    def run_of(self, plan: Plan, describe: Callable[[Plan], TracedPlan]) -> Iterator[None]:
        """Note that what the calling thread records inside is one run of a plan.

        Args:
            describe: Says what is expected of it; called once for each plan.
        """
        number = next((i for i, known in enumerate(self._plans) if known.plan is plan), None)
        if number is None:
            number = len(self._plans)
            self._plans.append(describe(plan))
        run = OpenRun(number, self.thread, len(self._entries), self.clock())
        self._runs.append(run)
        try:
            yield
        finally:
            run.end, run.end_s = len(self._entries), self.clock()

    # --- who acts, on what ---------------------------------------------------------------------

    @property
    def thread(self) -> int:
        """The actor that the calling thread is."""
        known: int | None = getattr(self._own, "actor", None)
        if known is None:
            me = threading.current_thread()
            name = "host" if me is threading.main_thread() else me.name
            known = self._own.actor = self._actor(name, "", "stream")
        return known

    def stream(self, name: str, device: str, copy_order: CopyOrder) -> int:
        """Add a stream; return its actor."""
        return self._actor(name, device, copy_order)

    def event(self) -> int:
        """Return the number of a new event."""
        return next(self._events)

    def memory(self, name: str, nbytes: int, *, is_defined: bool = False) -> int:
        """Note new memory of a device; return its number."""
        number = next(self._memory)
        entry = Alloc(self.thread, number, name, nbytes, is_defined=is_defined)
        self.add(entry, (self.clock(), 0.0, None))
        return number

    def host_memory(self, name: str, view: memoryview) -> int:
        """Note host memory that a device has allocated or imported; return its number."""
        address = address_of(view)
        number = self._declare_host(name, address, view.nbytes)
        self._host.add(address, view.nbytes, number)
        return number

    def host_range(self, view: memoryview) -> tuple[Access, ...]:
        """Return the bytes of host memory that a view shows."""
        return self._host.find(view)

    def host_work(
        self, label: str, reads: Sequence[memoryview] = (), writes: Sequence[memoryview] = ()
    ) -> Work:
        """Return what the calling thread does to host memory, to be added when it is done."""
        read = tuple(a for view in reads for a in self.host_range(view))
        written = tuple(a for view in writes for a in self.host_range(view))
        now_s = round(self.clock() - self._origin_s, 9)
        return Work(self.thread, label, NOBODY, read, written, start_s=now_s, end_s=now_s)

    @contextmanager
    def housekeeping(self) -> Iterator[None]:
        """Take no note of what the calling thread finds to be done in the meantime.

        What was done by chance when it was polled, and would not have been waited for, orders
        nothing.
        """
        self._own.is_housekeeping = True
        try:
            yield
        finally:
            self._own.is_housekeeping = False

    def saw_done(self, *, stream: int | None = None, event: int | None = None) -> None:
        """Note that the calling thread has found something to be done, as good as a sync."""
        if not getattr(self._own, "is_housekeeping", False):
            self.add(Sync(self.thread, stream=stream, event=event))

    # --- what happens --------------------------------------------------------------------------

    def add(self, entry: Entry, stamp: Stamp | None = None) -> None:
        """Add a record, and when it was."""
        if self.log is not None:
            self.log(entries_text([entry], self._actors))
        # Without a lock: appending to a list is atomic, and the list never becomes shorter.
        if len(self._entries) < self._limit:
            self._entries.append((entry, stamp))
        else:
            self._drop(1)

    def add_all(self, entries: Sequence[Entry], stamp: Stamp | None = None) -> None:
        """Add several records, next to each other."""
        if self.log is not None and entries:
            self.log(entries_text(entries, self._actors))
        kept = max(0, self._limit - len(self._entries))
        self._entries.extend(zip(entries[:kept], repeat(stamp), strict=False))
        if kept < len(entries):
            self._drop(len(entries) - kept)

    def add_launch(self, works: Callable[[int], Sequence[Work]], stamp: Stamp) -> None:
        """Add the work of a launch, which depends on the thread."""
        self.add_all(works(self.thread), stamp)

    def take_back(self, entry: Entry) -> None:
        """Leave out a record that was added a moment ago: what it says was refused."""
        with self._lock:
            self._refused.append(entry)

    def _drop(self, count: int) -> None:
        with self._lock:
            self._dropped += count

    def trace(self, name: str) -> Trace:
        """Return what was collected so far."""
        with self._lock:
            refused = {id(entry) for entry in self._refused}
            kept = [i for i, (entry, _) in enumerate(self._entries) if id(entry) not in refused]
            stamper = Stamper(self._origin_s)
            entries = tuple(stamper.stamped(*self._entries[i]) for i in kept)
            return Trace(
                name,
                tuple(self._actors),
                entries,
                "once",
                self._dropped,
                "host" if self.clock is perf_counter else "simulated",
                tuple(self._plans),
                closed_runs(self._runs, kept, self._origin_s),
            )

    def _actor(self, name: str, device: str, copy_order: CopyOrder) -> int:
        with self._lock:
            number = len(self._actors)
            kind: Final = "stream" if device else "host"
            self._actors.append(Actor(number, name, kind, device, copy_order))
            return number

    def _declare_host(self, name: str, address: int, nbytes: int) -> int:
        number = next(self._memory)
        self.add(
            Alloc(
                self.thread,
                number,
                name,
                nbytes,
                HOST_SPACE,
                address,
                is_defined=True,
                is_unsafe=False,
            )
        )
        return number


# --- texts ----------------------------------------------------------------------------------------


def entries_text(entries: Sequence[Entry], actors: Sequence[Actor]) -> str:
    """Return records that were made by one call, e.g. ``cpu:0 q0  launch n3 add (5 nodes)``."""
    first = entries[0]
    return f"{actors[first.actor].name}  {_action(first, len(entries), actors)}"


def _action(entry: Entry, count: int, actors: Sequence[Actor]) -> str:
    match entry:
        case Work():
            return _work(entry, count, actors)
        case Sync():
            return f"has waited for {_awaited(entry, actors)}"
        case Record(event=event):
            return f"record {show('event', event)}"
        case Wait(event=event):
            return f"wait {show('event', event)}"
        case Barrier():
            return "barrier"
        case Alloc():
            return f"allocates {entry.nbytes} B: {entry.name}"
        case Free():
            return f"frees memory {entry.memory}"
        case CaptureBegin():
            return "begins a capture"
        case CaptureEnd():
            return "ends a capture"
        case _:
            assert_never(entry)


def _work(entry: Work, count: int, actors: Sequence[Actor]) -> str:
    if entry.is_copy:
        ends = (entry.reads, entry.writes)
        return f"{entry.label} {max(sum(a.end - a.start for a in end) for end in ends)} B"
    if actors[entry.actor].kind == "host":
        return entry.label
    return f"launch {entry.label}" + (f" ({count} nodes)" if count > 1 else "")


def _awaited(entry: Sync, actors: Sequence[Actor]) -> str:
    if entry.event is not None:
        return show("event", entry.event)
    return "all streams" if entry.stream is None else actors[entry.stream].name
