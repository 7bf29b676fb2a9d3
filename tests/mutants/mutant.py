"""What a mutant is: a good device with one behaviour changed.

    @breaks("EVT-1", "An event covers the first of two queues.", SIM_TWO_QUEUES)
    class EventCoversOneQueue(SimStream):
        def recorded(self) -> ...:
            return [self.queues[0].last]

The class is laid over the objects of an unbroken device, its *baseline*: over streams, events,
buffers, programs, the device itself, or the simulated world, whichever it derives from.
``super()`` is the baseline's own behaviour. No plug-in is imported: the classes of its objects are
found when it is open.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from ggsched.backend.base import BaseBuffer, BaseDevice, BaseEvent, BaseProgram, BaseStream
from ggsched_testing.conformance import RULES, Harness
from ggsched_testing.sim import (
    SimBuffer,
    SimDevice,
    SimEvent,
    SimProgram,
    SimStream,
    SimWorld,
)
from tests.mutants.baselines import Baseline

T = TypeVar("T")

TIMEOUT_S: Final = 0.4
"""A mutant is given less time than a device: most of what it never does, it never does."""

CASE_TIMEOUT_S: Final = 2.0

ATTRIBUTE: Final = "mutant"

_MAKERS: Final[Mapping[str, tuple[type, ...]]] = {
    "create_stream": (BaseStream, SimStream),
    "create_event": (BaseEvent, SimEvent),
    "allocate": (BaseBuffer, SimBuffer),
    "compile": (BaseProgram, SimProgram),
}
"""Methods of a device by what they return."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A backend that breaks one rule on purpose.

    Attributes:
        name: Unique, e.g. ``"event_covers_one_queue"``.
        rule: The rule that it breaks.
        what: What is wrong with it, in a sentence.
        baseline: What it is but for this.
        part: The class that is laid over the baseline's, or None.
        facts: What it declares differently.
    """

    name: str
    rule: str
    what: str
    baseline: Baseline
    part: type | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    def harness(self) -> Harness:
        """Return what the conformance kit needs to run on it."""
        return broken(self.baseline.harness(), self.name, self.mutate)

    def mutate(self, device: Any) -> None:
        """Break an open device of the baseline's kind."""
        if self.facts:
            declare(device, **self.facts)
        if hasattr(device, "event_timeout_s"):
            device.event_timeout_s = CASE_TIMEOUT_S  # so that closing what hangs comes to an end
        part = self.part
        if part is None:
            return
        if issubclass(part, SimWorld):
            graft(device.world, part)
        elif issubclass(part, (BaseDevice, SimDevice)):
            graft(device, part)
        else:
            maker = next(m for m, kinds in _MAKERS.items() if issubclass(part, kinds))
            hook(device, maker, part)


def broken(good: Harness, name: str, mutate: Callable[[Any], None]) -> Harness:
    """Return a harness whose devices are changed once they are open."""

    def open_broken(count: int, seed: int) -> list[Any]:
        devices = list(good.open(count, seed))
        for device in devices:
            mutate(device)
        return devices

    return replace(
        good,
        name=name,
        open=open_broken,
        timeout_s=TIMEOUT_S,
        case_timeout_s=CASE_TIMEOUT_S,
        waivers=(),
    )


def breaks(rule: str, what: str, baseline: Baseline, **facts: Any) -> Callable[[type[T]], type[T]]:
    """Make a mutant of a class.

    Args:
        rule: The rule that it breaks.
        what: What is wrong, in a sentence.
        baseline: What it is but for this.
        facts: What it declares differently.
    """
    if rule not in RULES:
        raise ValueError(f"there is no rule {rule}")

    def make(part: type[T]) -> type[T]:
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", part.__name__).lower()
        setattr(part, ATTRIBUTE, Mutant(name, rule, what, baseline, part, facts))
        return part

    return make


def graft(thing: T, part: type) -> T:
    """Lay a class over that of an object; its ``begin``, if there is one, sets up attributes."""
    own = type(thing)
    if part not in own.__mro__:
        thing.__class__ = type(part.__name__, (part, own), {"__slots__": ()})
        begin = getattr(part, "begin", None)
        if begin is not None:
            begin(thing)
    return thing


def hook(device: Any, maker: str, part: type) -> None:
    """Lay a class over everything that a method of a device returns."""
    original = getattr(device, maker)

    def make(*arguments: Any) -> Any:
        return graft(original(*arguments), part)

    setattr(device, maker, make)


def declare(device: Any, **facts: Any) -> None:
    """Let a device declare something else than it did."""
    changed = replace(device.facts, **facts)
    device.facts = changed
    if isinstance(device, SimDevice):
        device.world.facts[device.index] = changed
