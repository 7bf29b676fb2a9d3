"""``--fit``: how to spread a model so that it fits the memory that is free, the fastest way first.

Every choice (layers on accelerators and how they are divided, experts on the host, the context)
gets an estimate of its seconds and a lower bound of its bytes. In the order of the estimates, those
that are not ruled out are checked with real plans, until one fits to the byte. So nothing that fits
is missed, and few plans are made. The context is kept as long as anything fits with it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ggsched.errors import OutOfDeviceMemory
from ggsched.ir.graph import Graph
from ggsched.models.batch_schedule import BatchSize, trajectory
from ggsched.models.fit_candidates import (
    MAX_CHOICES,
    FitChoice,
    LayerTable,
    count_splits,
    estimate,
    every_split,
    layer_table,
    least_bytes,
)
from ggsched.models.fit_text import fit_reasons, shortest
from ggsched.models.layer_split import split_layers
from ggsched.models.memory_need import MemoryNeed, PlanNeed, add_up, plan_need
from ggsched.models.offload import (
    Homes,
    Offload,
    find_homes,
    has_cpu_host,
    host_index,
    layer_devices,
    stages,
)
from ggsched.models.spec import ModelSpec
from ggsched.plan.bundle import Plan
from ggsched.plan.splits import HOST
from ggsched.topology.cost import MachineRates
from ggsched.topology.model import Topology

Make = Callable[[Graph, Homes], Plan]
"""Makes a plan as the session will, with weights and caches at home there."""

_KEPT: Final = (16, 8, 4, 2, 1)


@dataclass(frozen=True, slots=True)
class FitRequest:
    """What ``--fit`` may choose, and how much it leaves.

    Attributes:
        contexts: Sizes of the context, the one that is wanted first.
        margin_nbytes: Bytes of each memory to leave free.
        margin_share: Share of the free bytes to leave free; the larger margin counts.
        chooses_layers: Whether to choose ``-ngl`` and how layers are divided.
        chooses_experts: Whether to choose ``--n-cpu-moe``.
        all_logits: Whether each token of a prompt gets logits.
    """

    contexts: tuple[int, ...]
    margin_nbytes: int = 0
    margin_share: float = 0.05
    chooses_layers: bool = True
    chooses_experts: bool = True
    all_logits: bool = False


@dataclass(frozen=True, slots=True)
class Fit:
    """What was chosen.

    Attributes:
        offload: Where weights and caches live.
        n_ctx: Rows of the KV cache.
        plans_kept: Plans whose memory may be kept.
        need: What a session that fills the context takes.
        reasons: Why, in a few lines.
        tried: Choices for which plans were made.
        all_logits: Whether each token of a prompt was to get logits.
        topology: The machine.
        limits: Bytes of each device that may be used.
    """

    offload: Offload
    n_ctx: int
    plans_kept: int
    need: MemoryNeed
    reasons: tuple[str, ...]
    tried: int
    all_logits: bool
    topology: Topology
    limits: tuple[int, ...]

    def has_room(self, need: MemoryNeed) -> bool:
        """Whether that fits too, if plans that are merely kept give way."""
        used = {d: n.total for d, n in need.least.items()}
        return not shortage(self.topology, self.limits, used, need.largest)


def fit(
    spec: ModelSpec,
    topology: Topology,
    rates: MachineRates,
    free: Sequence[int],
    offload: Offload,
    request: FitRequest,
    *,
    step: int,
    make: Make,
) -> Fit:
    """Return the fastest way to spread a model that fits, with the largest context that fits.

    Args:
        spec: The model.
        topology: The machine.
        rates: Of the machine.
        free: Bytes that are free on each device.
        offload: What is decided already: overrides, shares, numbers that are not to be chosen.
        request: What is to be chosen.
        step: Tokens of one micro-batch at most.
        make: Makes plans.

    Raises:
        OutOfDeviceMemory: nothing fits.
        UsageError: an override or a split that makes no sense.
    """
    search = _Search(spec, topology, rates, free, offload, request, step, make)
    for n_ctx in request.contexts:
        found = search.with_context(n_ctx)
        if found is not None:
            return found
    raise search.nothing_fits()


def micro_batches(n_ctx: int, step: int, *, all_logits: bool = False) -> list[BatchSize]:
    """Return micro-batches of all sizes that fill a context: of whole prompts, and decoding."""
    prompt = trajectory(n_ctx, 1, n_ctx=n_ctx, step=step, all_logits=all_logits)
    return [*prompt, *trajectory(1, n_ctx, n_ctx=n_ctx, step=1)]


def limits_of(free: Sequence[int], request: FitRequest) -> list[int]:
    """Return the bytes of each device that may be used."""
    return [n - max(request.margin_nbytes, int(request.margin_share * n)) for n in free]


def shortage(
    topology: Topology, limits: Sequence[int], used: Mapping[int, int], largest: Mapping[int, int]
) -> dict[str, int]:
    """Return by device the bytes that are missing; empty if everything fits.

    Devices that share the host's memory have to fit it together, the host's own bytes included.

    Args:
        topology: The machine.
        limits: Bytes of each device that may be used.
        used: Bytes on each device and, under ``HOST``, of host memory.
        largest: The largest buffer of each device.
    """
    missing: dict[str, int] = {}
    shared = [d for d, f in enumerate(topology.devices) if f.is_host or f.imports_host_memory]
    for d, facts in enumerate(topology.devices):
        over = max(used.get(d, 0) - limits[d], largest.get(d, 0) - facts.max_allocation_nbytes)
        if over > 0:
            missing[facts.name] = over
    if shared and not missing:
        together = sum(used.get(d, 0) for d in (*shared, HOST))
        room = max(limits[d] for d in shared)
        if together > room:
            missing["host memory"] = together - room
    return missing


class _Search:
    """Goes through the choices; remembers what came close."""

    def __init__(
        self,
        spec: ModelSpec,
        topology: Topology,
        rates: MachineRates,
        free: Sequence[int],
        offload: Offload,
        request: FitRequest,
        step: int,
        make: Make,
    ) -> None:
        self.spec, self.topology, self.rates = spec, topology, rates
        self.offload, self.request, self.step, self.make = offload, request, step, make
        self.free = free
        self.limits = limits_of(free, request)
        self.stages = stages(topology.devices, offload)
        self.host = host_index(topology.devices, offload)
        self.rest_with_first = not has_cpu_host(topology.devices, offload)
        self.layers = spec.hparams.n_layer + 1
        per_split = self.layers if spec.hparams.n_expert else 1
        self._few_splits = per_split * count_splits(self.layers, len(self.stages)) <= MAX_CHOICES
        self.tried = 0
        self.misses: list[tuple[FitChoice, dict[str, int]]] = []

    def with_context(self, n_ctx: int) -> Fit | None:
        """Return the fastest choice with this context that fits."""
        table = layer_table(
            self.spec, self.rates, self.host, n_ctx, self.step, rest_with_first=self.rest_with_first
        )
        ranked = sorted(
            (estimate(table, c, self.stages, self.host), number, c)
            for number, c in enumerate(self._choices(n_ctx, table))
        )
        for seconds, _, choice in ranked:
            missing = self._ruled_out(table, choice)
            found = None
            if not missing:
                found, missing = self._check(choice)
            if found is not None:
                need, kept = found
                offload = self._offload(choice)
                wanted = self.request.contexts[0]
                reasons = fit_reasons(
                    choice, seconds, need, self.misses, self.topology, self.free, wanted=wanted
                )
                return Fit(
                    offload,
                    n_ctx,
                    kept,
                    need,
                    reasons,
                    self.tried,
                    self.request.all_logits,
                    self.topology,
                    tuple(self.limits),
                )
            self.misses.append((choice, missing))
        return None

    def nothing_fits(self) -> OutOfDeviceMemory:
        """Return the error that says what came closest."""
        choice, missing = shortest(self.misses)
        lacking = ", ".join(f"{n} bytes on {name}" for name, n in missing.items())
        return OutOfDeviceMemory(
            "no way to spread the model fits",
            where="--fit",
            why=f"{choice.text()} comes closest and lacks {lacking}",
            hint="take a smaller -ub, --weights packed, a smaller --fit-margin or more devices",
        )

    def _choices(self, n_ctx: int, table: LayerTable) -> Iterator[FitChoice]:
        """Yield what there is to choose from."""
        given, request = self.offload, self.request
        layers: Sequence[int] = range(self.layers, -1, -1)
        if not self.stages:
            layers = (0,)
        elif not request.chooses_layers:
            wanted = self.layers if given.n_gpu_layers is None else given.n_gpu_layers
            layers = (min(wanted, self.layers),)
        experts: Sequence[int] = (given.n_cpu_moe,)
        if request.chooses_experts and self.stages and self.spec.hparams.n_expert:
            experts = range(self.layers)
        for wanted in layers:
            for n_cpu_moe in experts:
                for counts in self._splits(wanted, n_cpu_moe, table):
                    yield FitChoice(n_ctx, counts, n_cpu_moe)

    def _splits(self, wanted: int, n_cpu_moe: int, table: LayerTable) -> Iterator[tuple[int, ...]]:
        """Yield the ways to divide layers: as it was asked for, else all, or the best of many."""
        given = self.offload
        if given.stage_layers is not None:
            if sum(given.stage_layers) == wanted:
                yield given.stage_layers
        elif given.tensor_split or given.split_by in ("memory", "equal"):
            asked = replace(given, n_gpu_layers=wanted)
            homes = layer_devices(self.spec.hparams, self.topology.devices, asked)[-wanted:]
            yield tuple(homes.count(s) if wanted else 0 for s in self.stages)
        elif given.split_by is None and self._few_splits:
            yield from every_split(wanted, len(self.stages))
        else:
            yield from self._balanced(wanted, n_cpu_moe, table)

    def _balanced(
        self, wanted: int, n_cpu_moe: int, table: LayerTable
    ) -> Iterator[tuple[int, ...]]:
        """Yield the split whose slowest stage is fastest, within memory for what is known."""
        first = self.layers - wanted
        nbytes = [
            dense + (experts if layer >= n_cpu_moe else 0)
            for layer, (dense, experts) in enumerate(
                zip(table.nbytes, table.expert_nbytes, strict=True)
            )
        ]
        if table.rest_with_first:
            nbytes[0] += table.rest_nbytes
        reserve = max(table.arena[first:], default=0)
        found = split_layers(
            [table.seconds[s][first:] for s in self.stages],
            nbytes[first:],
            [max(0, self.limits[s] - reserve) for s in self.stages],
        )
        if found is not None:
            yield found.counts

    def _ruled_out(self, table: LayerTable, choice: FitChoice) -> dict[str, int]:
        """Return what is missing for certain; with overrides nothing is certain."""
        if self.offload.overrides:
            return {}
        moves = self.offload.experts.offload != "off"
        least = least_bytes(table, choice, self.stages, self.host, experts_move=moves)
        return shortage(self.topology, self.limits, least, {})

    def _check(self, choice: FitChoice) -> tuple[tuple[MemoryNeed, int] | None, dict[str, int]]:
        """Make the plans of a choice; return what it takes, or else what is missing."""
        self.tried += 1
        homes = find_homes(self.spec, self.topology, self._offload(choice))
        needs: dict[BatchSize, PlanNeed] = {}
        sizes = micro_batches(choice.n_ctx, self.step, all_logits=self.request.all_logits)
        # The largest first: what does not fit does not with them, as a rule.
        for size in sorted(dict.fromkeys(sizes), reverse=True):
            graph = size.graph(self.spec, choice.n_ctx)
            needs[size] = plan_need(self.make(graph, homes))
            missing = self._missing([size], needs, 1)
            if missing:
                return None, missing
        missing = self._missing(sizes, needs, 1)
        if missing:
            return None, missing
        kept = next(k for k in _KEPT if not self._missing(sizes, needs, k))
        return (add_up(sizes, needs, len(self.limits), kept), kept), {}

    def _missing(
        self, sizes: Sequence[BatchSize], needs: Mapping[BatchSize, PlanNeed], kept: int
    ) -> dict[str, int]:
        need = add_up(sizes, needs, len(self.limits), kept)
        used = {d: n.total for d, n in need.peak.items()}
        return shortage(self.topology, self.limits, used, need.largest)

    def _offload(self, choice: FitChoice) -> Offload:
        return replace(
            self.offload,
            n_gpu_layers=choice.n_gpu_layers if choice.counts else self.offload.n_gpu_layers,
            n_cpu_moe=choice.n_cpu_moe,
            stage_layers=choice.counts or None,
        )
