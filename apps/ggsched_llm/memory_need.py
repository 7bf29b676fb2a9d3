"""How much memory a session takes, to the byte, before anything is loaded.

The arenas of the plans that the session is going to use are added up as the scheduler keeps them:
weights and states once, and for each plan that is kept its own arenas and host memory, the least
recently used going first.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

from ggsched.plan.bundle import Plan
from ggsched.plan.splits import HOST

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes of one memory.

    Attributes:
        states: KV caches.
        caches: Rows of weights that are cached away from home.
        arenas: Intermediate results.
        slots: Host memory of inputs and outputs.
        staging: Host memory that bytes pass through between devices.
    """

    weights: int = 0
    states: int = 0
    caches: int = 0
    arenas: int = 0
    slots: int = 0
    staging: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        return sum(self.fields())

    def __add__(self, other: "Need") -> "Need":
        return Need(*(a + b for a, b in zip(self.fields(), other.fields(), strict=True)))

    def fields(self) -> tuple[int, ...]:
        """Return the bytes in the order of the attributes."""
        return self.weights, self.states, self.caches, self.arenas, self.slots, self.staging


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """What a session takes.

    Attributes:
        peak: By device, or ``HOST``, the largest total, with all plans that are kept.
        least: The same with one plan at a time, which is what a scheduler falls back to.
        largest: By device, the largest single buffer.
        plans: Different plans that are made.
        kept: Plans that are there at once at most.
    """

    peak: Mapping[int, Need]
    least: Mapping[int, Need]
    largest: Mapping[int, int]
    plans: int
    kept: int

    def plus(self, device: int, nbytes: int) -> "MemoryNeed":
        """Return this with one more weight on a device."""
        weight = Need(weights=nbytes)
        return replace(
            self,
            peak={**self.peak, device: self.peak.get(device, Need()) + weight},
            least={**self.least, device: self.least.get(device, Need()) + weight},
            largest={**self.largest, device: max(nbytes, self.largest.get(device, 0))},
        )


def memory_need(
    plans: Iterable[Plan],
    n_devices: int,
    *,
    plans_kept: int,
    double_buffered: Callable[[Plan], bool],
) -> MemoryNeed:
    """Return what is taken where these plans are used in order; one graph has one plan.

    Args:
        plans: See ``ggsched_llm.batches``.
        n_devices: Devices of the topology.
        plans_kept: Plans that the scheduler keeps.
        double_buffered: Which plans have memory twice where they follow themselves (ADR 75).
    """
    order: list[Hashable] = []
    needs: dict[Hashable, PlanNeed] = {}
    for plan in plans:
        order.append(plan.graph)
        if plan.graph not in needs:
            needs[plan.graph] = plan_need(plan, is_double_buffered=double_buffered(plan))
    return add_up(order, needs, n_devices, plans_kept)


def add_up(
    order: Sequence[K], needs: Mapping[K, "PlanNeed"], n_devices: int, plans_kept: int
) -> MemoryNeed:
    """Return what is taken where plans are used in order.

    Args:
        order: Names of the plans.
        needs: What each of them takes.
        n_devices: Devices of the topology.
        plans_kept: Plans that the scheduler keeps.
    """
    tally: _Tally[K] = _Tally(plans_kept)
    used = dict.fromkeys(order)
    for name in order:
        tally.run(name, needs[name])
    devices = (*range(n_devices), HOST)
    return MemoryNeed(
        {d: tally.peak.get(d, Need()) for d in devices},
        {d: tally.least.get(d, Need()) for d in devices},
        {d: max((needs[n].largest.get(d, 0) for n in used), default=0) for d in devices},
        len(used),
        tally.kept,
    )


@dataclass(frozen=True, slots=True)
class PlanNeed:
    """What one plan takes.

    Attributes:
        resident: What outlives the plan, by kind and name: its device, and what it takes there.
            All plans that name one share it.
        own: By device, or ``HOST``, what the plan has for itself.
        largest: By device, or ``HOST``, its largest buffer.
        is_double_buffered: Whether it has its own memory twice if it follows itself (ADR 75).
    """

    resident: Mapping[tuple[str, str], tuple[int, Need]]
    own: Mapping[int, Need]
    largest: Mapping[int, int]
    is_double_buffered: bool = False


def plan_need(plan: Plan, *, is_double_buffered: bool = False) -> PlanNeed:
    """Return what a plan takes, which may have memory twice where it follows itself."""
    resident: dict[tuple[str, str], tuple[int, Need]] = {}
    own: dict[int, Need] = {}
    largest: dict[int, int] = {}
    for arena in plan.memory.arenas:
        largest[arena.device] = max(arena.nbytes, largest.get(arena.device, 0))
        need = Need(**{_FIELD[arena.kind]: arena.nbytes})
        if arena.name:
            resident[arena.kind, arena.name] = (arena.device, need)
        else:
            own[arena.device] = own.get(arena.device, Need()) + need
    return PlanNeed(resident, own, largest, is_double_buffered)


_FIELD: Final[Mapping[str, str]] = {
    "weight": "weights",
    "state": "states",
    "cache": "caches",
    "compute": "arenas",
    "input": "slots",
    "output": "slots",
    "staging": "staging",
}


class _Tally(Generic[K]):
    """The memory in use while plans are used one after the other, as by the scheduler."""

    def __init__(self, plans_kept: int) -> None:
        self.kept = 0
        self.peak: dict[int, Need] = {}
        self.least: dict[int, Need] = {}
        self._limit = plans_kept
        self._plans: OrderedDict[K, PlanNeed] = OrderedDict()
        self._resident: dict[tuple[str, str], tuple[int, Need]] = {}

    def run(self, name: K, need: PlanNeed) -> None:
        """Use a plan: the least recently used one goes before a new one comes."""
        if name in self._plans:
            if need.is_double_buffered and next(reversed(self._plans)) == name:
                twice = {device: own + own for device, own in need.own.items()}
                self._plans[name] = replace(need, own=twice)
                _keep_largest(self.peak, self._now(self._plans.values()))
            self._plans.move_to_end(name)
            return
        while len(self._plans) >= self._limit:
            self._plans.popitem(last=False)
        self._plans[name] = need
        self._resident.update(need.resident)
        self.kept = max(self.kept, len(self._plans))
        _keep_largest(self.peak, self._now(self._plans.values()))
        _keep_largest(self.least, self._now([need]))

    def _now(self, plans: Iterable[PlanNeed]) -> dict[int, Need]:
        now: dict[int, Need] = {}
        for device, need in self._resident.values():
            now[device] = now.get(device, Need()) + need
        for plan in plans:
            for device, need in plan.own.items():
                now[device] = now.get(device, Need()) + need
        return now


def _keep_largest(largest: dict[int, Need], now: Mapping[int, Need]) -> None:
    for device, need in now.items():
        if need.total > largest.get(device, Need()).total:
            largest[device] = need
