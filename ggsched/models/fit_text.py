"""Says in a few lines what ``--fit`` chose and why."""

from collections.abc import Mapping, Sequence

from ggsched.models.fit_candidates import DECODING_STEPS, FitChoice
from ggsched.models.memory_need import MemoryNeed
from ggsched.plan.splits import HOST
from ggsched.plan.units import nbytes_text, seconds_text
from ggsched.topology.model import Topology

Miss = tuple[FitChoice, Mapping[str, int]]
"""A choice, and the bytes that it lacks by device."""


def fit_reasons(
    choice: FitChoice,
    seconds: float,
    need: MemoryNeed,
    misses: Sequence[Miss],
    topology: Topology,
    free: Sequence[int],
    *,
    wanted: int,
) -> tuple[str, ...]:
    """Return what was chosen, what it takes, and what would have been better but lacks memory.

    Args:
        choice: What was chosen.
        seconds: Its estimate.
        need: What it takes.
        misses: What comes before it and does not fit.
        topology: The machine.
        free: Bytes that are free on each device.
        wanted: The context that was wanted.
    """
    takes = ", ".join(
        f"{facts.name} {nbytes_text(need.peak[d].total)} of {nbytes_text(free[d])}"
        for d, facts in enumerate(topology.devices)
        if need.peak[d].total
    )
    lines = [
        f"fit: {choice.text()}, predicted {seconds_text(seconds)} for a micro-batch and "
        f"{DECODING_STEPS} tokens",
        f"it takes {takes}; host {nbytes_text(need.peak[HOST].total)}",
    ]
    if misses:
        other, missing = shortest([m for m in misses if m[0].n_ctx == choice.n_ctx] or misses)
        lacking = " and ".join(f"{nbytes_text(n)} on {name}" for name, n in missing.items())
        better = "faster" if other.n_ctx == choice.n_ctx else "wanted"
        lines.append(f"{better}, but too large: {other.text()} lacks {lacking}")
    elif choice.n_ctx == wanted:
        lines.append("nothing that fits is predicted to be faster")
    return tuple(lines)


def shortest(misses: Sequence[Miss]) -> Miss:
    """Return the one that lacks least."""
    return min(misses, key=lambda miss: sum(miss[1].values()))
