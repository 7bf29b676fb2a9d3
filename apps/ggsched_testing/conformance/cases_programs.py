"""ALL-1: random programs, made and made smaller by Hypothesis."""

from typing import Final

from ggsched_testing.conformance.case import case
from ggsched_testing.conformance.context import TestContext

SHAPED: Final = 16
"""Programs of drawn sizes at 50 examples: each has up to a hundred megabytes of transfers."""


def _search(w: TestContext, devices: int, shaped_examples: int = 0) -> None:
    from ggsched_testing.conformance.search import search  # Hypothesis is optional

    search(w, devices, shaped_examples)


@case("ALL-1", "Random programs leave the bytes of the sequential model.", "hypothesis")
def all1_random_programs(w: TestContext) -> None:
    _search(w, 1)


@case("ALL-1", "Random programs on two devices do so, too.", "hypothesis", "pair")
def all1_random_programs_on_a_pair(w: TestContext) -> None:
    _search(w, 2)


@case("ALL-1", "Random programs of large and small commands on up to six streams do so, too.",
      "hypothesis")  # fmt: skip
def all1_drawn_sizes_and_streams(w: TestContext) -> None:
    _search(w, 1, w.draws(SHAPED, 4))


@case("ALL-1", "Random programs of large and small commands on two devices do so, too.",
      "hypothesis", "pair")  # fmt: skip
def all1_drawn_sizes_on_a_pair(w: TestContext) -> None:
    _search(w, 2, w.draws(SHAPED, 4))
