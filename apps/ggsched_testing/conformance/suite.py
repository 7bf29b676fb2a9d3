"""All cases, and which of them are meant by ``--rules``."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from types import ModuleType
from typing import Final

from ggsched.errors import UsageError
from ggsched_testing.conformance import (
    cases_beyond,
    cases_buffers,
    cases_capture,
    cases_capture_update,
    cases_closing,
    cases_constant_weights,
    cases_constants,
    cases_copies,
    cases_crowds,
    cases_drawn_failures,
    cases_drawn_graphs,
    cases_drawn_memory,
    cases_drawn_peers,
    cases_drawn_results,
    cases_drawn_transfers,
    cases_error_objects,
    cases_errors,
    cases_events,
    cases_failed_waits,
    cases_fills,
    cases_fusions,
    cases_host_memory,
    cases_hosts,
    cases_ids,
    cases_interop,
    cases_lanes,
    cases_launches,
    cases_lifetimes,
    cases_ops,
    cases_peers,
    cases_programs,
    cases_scale,
    cases_shapes,
    cases_sizes,
    cases_special,
    cases_streams,
    cases_threads,
    cases_timeouts,
    cases_truth,
    cases_values,
    cases_waits,
)
from ggsched_testing.conformance.case import Case
from ggsched_testing.conformance.rules import RULES

_MODULES: Final[tuple[ModuleType, ...]] = (
    cases_streams,
    cases_lanes,
    cases_events,
    cases_waits,
    cases_buffers,
    cases_copies,
    cases_fills,
    cases_hosts,
    cases_launches,
    cases_ops,
    cases_values,
    cases_special,
    cases_fusions,
    cases_constant_weights,
    cases_constants,
    cases_peers,
    cases_capture,
    cases_capture_update,
    cases_errors,
    cases_failed_waits,
    cases_truth,
    cases_interop,
    cases_programs,
    cases_scale,
    cases_sizes,
    cases_shapes,
    cases_ids,
    cases_lifetimes,
    cases_host_memory,
    cases_threads,
    cases_error_objects,
    cases_beyond,
    cases_drawn_transfers,
    cases_drawn_graphs,
    cases_drawn_memory,
    cases_drawn_peers,
    cases_drawn_results,
    cases_timeouts,
    cases_closing,
    cases_crowds,
    cases_drawn_failures,
)


def all_cases() -> tuple[Case, ...]:
    """Return every case, in the order of the rules and then of the source."""
    found: list[Case] = []
    for module in _MODULES:
        for value in vars(module).values():
            found += [c for c in (value if isinstance(value, tuple) else (value,)) if _is_case(c)]
    order = list(RULES)
    return tuple(sorted(dict.fromkeys(found), key=lambda c: order.index(c.rule)))


def select(
    patterns: str | Sequence[str] | None = None, among: tuple[Case, ...] | None = None
) -> tuple[Case, ...]:
    """Return the cases that a pattern of rules or of case names means, all for None.

    Args:
        patterns: With commas between them.
        among: Cases to select from; those of the kit for None.

    Raises:
        UsageError: a pattern that matches nothing.
    """
    cases = all_cases() if among is None else among
    if patterns is None:
        return cases
    texts = patterns.split(",") if isinstance(patterns, str) else list(patterns)
    chosen: set[Case] = set()
    for text in texts:
        pattern = text.strip()
        matching = [c for c in cases if matches(c, pattern)]
        if not matching:
            raise UsageError(
                f"no rule and no case is called {pattern!r}", hint=f"rules: {', '.join(RULES)}"
            )
        chosen.update(matching)
    return tuple(c for c in cases if c in chosen)


def matches(case: Case, pattern: str) -> bool:
    """Whether a pattern means a case, by its rule or by its name."""
    return fnmatchcase(case.rule, pattern.upper()) or fnmatchcase(case.name, pattern)


def _is_case(value: object) -> bool:
    return isinstance(value, Case)
