"""What plans say of streams and trades."""

import msgspec
import pytest

from ggsched.plan.bundle import Trade
from ggsched.plan.command import Wait
from ggsched.plan.streams import Gain
from ggsched.plan.text import gain_text, plan_text, stream_rows, trade_rows
from tests.plan.examples import example


@pytest.fixture(scope="module")
def plan():
    return example().plan


@pytest.mark.parametrize(
    ("gain", "text"),
    [
        (Gain(3, 2, 2.1e-3, 1.4e-3, True), "2 streams, predicted 1.4 ms instead of 2.1 ms"),
        (
            Gain(3, 4, 2.1e-3, 2.1e-3, False),
            "sequential, 2.1 ms: 4 streams are predicted to gain nothing",
        ),
        (
            Gain(3, 2, 100e-6, 99e-6, False),
            "sequential, 100 µs: 2 streams are predicted to take 99 µs, "
            "too small a gain for their events",
        ),
    ],
)
def test_gains(gain, text):
    assert gain_text(gain) == text


def test_sections_are_there_only_if_they_say_something(plan):
    text = plan_text(msgspec.structs.replace(plan, trades=()))
    assert "\ntrades\n" not in text
    assert ("\nstreams\n" in text) == bool(plan.streams.gains)


def test_takers_come_first_and_long_lists_end(plan):
    shut = [Gain(0, 2, 1.0, 1.0, False)] * 60
    gains = (*shut, Gain(1, 2, 2.0, 1.0, True))
    many = msgspec.structs.replace(plan, streams=msgspec.structs.replace(plan.streams, gains=gains))
    rows = list(stream_rows(many))
    device = plan.devices[plan.splits.splits[1].device].name
    assert rows[0] == f"{device} s1: 2 streams, predicted 1 s instead of 2 s"
    assert rows[-1] == "... and 21 more splits"
    assert len(list(stream_rows(many, verbose=True))) == 61
    assert f"  {rows[0]}" in plan_text(many).splitlines()


def test_trades(plan):
    wait = next(c for c in plan.commands if isinstance(c, Wait))
    traded = msgspec.structs.replace(plan, trades=(Trade(wait.id, 3250586, 4e-6),))
    (row,) = trade_rows(traded)
    assert row == f"c{wait.id}: this wait saves 3.1 MiB and costs 4 µs"
    assert f"  {row}" in plan_text(traded).splitlines()
