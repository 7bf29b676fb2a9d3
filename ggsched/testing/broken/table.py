"""All mutants."""

from collections.abc import Iterator
from types import ModuleType
from typing import Final

from ggsched.testing.broken import (
    breaks_buffers,
    breaks_capture,
    breaks_capture_update,
    breaks_constants,
    breaks_copies,
    breaks_errors,
    breaks_events,
    breaks_fusions,
    breaks_hosts,
    breaks_interop,
    breaks_launches,
    breaks_programs,
    breaks_results,
    breaks_streams,
    breaks_syncs,
    breaks_truth,
    breaks_waits,
)
from ggsched.testing.broken.mutant import ATTRIBUTE, Mutant
from ggsched.testing.conformance import RULES

_MODULES: Final[tuple[ModuleType, ...]] = (
    breaks_streams,
    breaks_syncs,
    breaks_events,
    breaks_waits,
    breaks_buffers,
    breaks_copies,
    breaks_hosts,
    breaks_launches,
    breaks_results,
    breaks_fusions,
    breaks_constants,
    breaks_capture,
    breaks_capture_update,
    breaks_errors,
    breaks_truth,
    breaks_interop,
    breaks_programs,
)


def _mutants() -> Iterator[Mutant]:
    for module in _MODULES:
        for value in vars(module).values():
            if isinstance(value, type) and value.__module__ == module.__name__:
                found = vars(value).get(ATTRIBUTE)
                if isinstance(found, Mutant):
                    yield found


def _in_order() -> tuple[Mutant, ...]:
    order = list(RULES)
    return tuple(sorted(_mutants(), key=lambda mutant: order.index(mutant.rule)))


MUTANTS: Final = _in_order()
"""In the order of the rules, and then of the source."""
