"""Timing with a clock made for it."""

import pytest

from ggsched.calibrate.timing import Allowance, seconds_of


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_the_fastest_round_counts():
    clock = Clock()
    noise = iter([9.0, 0.0, 5.0, 0.0, 3.0, 0.0, 0.0])

    def repeat(count):
        clock.now += 0.5 * count + next(noise, 1.0)

    assert seconds_of(repeat, 4.0, clock) == 0.5


def test_short_work_is_repeated_within_the_time():
    clock, counts = Clock(), []

    def repeat(count):
        counts.append(count)
        clock.now += 1e-3 * count

    assert seconds_of(repeat, 1.0, clock) == pytest.approx(1e-3)
    assert max(counts) > 50
    assert clock.now < 1.5


def test_long_work_is_done_three_times_and_no_more():
    clock, counts = Clock(), []

    def repeat(count):
        counts.append(count)
        clock.now += 10.0 * count

    assert seconds_of(repeat, 1.0, clock) == 10.0
    assert counts == [1, 1, 1, 1]


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
