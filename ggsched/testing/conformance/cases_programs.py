"""ALL-1: random programs, made and made smaller by Hypothesis."""

from ggsched.testing.conformance.case import case
from ggsched.testing.conformance.context import TestContext


@case("ALL-1", "Random programs leave the bytes of the sequential model.", "hypothesis")
def all1_random_programs(w: TestContext) -> None:
    from ggsched.testing.conformance.search import search  # Hypothesis is optional

    search(w, devices=1)


@case("ALL-1", "Random programs on two devices do so, too.", "hypothesis", "pair")
def all1_random_programs_on_a_pair(w: TestContext) -> None:
    from ggsched.testing.conformance.search import search

    search(w, devices=2)
