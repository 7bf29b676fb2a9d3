"""Times, bytes and rates as text for people; `page/format.js` writes the same on the page.

A number with unit has three significant digits and no exponent. Settings, such as a timeout, are
printed as they were set and not by this module.
"""

import math
from typing import Final

_TIMES: Final = ((1e9, "ns"), (1e6, "µs"), (1e3, "ms"), (1.0, "s"))
_SIZES: Final = ("KiB", "MiB", "GiB", "TiB")
_PREFIXES: Final = ("", "k", "M", "G", "T", "P")


def nbytes_text(nbytes: int) -> str:
    """Return a number of bytes with a binary unit, e.g. ``4.0 KiB``."""
    if abs(nbytes) < 1024:
        return f"{nbytes} B"
    # What rounds to 1024.0 has the next unit.
    power = next((n for n in (1, 2, 3) if abs(nbytes) / 1024**n < 1023.95), 4)
    return f"{nbytes / 1024**power:.1f} {_SIZES[power - 1]}"


def seconds_text(seconds: float, *, signed: bool = False) -> str:
    """Return a time with a unit, e.g. ``1.25 ms``; a positive one with ``+`` if ``signed``."""
    sign = "-" if seconds < 0 else "+" if signed else ""
    factor, unit = next((t for t in _TIMES if 0 < abs(seconds) * t[0] < 999.5), _TIMES[-1])
    return f"{sign}{_digits(abs(seconds) * factor)} {unit}"


def rate_text(per_second: float, unit: str = "B") -> str:
    """Return a rate, e.g. ``24.3 GB/s``.

    Bytes and operations (``FLOP``) have a decimal prefix, what is counted has none:
    ``1240 tokens/s``.
    """
    power, prefixes = 0, _PREFIXES if unit in ("B", "FLOP") else ("",)
    while per_second / 1000**power >= 999.5 and power + 1 < len(prefixes):
        power += 1
    return f"{_digits(per_second / 1000**power)} {prefixes[power]}{unit}/s"


def _digits(number: float) -> str:
    """Return a number that is not negative with three significant digits, or whole from 1000."""
    if number >= 999.5:
        return f"{number:.0f}"
    text = f"{number:.3g}"
    if "e" not in text:
        return text
    return f"{number:.{2 - math.floor(math.log10(number))}f}".rstrip("0").rstrip(".")
