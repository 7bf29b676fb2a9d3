"""How long something takes that a device does again and again, and whether that can be trusted."""

import os
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from ggsched.backend.processors import usable_processors
from ggsched.files.reading import contents

_ROUNDS: Final = 3
_SHARE: Final = 6
"""Rounds that the time is meant to hold, once the number of repetitions has settled."""
_LONG_ENOUGH_S: Final = 5e-4
"""A round need not take longer: a short one is less likely to be disturbed."""
_LEAST_S: Final = 0.02
"""For how long rounds are made, however little time is left: threads that have slept, and
processors that ran slowly meanwhile, take some milliseconds to be as they are in a run."""
_AGREE: Final = 1.15
"""How far apart the fastest rounds may be."""
_PATIENCE: Final = 4
"""How often the time is spent at most, where the fastest rounds do not agree."""
_OTHERS: Final = 0.25
"""Processors that other processes may use meanwhile."""
_WINDOW_S: Final = 0.3
"""For how long that is looked at: processor time is counted in hundredths of a second."""
_STAT_NBYTES: Final = 1 << 20

NOT_TRUSTED: Final = "not trusted"
"""Why a rate that was measured is not kept."""

Clock = Callable[[], float]


class Disturbed(Exception):
    """A measurement that cannot be trusted; the text says why."""


class Timed(NamedTuple):
    """What was measured.

    Attributes:
        seconds: Of a repetition, the least: other work on the machine only ever adds.
        doubt: Why that cannot be trusted, or "".
    """

    seconds: float
    doubt: str


class Allowance:
    """Seconds that measurements may take together, handed out in equal shares.

    Args:
        seconds: To be spent by all measurements, about.
        clock: Gives the time in seconds.
        others: Returns the processor seconds that other processes have used so far of the
            processors of this one; None where nobody knows.
        is_strict: Whether measurements that cannot be trusted are errors.
    """

    def __init__(
        self,
        seconds: float,
        clock: Clock = time.perf_counter,
        others: Clock | None = None,
        *,
        is_strict: bool = False,
    ) -> None:
        self._clock = clock
        self._others = others
        self._is_strict = is_strict
        self._end = clock() + seconds
        now = clock(), others() if others is not None else 0.0
        self._looked = [now, now]

    @property
    def is_spent(self) -> bool:
        """Whether there is nothing left."""
        return self._clock() >= self._end

    def share(self, measurements: int) -> float:
        """Return the seconds for one of the measurements that are still to be made."""
        return max(0.0, self._end - self._clock()) / max(1, measurements)

    def time(self, repeat: Callable[[int], None], measurements: int) -> float:
        """Return the least seconds per repetition, measured in one share.

        Raises:
            Disturbed: it cannot be trusted.
        """
        share = max(self.share(measurements), _LEAST_S)
        seconds, doubt = seconds_of(repeat, share, self._clock)
        doubt = self._busy() or doubt
        if doubt and self._is_strict:
            raise Disturbed(doubt)
        return seconds

    def _busy(self) -> str:
        """Return what other processes used lately if that is much, or nothing."""
        if self._others is None:
            return ""
        now, used = self._clock(), self._others()
        (start, before), (then, _) = self._looked
        if now >= then + _WINDOW_S:
            self._looked = [self._looked[1], (now, used)]
        processors = (used - before) / max(now - start, _WINDOW_S)
        return f"other processes used {processors:.1f} processors" if processors > _OTHERS else ""


def seconds_of(
    repeat: Callable[[int], None],
    seconds: float,
    clock: Clock = time.perf_counter,
) -> Timed:
    """Return the least seconds per repetition, of rounds until the fastest three agree.

    Args:
        repeat: Does something that number of times and waits until all is complete.
        seconds: About how long to go on; three rounds are made in any case.
        clock: Gives the time in seconds.
    """
    repeat(1)  # the first is not like the others: caches are cold, kernels are compiled
    rounds: list[float] = []
    count, start = 1, clock()
    for attempt in range(_PATIENCE):
        while len(rounds) < _ROUNDS or clock() < start + (attempt + 1) * seconds:
            began = clock()
            repeat(count)
            took = clock() - began
            rounds.append(took / count)
            if took < min(seconds / _SHARE / 2, _LONG_ENOUGH_S):
                count *= 2
        fastest = sorted(rounds)[:_ROUNDS]
        if fastest[-1] <= _AGREE * fastest[0]:
            return Timed(fastest[0], "")
    times = ", ".join(f"{1e3 * s:.3g}" for s in fastest)
    return Timed(fastest[0], f"the fastest repetitions do not agree: {times} ms")


def others_of_this_process() -> Clock | None:
    """Return what ``others`` of ``Allowance`` is on this machine, if the system says it.

    Time that a hypervisor took counts as that of others.
    """
    names = {f"cpu{i}" for i in usable_processors()}
    tick = 1 / os.sysconf("SC_CLK_TCK")

    def busy() -> float:
        lines = contents("/proc/stat", _STAT_NBYTES).decode("ascii", "replace").splitlines()
        rows = (line.split() for line in lines)
        counts = [list(map(int, n[:8])) for name, *n in rows if name in names]
        return tick * sum(sum(n) - n[3] - n[4] for n in counts)  # neither idle nor waiting

    try:
        if not busy():
            return None
    except (OSError, ValueError, IndexError):
        return None
    return lambda: busy() - time.process_time()
