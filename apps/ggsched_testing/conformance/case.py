"""What a conformance case is: a small named function with its rule and what it needs.

    @case("EVT-5", "A done event stays done.", "events")
    def evt5_done_stays_done(w: TestContext) -> None:
        ...

The decorator returns the ``Case``; a module's cases are those of its attributes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ggsched.backend.protocols import Version
from ggsched_testing.conformance.rules import RULES, RULES_SINCE

if TYPE_CHECKING:
    from ggsched_testing.conformance.context import TestContext


@dataclass(frozen=True, slots=True)
class Case:
    """One way to see whether a rule is kept.

    Attributes:
        name: Name of the function, which begins with the rule in small letters.
        rule: Id of the rule.
        statement: What is checked, in a sentence.
        needs: Names of ``NEEDS``; the case is skipped, with the reason, where one is not there.
        run: Raises ``BrokenRule`` (or lets an error of the device pass) if the rule is broken.
        since: Version of the contract that has it; devices of earlier ones are not asked.
    """

    name: str
    rule: str
    statement: str
    needs: tuple[str, ...]
    run: Callable[["TestContext"], None]
    since: Version = (1, 0)


def case(
    rule: str, statement: str, *needs: str, since: Version | None = None
) -> Callable[[Callable[["TestContext"], None]], Case]:
    """Make a case of a function."""
    if rule not in RULES:
        raise ValueError(f"there is no rule {rule}")

    def make(function: Callable[["TestContext"], None]) -> Case:
        name = function.__name__
        if not name.startswith(rule.lower().replace("-", "") + "_"):
            raise ValueError(f"{name} is a case of {rule} by another name")
        return Case(name, rule, statement, needs, function, since or RULES_SINCE.get(rule, (1, 0)))

    return make
