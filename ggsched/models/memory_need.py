"""How much memory a session takes, to the byte, before anything is loaded.

Plans are made for every micro-batch that the session is going to run, and their arenas are added up
as the scheduler keeps them: weights and states once, and for each plan that is kept its own arenas
and host memory, the least recently used going first.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ggsched.ir.graph import Graph
from ggsched.models.spec import ModelSpec
from ggsched.models.trajectory import BatchSize
from ggsched.plan.bundle import Plan
from ggsched.plan.splits import HOST


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes of one memory.

    Attributes:
        weights: Weights.
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
        peak: By device, or ``HOST``, what is there when most is, with all plans that are kept.
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


def memory_need(
    spec: ModelSpec,
    n_devices: int,
    sizes: Iterable[BatchSize],
    make: Callable[[Graph], Plan],
    *,
    n_ctx: int,
    plans_kept: int,
) -> MemoryNeed:
    """Return what a session takes that runs these micro-batches in order.

    Args:
        spec: The model.
        n_devices: Devices of the topology.
        sizes: Micro-batches, see ``trajectory``.
        make: Makes the plan of a graph, as the session will.
        n_ctx: Rows of the KV cache.
        plans_kept: Plans that the scheduler keeps.

    Raises:
        PlanError: a graph cannot be placed.
    """
    sizes = list(sizes)
    needs = {size: plan_need(make(size.graph(spec, n_ctx))) for size in dict.fromkeys(sizes)}
    return add_up(sizes, needs, n_devices, plans_kept)


def add_up(
    sizes: Sequence[BatchSize],
    needs: Mapping[BatchSize, "PlanNeed"],
    n_devices: int,
    plans_kept: int,
) -> MemoryNeed:
    """Return what a session takes whose plans are known, see ``memory_need``."""
    tally = _Tally(plans_kept)
    used = dict.fromkeys(sizes)
    for size in sizes:
        tally.run(size, needs[size])
    devices = (*range(n_devices), HOST)
    return MemoryNeed(
        {d: tally.peak.get(d, Need()) for d in devices},
        {d: tally.least.get(d, Need()) for d in devices},
        {d: max((needs[s].largest.get(d, 0) for s in used), default=0) for d in devices},
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
    """

    resident: Mapping[tuple[str, str], tuple[int, Need]]
    own: Mapping[int, Need]
    largest: Mapping[int, int]


def plan_need(plan: Plan) -> PlanNeed:
    """Return what a plan takes."""
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
    return PlanNeed(resident, own, largest)


_FIELD: Final[Mapping[str, str]] = {
    "weight": "weights",
    "state": "states",
    "cache": "caches",
    "compute": "arenas",
    "input": "slots",
    "output": "slots",
    "staging": "staging",
}


class _Tally:
    """What is there while one plan after the other is used, as the scheduler does it."""

    def __init__(self, plans_kept: int) -> None:
        self.kept = 0
        self.peak: dict[int, Need] = {}
        self.least: dict[int, Need] = {}
        self._limit = plans_kept
        self._plans: OrderedDict[BatchSize, PlanNeed] = OrderedDict()
        self._resident: dict[tuple[str, str], tuple[int, Need]] = {}

    def run(self, size: BatchSize, need: PlanNeed) -> None:
        """Use a plan: the least recently used one goes before a new one comes."""
        if size in self._plans:
            self._plans.move_to_end(size)
            return
        while len(self._plans) >= self._limit:
            self._plans.popitem(last=False)
        self._plans[size] = need
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
