"""What would help most, from rules with numbers behind them.

Each rule gives the seconds that its change could save at most, on the device that is busy longest:
nothing that another device waits for can end the window sooner. The largest three are told.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from ggsched.trace.utilization import Account, DeviceAccount, ideal_bubble

MOST: Final = 3
LEAST_SHARE: Final = 0.01
"""Share of the window below which a change is not worth telling."""


class Advice(msgspec.Struct, frozen=True):
    """A change that would help.

    Attributes:
        rule: Name of the rule.
        what: What to do.
        why: The numbers behind it.
        saves_s: Seconds of the window that it could save at most.
    """

    rule: str
    what: str
    why: str
    saves_s: float


def advise(account: Account, *, most: int = MOST) -> tuple[Advice, ...]:
    """Return the changes that would help most, largest first."""
    if not account.devices or not account.window_s > 0:
        return ()
    found = [
        advice
        for rule in (_copies, _balance, _batches, _fallbacks, _host, _between)
        for advice in rule(account)
        if advice.saves_s >= LEAST_SHARE * account.window_s
    ]
    return tuple(sorted(found, key=lambda a: (-a.saves_s, a.rule))[:most])


def _busiest(account: Account) -> DeviceAccount:
    return max(account.devices, key=lambda d: d.busy_s)


def _copies(account: Account) -> Iterator[Advice]:
    device = _busiest(account)
    paths = [p for p in account.paths if device.device in p.path.split("->")]
    if not paths:
        return
    path = max(paths, key=lambda p: p.seconds)
    if path.nbytes < 4096 * path.copies:
        what = "have fewer, larger copies: fewer splits, or more tokens at once (-ub)"
    else:
        what = f"keep what moves along {path.path} in one place (-ot, -ngl), or copy it earlier"
    why = (
        f"{device.device} waits {_ms(device.copy_s)} for copies; {path.path} takes the longest: "
        f"{path.copies} copies, {_ms(path.seconds)}, {path.nbytes} bytes"
    )
    yield Advice("copies", what, why, device.copy_s)


def _balance(account: Account) -> Iterator[Advice]:
    """Equal stages: each pipeline runs at the pace of its slowest (GPipe)."""
    stages = [d for d in account.devices if d.busy_s > 0]
    if len(stages) < 2 or account.micro_batches < 2:
        return
    slowest = _busiest(account)
    mean = sum(d.busy_s for d in stages) / len(stages)
    shares = ",".join(f"{mean / d.busy_s:.2g}" for d in stages)
    why = (
        f"{slowest.device} is busy {_ms(slowest.busy_s)}, the mean of {len(stages)} devices is "
        f"{_ms(mean)}"
    )
    what = f"move layers away from {slowest.device}: multiply the shares of -ts by {shares}"
    yield Advice("balance", what, why, slowest.busy_s - mean)


def _batches(account: Account) -> Iterator[Advice]:
    """More micro-batches: the fill and the drain of a pipeline are paid once."""
    stages = account.stages
    if stages < 2 or account.micro_batches < 2:
        return
    now, then = _ideal(account, 1), _ideal(account, 2)
    if account.bubble > 2 * now + 0.05:
        return  # the devices do not overlap, so more batches would not either
    why = (
        f"{stages} devices and {account.micro_batches} micro-batches leave {now:.0%} idle at "
        f"best, twice as many {then:.0%}"
    )
    what = "cut the work into more micro-batches (smaller -ub)"
    yield Advice("batches", what, why, (now - then) * account.window_s)


def _ideal(account: Account, times: int) -> float:
    return ideal_bubble(account.stages, times * account.micro_batches)


def _fallbacks(account: Account) -> Iterator[Advice]:
    device = max(account.devices, key=lambda d: d.through_host_s)
    if len(account.devices) < 2 or account.micro_batches < 2:
        return
    why = (
        f"{device.device} waits {_ms(device.through_host_s)} for what the host waits for as well, "
        f"in {account.host_syncs} host syncs"
    )
    what = (
        "let devices wait for each other by events, and runs that do not need each other's "
        "outputs overlap"
    )
    yield Advice("host-syncs", what, why, device.through_host_s)


def _host(account: Account) -> Iterator[Advice]:
    device = _busiest(account)
    seconds = device.host_s - device.between_s
    each = seconds / max(1, account.commands)
    why = (
        f"{device.device} waits {_ms(seconds)} for the host within runs, {1e6 * each:.1f} us for "
        f"each of {account.commands} commands"
    )
    what = "give the host less to enqueue: fewer splits (-ngl, -ot), or more tokens at once (-ub)"
    yield Advice("host", what, why, seconds)


def _between(account: Account) -> Iterator[Advice]:
    device = _busiest(account)
    what = (
        "do less between runs, or look at later runs only (--runs): a plan is made and its memory "
        "allocated when a shape is met for the first time"
    )
    why = f"{device.device} waits {_ms(device.between_s)} between {account.runs} runs"
    yield Advice("between", what, why, device.between_s)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"
