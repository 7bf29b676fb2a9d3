"""STR-5, STR-6, EVT-2, EVT-5: timeouts of any size, waits that last, events that threads share."""

from collections.abc import Callable
from math import inf, nan
from time import monotonic

from ggsched.backend.protocols import Event, Stream
from ggsched.errors import SyncTimeout, UsageError
from ggsched_testing.conformance.case import case
from ggsched_testing.conformance.context import NBYTES, TestContext
from ggsched_testing.conformance.crew import Crew
from ggsched_testing.conformance.latch import HostEvent

LASTING_S = 0.25
"""For how long a wait is watched; a fraction of what EVT-2 promises, since it is waited for."""

THREADS = 4


def _timeouts(w: TestContext, of: Callable[[Stream], Stream | Event]) -> None:
    """Sync something with drawn timeouts, while its stream is held and after that."""
    q, x = w.stream(), w.buffer()
    for _ in range(w.draws(6, 3)):
        data = w.bytes()
        hold = w.hold(q)
        w.upload(q, data, x)
        seen = w.download(q, x)
        thing = of(q)
        late = [0.0, -inf, -1.0, *(10.0 ** w.rng.uniform(-9, -3, 2))]
        for timeout_s in w.rng.permutation(late) if hold.is_real else ():
            w.refused(SyncTimeout, w.sync, thing, float(timeout_s))
        w.refused(UsageError, w.sync, thing, nan)
        w.require(not (hold.is_real and thing.is_done), "done while its stream is held")
        hold.release()
        if w.rng.random() < 0.5:
            w.until(lambda thing=thing: thing.is_done, "it is not done")  # type: ignore[misc]
        w.sync(thing, float(w.rng.choice([inf, 1e30, 1e6, w.timeout_s])))
        w.equal(seen, data, "downloaded before sync")
        for timeout_s in (0.0, -1.0, inf):
            w.sync(thing, timeout_s)
        w.refused(UsageError, w.sync, thing, nan)


@case("STR-5", "Timeouts of streams may be negative, 0, tiny, huge and infinite; NaN is refused.",
      since=(1, 5))  # fmt: skip
def str5_drawn_timeouts(w: TestContext) -> None:
    _timeouts(w, lambda q: q)


@case("EVT-5", "Timeouts of events may be negative, 0, tiny, huge and infinite; NaN is refused.",
      "events", since=(1, 5))  # fmt: skip
def evt5_drawn_timeouts(w: TestContext) -> None:
    _timeouts(w, w.record)


@case("EVT-2", "A wait lasts for a while before it is given up.", "foreign wait", "async",
      since=(1, 5))  # fmt: skip
def evt2_lasting_wait(w: TestContext) -> None:
    q, x, data, event = w.stream(), w.buffer(), w.bytes(), HostEvent()
    w.log("e = an event of another backend, which is not done")
    w.wait(q, event)
    w.upload(q, data, x)
    end = monotonic() + LASTING_S
    while monotonic() < end:
        w.require(not q.is_done, f"a wait was given up within {LASTING_S:g} s")
        w.pause()
    event.release()
    w.equal(w.get(q, x), data, f"uploaded behind a wait that lasted {LASTING_S:g} s")


@case("STR-6", "Threads may sync and poll one event at a time, while streams wait for it.",
      "events", "two streams", since=(1, 5))  # fmt: skip
def str6_event_of_many_threads(w: TestContext) -> None:
    q, other = w.stream(), w.stream()
    y = w.buffer()
    x, data, hold = w.uploading(q)
    event = w.record(q)

    def polling() -> None:
        w.until(lambda: event.is_done, "an event is not done for one of many threads")
        event.sync(w.timeout_s)

    w.log(f"{THREADS} threads sync {w.name(event)}, half of them poll it before that")
    crew = Crew(w, [polling, lambda: event.sync(w.timeout_s)] * (THREADS // 2))
    w.wait(other, event)
    w.copy(other, x, 0, y, 0, NBYTES)
    w.release_held(hold, event)
    crew.join()
    w.equal(w.get(other, y), data, "copied behind an event that threads sync")
