"""The table that ``make bench`` prints, and its JSON form."""

import argparse
import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date

import numpy as np


@dataclass(frozen=True, slots=True)
class Row:
    """One figure.

    Attributes:
        suite: Name of the suite, as on the command line.
        what: What was measured, against what.
        value: The ratio, or a figure in ``unit``.
        low: Smallest of the rounds.
        high: Largest of the rounds.
        unit: ``x`` for ratios.
        bound: The target, e.g. ``"<= 20"``, or "".
    """

    suite: str
    what: str
    value: float
    low: float
    high: float
    unit: str = "x"
    bound: str = ""

    @property
    def verdict(self) -> str:
        """``ok`` or ``MISSED`` where there is a target."""
        if not self.bound:
            return ""
        relation, _, target = self.bound.partition(" ")
        is_met = self.value <= float(target) if relation == "<=" else self.value >= float(target)
        return "ok" if is_met else "MISSED"


def chosen(
    prog: str, about: str | None, suites: Sequence[str], arguments: list[str] | None = None
) -> tuple[list[str], str, str | None]:
    """Read the command line: return the suites to run, the command, and the file for JSON."""
    parser = argparse.ArgumentParser(prog=prog, description=about)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"of {', '.join(suites)}")
    parser.add_argument("--json", metavar="FILE", help="write the figures to a file as well")
    options = parser.parse_args(arguments)
    wanted = options.suites or list(suites)
    unknown = [name for name in wanted if name not in suites]
    if unknown:
        parser.error(f"no suite {unknown[0]!r}; there are {', '.join(suites)}")
    return wanted, " ".join([prog, *wanted]), options.json


def machine() -> dict[str, str]:
    """Return what figures depend on."""
    return {
        "date": date.today().isoformat(),
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "blas_threads": os.environ.get("OPENBLAS_NUM_THREADS", "not pinned"),
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def render(rows: list[Row]) -> str:
    """Return the rows as a table for people."""
    head = f"{'suite':<10}{'what':<66}{'value':>9} {'range':<19}{'target':<9}"
    lines = [head, "-" * len(head)]
    for row in rows:
        span = f"[{row.low:.3g}..{row.high:.3g}]"
        value = f"{row.value:.3g} {row.unit}"
        line = f"{row.suite:<10}{row.what:<66}{value:>9} {span:<19}{row.bound:<9}{row.verdict}"
        lines.append(line.rstrip())
    return "\n".join(lines)


def as_json(rows: list[Row], command: str) -> str:
    """Return rows, machine and command as JSON."""
    data = {"command": command, "machine": machine(), "rows": [asdict(r) for r in rows]}
    return json.dumps(data, indent=1)
