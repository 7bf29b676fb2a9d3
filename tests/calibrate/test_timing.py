"""Timing with a clock made for it."""

import itertools
import re

import pytest

from ggsched_calibrate.timing import Allowance, Disturbed, others_of_this_process, seconds_of


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_the_fastest_round_counts():
    clock = Clock()
    noise = iter([9.0, 0.0, 5.0, 0.0, 3.0, 0.0, 0.0, 0.0])

    def repeat(count):
        clock.now += 0.5 * count + next(noise, 1.0)

    assert seconds_of(repeat, 4.0, clock) == (0.5, "")


def test_short_work_is_repeated_within_the_time():
    clock, counts = Clock(), []

    def repeat(count):
        counts.append(count)
        clock.now += 1e-5 * count

    assert seconds_of(repeat, 0.01, clock).seconds == pytest.approx(1e-5)
    assert max(counts) > 50
    assert clock.now < 0.015


def test_long_work_is_done_three_times_and_no_more():
    clock, counts = Clock(), []

    def repeat(count):
        counts.append(count)
        clock.now += 10.0 * count

    assert seconds_of(repeat, 1.0, clock) == (10.0, "")
    assert counts == [1, 1, 1, 1]


def test_work_that_is_slow_at_first_is_repeated_however_little_time_is_left():
    """Launches of a team of threads that had slept took 3 ms each, and those behind them 30 us."""
    clock, rounds = Clock(), itertools.count()

    def repeat(count):
        clock.now += count * (3e-3 if next(rounds) < 5 else 3e-5)

    assert Allowance(0.0, clock).time(repeat, 300) == pytest.approx(3e-5)


def test_an_allowance_is_shared():
    clock = Clock()
    allowance = Allowance(8.0, clock)
    assert allowance.share(4) == 2.0
    clock.now = 6.0
    assert allowance.share(1) == 2.0
    assert not allowance.is_spent
    clock.now = 9.0
    assert allowance.is_spent
    assert allowance.share(3) == 0.0


@pytest.mark.parametrize("times", [
    [15e-3, 10e-3, 0.012e-3],
    [0.012e-3, 10e-3, 15e-3],
    [15e-3, 10e-3, 0.012e-3] * 3,
    [1e-3 * 1.5**i for i in range(9)],
])  # fmt: skip
def test_times_that_jump_are_not_trusted(times):
    """No three of them agree, however often it is repeated in the bounded time."""
    clock, jumps, made = Clock(), itertools.cycle(times), []

    def repeat(count):
        made.append(count)
        clock.now += next(jumps) * len(made)  # none comes again

    assert re.match(
        r"the fastest .* do not agree: [\d., e-]+ ms", seconds_of(repeat, 0.02, clock).doubt
    )
    assert clock.now < 1.0
    with pytest.raises(Disturbed, match="do not agree"):
        Allowance(0.02, clock, is_strict=True).time(repeat, 1)
    assert Allowance(0.02, clock).time(repeat, 1) > 0


def test_rounds_go_on_until_the_fastest_agree():
    clock = Clock()
    noise = iter([0.0, 1.6, 0.8, 0.4, 0.0, 0.01, 0.01])

    def repeat(count):
        clock.now += count * 0.1 + next(noise, 0.0)

    found = seconds_of(repeat, 1.0, clock)
    assert (found.seconds, found.doubt) == (pytest.approx(0.1), "")


@pytest.mark.parametrize(("busy", "is_trusted"), [(0.0, True), (0.1, True), (0.9, False)])
def test_other_processes_that_compute_disturb(busy, is_trusted):
    """All rounds take as long, but others had the processor meanwhile."""
    clock = Clock()

    def repeat(count):
        clock.now += count * 0.1

    allowance = Allowance(2.0, clock, lambda: busy * clock.now, is_strict=True)
    if is_trusted:
        assert allowance.time(repeat, 1) == pytest.approx(0.1)
        return
    with pytest.raises(Disturbed, match="other processes used 0.9 processors"):
        allowance.time(repeat, 1)


def test_measurements_are_trusted_again_once_others_have_stopped():
    """Each takes less time than processor time is counted in."""
    clock = Clock()

    def repeat(count):
        clock.now += count * 1e-3

    allowance = Allowance(20.0, clock, lambda: min(clock.now, 3.0), is_strict=True)
    trusted = []
    for _ in range(200):
        began = clock.now
        try:
            allowance.time(repeat, 1000)
        except Disturbed:
            trusted.append((began, False))
        else:
            trusted.append((began, True))
    assert not any(is_trusted for at, is_trusted in trusted if 0.5 < at < 3)
    assert all(is_trusted for at, is_trusted in trusted if at > 4)


def test_what_other_processes_use_grows_or_is_unknown():
    others = others_of_this_process()
    if others is not None:
        first = others()
        assert others() >= first - 0.5
