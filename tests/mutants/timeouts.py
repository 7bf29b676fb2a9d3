"""STR-5, STR-6, EVT-2, EVT-5: timeouts that are numbers like others, waits that end too soon."""

from math import inf, isnan

from ggsched.backend.base import BaseDevice, BaseEvent, BaseStream
from tests.mutants.baselines import CPU
from tests.mutants.mutant import breaks


@breaks("STR-5", "sync takes NaN for a time that is over.", CPU)
class NanIsNoTime(BaseStream):
    """Every comparison with it is false."""

    def sync(self, timeout_s: float) -> None:
        super().sync(0.0 if isnan(timeout_s) else timeout_s)


@breaks("STR-5", "sync counts its timeout in nanoseconds of 64 bits.", CPU)
class TimeoutsOf64Bits(BaseStream):
    """A long one is too long."""

    def sync(self, timeout_s: float) -> None:
        (int(timeout_s * 1e9) if timeout_s == timeout_s else 0).to_bytes(8, "little", signed=True)
        super().sync(timeout_s)


@breaks("STR-6", "One thread at a time can sync an event.", CPU)
class EventOfOneThread(BaseDevice):
    """The second one gets an error."""

    def create_event(self) -> BaseEvent:
        class Shared(BaseEvent):
            __slots__ = ("waiters",)

            def sync(self, timeout_s: float) -> None:
                self.waiters = getattr(self, "waiters", 0) + 1
                try:
                    if self.waiters > 1:
                        raise RuntimeError("somebody else waits for the event")
                    super().sync(timeout_s)
                finally:
                    self.waiters -= 1

        return Shared(self)


@breaks("EVT-2", "A wait is given up after a twentieth of a second.", CPU)
class WaitsAreGivenUpSoon(BaseStream):
    """Nothing takes that long, it thinks."""

    @property
    def event_timeout_s(self) -> float:
        return 0.05


@breaks("EVT-5", "sync of an event with an infinite timeout returns at once.", CPU)
class InfiniteTimeoutOfEventsIsNone(BaseEvent):
    """The end of the wait is not a time of the clock."""

    __slots__ = ()

    def sync(self, timeout_s: float) -> None:
        if abs(timeout_s) != inf:
            super().sync(timeout_s)
