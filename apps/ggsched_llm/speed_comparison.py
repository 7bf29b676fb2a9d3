"""Two measurements of speed beside each other: ratios, and how sure they are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, inf, log, sqrt
from statistics import fmean, variance
from typing import Any, Final

from ggsched.errors import UsageError

_T: Final = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""Quantiles 0.975 of Student's t with 1 to 30 degrees of freedom."""

_NORMAL: Final = 1.96
_MAX_LOGARITHM: Final = 700.0
_MAX_RATE: Final = 1e300


@dataclass(frozen=True, slots=True)
class SpeedRatio:
    """How much faster the second measurement of a test is.

    Attributes:
        test: Name of the test, e.g. ``tg128``.
        ratio: Geometric mean of the second's rates by that of the first's.
        low: Lower end of the ratio's interval of 95 per cent, by Welch's t-test of logarithms; None
            where a side has one repetition.
        high: Upper end.
    """

    test: str
    ratio: float
    low: float | None
    high: float | None

    @property
    def is_sure(self) -> bool:
        """Whether the interval leaves 1 out."""
        return self.low is not None and self.high is not None and not self.low <= 1.0 <= self.high


def compare_rates(test: str, a: Sequence[float], b: Sequence[float]) -> SpeedRatio:
    """Return how much faster ``b`` is, in tokens per second of each repetition."""
    x, y = [log(rate) for rate in a], [log(rate) for rate in b]
    middle = fmean(y) - fmean(x)
    if len(x) < 2 or len(y) < 2:
        return SpeedRatio(test, _ratio(middle), None, None)
    p, q = variance(x) / len(x), variance(y) / len(y)
    if p + q == 0.0:
        return SpeedRatio(test, _ratio(middle), _ratio(middle), _ratio(middle))
    freedom = (p + q) ** 2 / (p * p / (len(x) - 1) + q * q / (len(y) - 1))
    count = int(freedom)
    reach = (_T[max(count, 1) - 1] if count <= len(_T) else _NORMAL) * sqrt(p + q)
    return SpeedRatio(test, _ratio(middle), _ratio(middle - reach), _ratio(middle + reach))


def _ratio(logarithm: float) -> float:
    return exp(logarithm) if logarithm < _MAX_LOGARITHM else inf


def compare(
    a: object, b: object, names: tuple[str, str]
) -> tuple[list[SpeedRatio], dict[str, list[str]]]:
    """Compare what two runs of ``ggsched bench -o json`` wrote, test by test.

    Args:
        a: The first, decoded.
        b: The second.
        names: What to call them in messages.

    Returns:
        The ratios, and by name the tests that only one of them has.

    Raises:
        UsageError: one of them is no such result, or they have no test in common.
    """
    first, second = (_rates(data, name) for data, name in zip((a, b), names, strict=True))
    found = [compare_rates(test, first[test], second[test]) for test in first if test in second]
    if not found:
        raise UsageError(
            f"{names[0]} and {names[1]} have no test in common",
            why=f"{', '.join(first) or 'none'} against {', '.join(second) or 'none'}",
        )
    alone = [[t for t in one if t not in other] for one, other in pairwise((first, second, first))]
    return found, dict(zip(names, alone, strict=True))


def _rates(data: object, name: str) -> dict[str, list[float]]:
    """Return the rates by test; those of a test that was measured twice are together."""
    rows = data if isinstance(data, list) else []
    out: dict[str, list[float]] = {}
    for row in rows:
        rates = _numbers(row) if isinstance(row, Mapping) else []
        if not rates or not isinstance(row.get("test"), str):
            out = {}
            break
        out.setdefault(row["test"], []).extend(rates)
    if not out:
        raise UsageError("not results of ggsched bench -o json", where=name)
    return out


def _numbers(row: Mapping[str, Any]) -> list[float]:
    found = row.get("samples_ts")
    if not isinstance(found, list):
        return []
    good = [float(n) for n in found if isinstance(n, int | float) and 0 < n < _MAX_RATE]
    return good if len(good) == len(found) else []
