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
from ggsched_testing.conformance.context import TestContext
from ggsched_testing.conformance.machine import (
    ACTIONS,
    MORE_ACTIONS,
    MORE_NBYTES,
    STEP_NBYTES,
    Choices,
    Machine,
    drawn_shape,
)
from ggsched_testing.conformance.programs import ProgramShape

MIN_STEPS: Final = 20
MAX_STEPS: Final = 60
SHAPED_LENGTH: Final = 4
"""How many times as many steps a program of drawn sizes may have."""
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
        is_shaped: Whether the first step says how large memory is and how many streams there are.
        deadline: When there is no time to make a failing program smaller.
        failures: What was raised, with the calls before.
    """

    world: TestContext
    devices: int
    is_shaped: bool = False
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
            if self.is_shaped:
                shape = drawn_shape(Choices(steps[0]))
                Machine(world, shape, MORE_ACTIONS).play(steps[1:])
            else:
                Machine(world, ProgramShape(), ACTIONS).play(steps)
        except BaseException as error:
            if not self.failures:
                self.deadline = monotonic() + SHARE * w.harness.case_timeout_s
            self.failures.append((error, tuple(world.program)))
            w.program[:] = world.program
            raise
        finally:
            world.finish(failed=True)


def search(w: TestContext, devices: int, shaped_examples: int = 0) -> None:
    """Try random programs; that of a failure ends up in ``w``.

    Args:
        w: The case's.
        devices: How many devices to open.
        shaped_examples: How many programs whose sizes and streams are drawn to try, in place of
            ``w.max_examples`` small ones.
    """
    found = Search(w, devices, shaped_examples > 0)
    try:
        _drawn(found.play, w, shaped_examples)()
    except Enough:
        if found.failures:
            raise found.failures[-1][0] from None
    except Flaky as error:
        # The smaller ones do not fail each time, so the first one has to do.
        if not found.failures:
            raise
        w.program[:] = found.failures[0][1]
        raise found.failures[0][0] from error


def _drawn(
    play: Callable[[list[bytes]], None], w: TestContext, shaped_examples: int
) -> Callable[[], None]:
    nbytes = STEP_NBYTES + (MORE_NBYTES if shaped_examples else 0)
    most = (SHAPED_LENGTH if shaped_examples else 1) * MAX_STEPS
    step = st.binary(min_size=nbytes, max_size=nbytes)
    steps = st.lists(step, min_size=MIN_STEPS, max_size=most)

    @seed(w.seed)
    @settings(
        max_examples=shaped_examples or w.max_examples,
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
