"""What a plan says of its streams and of its trades, for people."""

from collections.abc import Iterator
from typing import Final

from ggsched.ids import show
from ggsched.plan.bundle import Plan
from ggsched.plan.command import Barrier, HostSync
from ggsched.plan.streams import Gain
from ggsched.units import nbytes_text, seconds_text

_MAX_ROWS: Final = 40


def stream_rows(plan: Plan, *, verbose: bool = False) -> Iterator[str]:
    """Yield a row for each split for which several streams were considered, takers first.

    Args:
        plan: The plan.
        verbose: All rows; else the first forty.
    """
    gains = sorted(plan.streams.gains, key=lambda gain: (not gain.is_taken, gain.split))
    shown = gains if verbose else gains[:_MAX_ROWS]
    for gain in shown:
        device = plan.devices[plan.splits.splits[gain.split].device].name
        yield f"{device} {show('split', gain.split)}: {gain_text(gain)}"
    if len(shown) < len(gains):
        yield f"... and {len(gains) - len(shown)} more splits"


def gain_text(gain: Gain) -> str:
    """Return what several streams are predicted to gain, or why there is one."""
    alone, beside = seconds_text(gain.sequential_s), seconds_text(gain.concurrent_s)
    if gain.is_taken:
        return f"{gain.streams} streams, predicted {beside} instead of {alone}"
    if gain.concurrent_s >= gain.sequential_s:
        return f"sequential, {alone}: {gain.streams} streams are predicted to gain nothing"
    took = f"{gain.streams} streams are predicted to take {beside}"
    return f"sequential, {alone}: {took}, too small a gain for their events"


def trade_rows(plan: Plan) -> Iterator[str]:
    """Yield a row for each wait that exists to save memory."""
    for trade in plan.trades:
        command = plan.commands[trade.command]
        kind = {Barrier: "barrier", HostSync: "host sync"}.get(type(command), "wait")
        yield (
            f"{show('command', trade.command)}: this {kind} saves "
            f"{nbytes_text(trade.saved_nbytes)} and costs {seconds_text(trade.cost_s)}"
        )
