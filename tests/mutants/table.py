"""All mutants."""

from collections.abc import Iterator
from types import ModuleType
from typing import Final

from ggsched_testing.conformance import RULES
from tests.mutants import (
    bad_ids,
    behind,
    buffers,
    capture,
    capture_update,
    closing,
    constants,
    copies,
    crowds,
    edges,
    errors,
    events,
    fills,
    fusions,
    host_memory,
    hosts,
    interop,
    lanes,
    launches,
    lifetimes,
    peers,
    programs,
    racing,
    results,
    scale_launches,
    scale_memory,
    scale_streams,
    siblings,
    streams,
    syncs,
    timeouts,
    truth,
    waits,
)
from tests.mutants.mutant import ATTRIBUTE, Mutant

_MODULES: Final[tuple[ModuleType, ...]] = (
    timeouts,
    edges,
    crowds,
    streams,
    lanes,
    syncs,
    events,
    waits,
    buffers,
    copies,
    fills,
    hosts,
    launches,
    results,
    fusions,
    constants,
    peers,
    capture,
    capture_update,
    errors,
    truth,
    interop,
    programs,
    scale_streams,
    scale_memory,
    scale_launches,
    closing,
    lifetimes,
    behind,
    bad_ids,
    racing,
    host_memory,
    siblings,
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
