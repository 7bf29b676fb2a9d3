"""What an exploration finds: observations, and for each an order that leads to it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from ggsched_testing.schedule_policy import SchedulePolicy


@dataclass(frozen=True, slots=True)
class Observation:
    """What somebody outside can see of one execution.

    Attributes:
        parts: Name and content of everything that is looked at; bytes by their hash.
    """

    parts: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, seen: Mapping[str, Any]) -> "Observation":
        """Return an observation of texts, and of bytes or arrays by their hash."""
        return cls(tuple((name, _content(value)) for name, value in seen.items()))

    @property
    def digest(self) -> str:
        """A short hash of all of it."""
        text = "\n".join(f"{name}={content}" for name, content in self.parts)
        return blake2b(text.encode(), digest_size=8).hexdigest()

    def differences(self, other: "Observation") -> tuple[str, ...]:
        """Return the names of parts that are not the same, or not there."""
        mine, theirs = dict(self.parts), dict(other.parts)
        return tuple(n for n in {**mine, **theirs} if mine.get(n) != theirs.get(n))


Run = Callable[[SchedulePolicy], Observation]
"""Executes a program once, from the beginning, under a policy. It has to be deterministic."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """An observation and one order in which it comes about.

    Attributes:
        observation: What is seen.
        token: ``replay(token, run)`` repeats the order exactly.
        deviations: Number of moments at which it differs from the usual order.
        steps: The steps, by actor and label, as they happened.
    """

    observation: Observation
    token: str
    deviations: int
    steps: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Exploration:
    """What was found.

    Attributes:
        outcomes: One for each distinct observation, that of the usual order first.
        schedules: Number of executions.
        is_complete: Whether every order was covered: no other observation is possible.
    """

    outcomes: tuple[Outcome, ...]
    schedules: int
    is_complete: bool

    @property
    def is_deterministic(self) -> bool:
        """Whether only one observation was found."""
        return len(self.outcomes) == 1

    def to_text(self) -> str:
        """Return a report for people: each observation with its token and its order."""
        extent = "all orders" if self.is_complete else "not all orders"
        count = len(self.outcomes)
        lines = [f"{self.schedules} executions, {extent}, {count} observation{'s' * (count > 1)}"]
        usual = self.outcomes[0].observation
        for outcome in self.outcomes:
            names = ", ".join(outcome.observation.differences(usual)) or "as usual"
            lines.append(f"{outcome.observation.digest}  {outcome.token}  {names}")
            if outcome.observation is not usual:
                lines += [f"    {step}" for step in outcome.steps]
        return "\n".join(lines) + "\n"


def _content(value: Any) -> str:
    if isinstance(value, str):
        return value
    data = value if isinstance(value, bytes | bytearray | memoryview) else value.tobytes()
    return blake2b(data, digest_size=8).hexdigest()
