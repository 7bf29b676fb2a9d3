"""Searching for a program that breaks a rule, with Hypothesis, which is in the extra ``test``."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf
from time import monotonic
from typing import Final

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky

from ggsched.errors import SyncTimeout
from ggsched.testing.conformance.context import TestContext
from ggsched.testing.conformance.machine import STEP_NBYTES, Machine

MIN_STEPS: Final = 20
MAX_STEPS: Final = 60
IMPATIENT_S: Final = 0.5
SHARE: Final = 0.8
"""Of the time that a case has: for so long a failing program is made smaller."""


class Enough(BaseException):
    """There is no time for a smaller program. No ``Exception``, which would be made smaller."""


@dataclass(slots=True)
class Search:
    """Plays programs on fresh devices and remembers those that failed.

    Attributes:
        world: The case's; the calls of the latest failure end up there.
        devices: How many devices to open.
        deadline: When there is no time to make a failing program smaller.
        failures: What was raised, with the calls before.
    """

    world: TestContext
    devices: int
    deadline: float = inf
    failures: list[tuple[BaseException, tuple[str, ...]]] = field(default_factory=list)

    def play(self, steps: list[bytes]) -> None:
        """Play one program."""
        if monotonic() > self.deadline:
            raise Enough
        w = self.world
        w.call_trace.count += 1  # the case gets on
        harness = w.harness
        if any(isinstance(error, SyncTimeout) for error, _ in self.failures):
            # What hangs is made smaller without waiting long again and again.
            harness = replace(harness, timeout_s=min(IMPATIENT_S, harness.timeout_s))
        devices = w.harness.open(self.devices, w.seed)
        world = TestContext(devices, harness, "program", w.seed, can_hold=w.can_hold)
        try:
            Machine(world).play(steps)
        except BaseException as error:
            if not self.failures:
                self.deadline = monotonic() + SHARE * w.harness.case_timeout_s
            self.failures.append((error, tuple(world.program)))
            w.program[:] = world.program
            raise
        finally:
            world.finish(failed=True)


def search(w: TestContext, *, devices: int) -> None:
    """Try up to ``w.max_examples`` random programs; that of a failure ends up in ``w``."""
    found = Search(w, devices)
    try:
        _drawn(found.play, w)()
    except Enough:
        if found.failures:
            raise found.failures[-1][0] from None
    except Flaky as error:
        # The smaller ones do not fail each time, so the first one has to do.
        if not found.failures:
            raise
        w.program[:] = found.failures[0][1]
        raise found.failures[0][0] from error


def _drawn(play: Callable[[list[bytes]], None], w: TestContext) -> Callable[[], None]:
    step = st.binary(min_size=STEP_NBYTES, max_size=STEP_NBYTES)
    steps = st.lists(step, min_size=MIN_STEPS, max_size=MAX_STEPS)

    @seed(w.seed)
    @settings(
        max_examples=w.max_examples,
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        verbosity=Verbosity.quiet,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(steps)
    def program(steps: list[bytes]) -> None:
        play(steps)

    return program
