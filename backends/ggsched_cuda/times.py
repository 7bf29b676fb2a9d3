"""When commands ran: timed events of the driver around them, converted to the clock of the host.

Of a timed event only its distance to another one is known. So a GPU has a *base*: an event on a
stream without work, of which the host knows between which two of its own times it was. A distance
comes in milliseconds as a float of 32 bits, which after 16 seconds is good for a microsecond only,
so that another base is taken once a second; it counts on from the one before it.

The clocks of GPU and host drift apart. Each base is an anchor of the line that maps one to the
other. The line goes on where it is, so that what the GPU did stays in order, and the distance of
the clocks is made up for until the next anchor.

An event between two kernels keeps the second from being launched with PDL, and a node that the GPU
had to wait for includes that wait in its time, since the host enqueues what follows an event.
"""

import threading
from bisect import bisect_right
from collections.abc import Sequence
from time import perf_counter
from typing import Any, Final, NamedTuple

from ggsched.backend.queued.times import QueueTimes
from ggsched.backend.timing import Part
from ggsched_cuda import driver
from ggsched_cuda.driver import NOT_READY, READY, CudaError, Handle, Step

EPOCH_S: Final = 1.0
"""A base is good for this long."""

RETRY_S: Final = 0.01
"""After this long it is tried again to take one, where the GPU did not answer at once."""

PATIENCE_S: Final = 1e-4
"""The host looks at an event without work before it for no longer than this."""

GOOD_S: Final = 1.5e-5
"""A base is good enough if the host knows it to such a time."""

SAMPLES: Final = 8
"""Number of events that are tried; if none is good enough the best one becomes a base."""


class Sample(NamedTuple):
    """An event of the GPU between two times of the host."""

    event: Handle
    before_s: float
    after_s: float

    @property
    def width_s(self) -> float:
        """How well the host knows it."""
        return self.after_s - self.before_s


class ClockAnchor(NamedTuple):
    """Where the line from the GPU's clock to that of the host changes its slope.

    Attributes:
        card_s: Seconds of the GPU since its first base.
        host_s: What that is by the clock of the host.
        pull_s: By how much times are to be shifted until the next anchor.
    """

    gpu_s: float
    host_s: float
    pull_s: float

    def host_of(self, gpu_s: float) -> float:
        """Return the time of the host for one of the GPU from here on."""
        since = gpu_s - self.gpu_s
        return self.host_s + since + self.pull_s * min(1.0, since / EPOCH_S)


class Base:
    """An event that others are measured from.

    Args:
        clock: Where the event goes back to when nobody measures from it any more.
        card_s: When it was, in seconds of the GPU since its first base.
    """

    __slots__ = ("_clock", "_event", "_gpu_s")

    def __init__(self, clock: "GpuClock", event: Handle, gpu_s: float) -> None:
        self._clock, self._event, self._gpu_s = clock, event, gpu_s

    def gpu_time_of(self, event: Handle) -> float:
        """Return when an event was that is done, in seconds of the GPU since its first base.

        Raises:
            CudaError: the GPU has failed.
        """
        return self._gpu_s + driver.seconds_between(self._event, event)

    def __del__(self) -> None:
        self._clock.give_event(self._event)


class GpuClock:
    """Returns when events of one GPU were; it does nothing before somebody requests times.

    Args:
        context: The GPU's context, which all its logical devices share.
        idle: A stream that never has work of its own.
    """

    def __init__(self, context: Any, idle: Handle) -> None:
        self.lock = threading.Lock()
        self._context = context
        self._idle = idle
        self._events: list[Handle] = []
        self._base: Base | None = None
        self._anchors: list[ClockAnchor] = []  # one for each second in which times are taken
        self._due_s = 0.0

    def enter(self) -> None:
        """Make the GPU's context current on this thread."""
        driver.enter(self._context)

    def take_event(self) -> Handle:
        """Return a timed event of any state.

        Raises:
            CudaError: the driver makes no more.
        """
        try:
            return self._events.pop()
        except IndexError:
            return driver.make_timed_event()

    def give_event(self, event: Handle) -> None:
        """Take an event back; it need not be done."""
        self._events.append(event)

    def host_of(self, gpu_s: float) -> float:
        """Return the time of the host for one of the GPU, see ``Base.gpu_time_of``.

        Of an event that is done it does not change any more: all anchors before it are known.
        """
        i = bisect_right(self._anchors, gpu_s, key=lambda anchor: anchor.gpu_s)
        return self._anchors[max(0, i - 1)].host_of(gpu_s)

    def base(self) -> Base | None:
        """Return what to measure from for now; None as long as the GPU did not answer.

        It is renewed where it is due, by one thread: the others go on with the one before it.
        """
        if perf_counter() >= self._due_s and self.lock.acquire(blocking=False):
            try:
                self._due_s = perf_counter() + (EPOCH_S if self._renew() else RETRY_S)
            finally:
                self.lock.release()
        return self._base

    def _renew(self) -> bool:
        best = self._best_sample()
        if best is None:
            return False
        gpu_s, host_s, pull_s = 0.0, (best.before_s + best.after_s) / 2, 0.0
        if self._base is not None:
            try:
                gpu_s = self._base.gpu_time_of(best.event)
            except CudaError:
                self.give_event(best.event)
                return False
            host_s = self.host_of(gpu_s)
            known = min(max(host_s, best.before_s), best.after_s)
            pull_s = max(known - host_s, -EPOCH_S / 2)  # time does not go backwards
        self._anchors.append(ClockAnchor(gpu_s, host_s, pull_s))
        self._base = Base(self, best.event, gpu_s)
        return True

    def _best_sample(self) -> Sample | None:
        best: Sample | None = None
        for _ in range(SAMPLES):
            sample = self._sample()
            if sample is None:
                break
            if best is None or sample.width_s < best.width_s:
                best, sample = sample, best
            if sample is not None:
                self.give_event(sample.event)
            if best.width_s <= GOOD_S:
                break
        return best

    def _sample(self) -> Sample | None:
        """Record an event without work before it; None if it is not done at once."""
        try:
            event = self.take_event()
        except CudaError:
            return None
        before = now = perf_counter()
        state = int(driver.record_event(event, self._idle)[0]) or NOT_READY
        while state == NOT_READY and now - before < PATIENCE_S:
            state = int(driver.query_event(event)[0])
            now = perf_counter()
        if state == READY:
            return Sample(event, before, now)
        self.give_event(event)
        return None


class CudaTaken:
    """The times of one command of a stream.

    Args:
        base: What its events are measured from.
    """

    __slots__ = ("_base", "_clock", "_marks", "_parts")

    def __init__(self, clock: GpuClock, base: Base) -> None:
        self._clock = clock
        self._base: Base | None = base
        self._marks: list[tuple[str, Handle]] = []
        self._parts: list[Part] | None = None

    @property
    def is_whole(self) -> bool:
        """Whether it has a beginning and an end."""
        return len(self._marks) > 1

    def mark(self, label: str, event: Handle) -> None:
        """Add an event: the first is where the command begins, the others where a node ends."""
        self._marks.append((label, event))

    def parts(self) -> Sequence[Part] | None:
        """Return when it ran, node by node; nothing of a GPU that failed.

        See ``ggsched.backend.timing``.
        """
        if self._parts is None:
            self._clock.enter()
            with self._clock.lock:  # its events go back once, also if several threads look
                if self._parts is None:
                    self._look()
        return self._parts

    def _look(self) -> None:
        base, last = self._base, self._marks[-1][1]
        if base is None or int(driver.query_event(last)[0]) == NOT_READY:
            return
        try:
            host_of = self._clock.host_of
            times = [host_of(base.gpu_time_of(event)) for _, event in self._marks]
            labels = [label for label, _ in self._marks[1:]]
            self._parts = [Part(*part) for part in zip(labels, times, times[1:], strict=False)]
        except CudaError:
            self._parts = []
        self._give_back()

    def _give_back(self) -> None:
        while self._marks:
            self._clock.give_event(self._marks.pop()[1])
        self._base = None

    def __del__(self) -> None:
        self._give_back()


class CudaTimes(QueueTimes):
    """Takes the times of what a stream is given, but for captures: nothing of these runs.

    Without a base, and where the driver refuses an event, a command has no times.

    Args:
        handle: The driver's stream.
    """

    def __init__(self, clock: GpuClock, handle: Handle) -> None:
        super().__init__()
        self._clock = clock
        self._handle = handle
        self._begun: CudaTaken | None = None
        self._clock.base()

    def begin(self) -> None:
        """Note that a command begins here, whatever became of the one before it."""
        base = self._clock.base()
        self._begun = None if base is None else CudaTaken(self._clock, base)
        self._mark("")

    def end(self) -> CudaTaken | None:
        """Return the times of the command that was begun and is enqueued now."""
        if self._begun is not None and not self._begun.is_whole:
            self._mark("")
        taken, self._begun = self._begun, None
        return taken

    def _mark(self, label: str) -> None:
        """Note that a command, or a node of it, has ended here; or that a command begins."""
        taken = self._begun
        if taken is None:
            return
        try:
            event = self._clock.take_event()
        except CudaError:
            self._begun = None
            return
        taken.mark(label, event)
        if driver.record_event(event, self._handle)[0]:
            self._begun = None

    def around(self, steps: Sequence[Step], labels: Sequence[str]) -> Sequence[Step]:
        """Return a program's steps, as many as there are, to be run now: a mark ends each node."""
        if self._begun is None or not steps:
            return steps
        return [
            (call, arguments) if label == after else (self._ending, (label, call, arguments))
            for (call, arguments), label, after in zip(
                steps, labels, [*labels[1:], None], strict=True
            )
        ]

    def _ending(self, label: str, call: Any, arguments: tuple[Any, ...]) -> Any:
        result = call(*arguments)
        self._mark(label)
        return result
