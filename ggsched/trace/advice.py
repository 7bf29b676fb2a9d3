"""What would help most, from rules with numbers behind them.

Each rule gives the seconds that its change could save at most, on the device that is busy longest:
nothing that another device waits for can end the window sooner. The largest three are reported.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from ggsched.trace.setup import RunSetup
from ggsched.trace.utilization import Account, DeviceAccount, ideal_bubble
from ggsched.units import nbytes_text, seconds_text

MAX_ADVICE: Final = 3
MIN_SHARE: Final = 0.01
"""Share of the window below which a change is not reported."""


class Advice(msgspec.Struct, frozen=True):
    """A change that would help.

    Attributes:
        rule: Name of the rule.
        what: What to do.
        why: The numbers behind it.
        saves_s: Seconds of the window that it could save at most.
        options: What to add to the command, where that is known; it is accepted.
    """

    rule: str
    what: str
    why: str
    saves_s: float
    options: str = ""


def advise(
    account: Account, setup: RunSetup | None = None, *, most: int = MAX_ADVICE
) -> tuple[Advice, ...]:
    """Return the changes that would help most, largest first.

    Args:
        account: Where the time went.
        setup: How the run was set up; without it no options are named.
        most: How many to return.
    """
    if not account.devices or not account.window_s > 0:
        return ()
    found = [
        advice
        for rule in (_copies, _balance, _batches, _fallbacks, _host, _between)
        for advice in rule(account, setup)
        if advice.saves_s >= MIN_SHARE * account.window_s
    ]
    return tuple(sorted(found, key=lambda a: (-a.saves_s, a.rule))[:most])


def _busiest(account: Account) -> DeviceAccount:
    return max(account.devices, key=lambda d: d.busy_s)


def _copies(account: Account, setup: RunSetup | None) -> Iterator[Advice]:
    device = _busiest(account)
    paths = [p for p in account.paths if device.device in p.path.split("->")]
    if not paths:
        return
    path = max(paths, key=lambda p: p.seconds)
    if path.nbytes < 4096 * path.copies:
        what, options = (
            "have fewer, larger copies: more tokens at once, or fewer splits",
            _larger(setup),
        )
    else:
        what = f"keep what moves along {path.path} in one place, or copy it earlier"
        options = ""
    why = (
        f"{device.device} waits {seconds_text(device.copy_s)} for copies; "
        f"{path.path} takes the longest: {path.copies} copies, "
        f"{seconds_text(path.seconds)}, {nbytes_text(path.nbytes)}"
    )
    yield Advice("copies", what, why, device.copy_s, options)


def _larger(setup: RunSetup | None) -> str:
    """Return the options for micro-batches twice as large, where the prompt fills them."""
    if setup is None or setup.n_prompt <= setup.n_ubatch:
        return ""
    n_ubatch = 2 * setup.n_ubatch
    return f"-ub {n_ubatch}" + (f" -b {n_ubatch}" if n_ubatch > setup.n_batch else "")


def _balance(account: Account, setup: RunSetup | None) -> Iterator[Advice]:
    """Equal stages: each pipeline runs at the pace of its slowest (GPipe)."""
    stages = [d for d in account.devices if d.busy_s > 0]
    if len(stages) < 2 or account.micro_batches < 2:
        return
    slowest = _busiest(account)
    mean = sum(d.busy_s for d in stages) / len(stages)
    why = (
        f"{slowest.device} is busy {seconds_text(slowest.busy_s)}, "
        f"the mean of {len(stages)} devices is {seconds_text(mean)}"
    )
    options = ""
    if setup is not None:
        options = _equal_stages(account, setup)
        if not options:
            return  # layers cannot be moved
    what = f"move layers away from {slowest.device}"
    yield Advice("balance", what, why, slowest.busy_s - mean, options)


def _equal_stages(account: Account, setup: RunSetup) -> str:
    """Return the option that gives each device layers by its pace; empty if that is no other."""
    stages = [s for s in (setup.host, *setup.stages) if s is not None and s.layers]
    busy = {d.device: d.busy_s for d in account.devices if d.busy_s > 0}
    if not setup.is_by_layers or len(stages) < 2 or set(busy) != {s.device for s in stages}:
        return ""
    pace = [s.layers / busy[s.device] for s in stages]
    total = sum(s.layers for s in stages)
    counts = _rounded([total * p / sum(pace) for p in pace], total)
    is_new = any(n != s.layers for n, s in zip(counts, stages, strict=True))
    if not is_new or any(n - s.layers > s.room for n, s in zip(counts, stages, strict=True)):
        return ""
    layers = {s.device: n for s, n in zip(stages, counts, strict=True)}
    accelerators = [layers.get(s.device, 0) for s in setup.stages]
    split = f"-ts {','.join(map(str, accelerators))}" if len(setup.stages) > 1 else ""
    offloaded = f"-ngl {sum(accelerators)}" if setup.host is not None else ""
    return f"{offloaded} {split}".strip()


def _rounded(parts: Sequence[float], total: int) -> list[int]:
    """Return whole numbers near the parts, at least 1 each, that add up to the total."""
    counts = [max(1, int(part)) for part in parts]
    while sum(counts) != total:
        step = 1 if sum(counts) < total else -1
        gaps = [
            step * (part - n) - (n + step < 1) * total
            for part, n in zip(parts, counts, strict=True)
        ]
        counts[gaps.index(max(gaps))] += step
    return counts


def _batches(account: Account, setup: RunSetup | None) -> Iterator[Advice]:
    """More micro-batches: the fill and the drain of a pipeline are paid once."""
    size = None if setup is None else min(setup.n_ubatch, setup.n_prompt)
    if size == 1:
        return
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
    what = "cut the work into more micro-batches"
    options = "" if size is None else f"-ub {size // 2}"
    yield Advice("batches", what, why, (now - then) * account.window_s, options)


def _ideal(account: Account, times: int) -> float:
    return ideal_bubble(account.stages, [times * m for m in account.batches])


def _fallbacks(account: Account, _: RunSetup | None) -> Iterator[Advice]:
    device = max(account.devices, key=lambda d: d.through_host_s)
    if len(account.devices) < 2 or sum(account.batches) < 2:
        return
    why = (
        f"{device.device} waits {seconds_text(device.through_host_s)} "
        f"for what the host waits for as well, in {account.host_syncs} host syncs"
    )
    what = (
        "let devices wait for each other by events, and runs that do not need each other's "
        "outputs overlap"
    )
    yield Advice("host-syncs", what, why, device.through_host_s)


def _host(account: Account, setup: RunSetup | None) -> Iterator[Advice]:
    device = _busiest(account)
    seconds = device.host_s - device.between_s
    each = seconds / max(1, account.commands)
    why = (
        f"{device.device} waits {seconds_text(seconds)} for the host within runs, "
        f"{seconds_text(each)} for each of {account.commands} commands"
    )
    what = "give the host less to enqueue: more tokens at once, or fewer splits"
    yield Advice("host", what, why, seconds, _larger(setup))


def _between(account: Account, _: RunSetup | None) -> Iterator[Advice]:
    device = _busiest(account)
    what = (
        "do less between runs, or look at later runs only: a plan is made and its memory allocated "
        "when a shape is met for the first time"
    )
    why = f"{device.device} waits {seconds_text(device.between_s)} between {account.runs} runs"
    yield Advice("between", what, why, device.between_s)
