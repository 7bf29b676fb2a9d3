"""``--fit``: how to spread a model so that it fits the memory that is free, the fastest way first.

Every candidate (layers on accelerators and how they are divided, experts on the host, the context)
gets an estimate of its seconds and a lower bound of its bytes. In the order of the estimates, those
that are not ruled out are checked with real plans, until one fits to the byte. So nothing that fits
is missed, and few plans are made. The context is kept as long as anything fits with it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import combinations_with_replacement, pairwise
from math import comb
from typing import Final, Protocol, TypeVar

from ggsched.errors import OutOfDeviceMemory
from ggsched.flags import HOMES, flag, number, read_size
from ggsched.ir.graph import Graph
from ggsched.passes.placement.ranked import ranked
from ggsched.plan.bundle import Plan
from ggsched.plan.splits import HOST
from ggsched.topology.cost import MachineRates
from ggsched.topology.model import Topology
from ggsched.units import nbytes_text, seconds_text
from ggsched_llm.batches import BatchSize, batch_schedule, kv_bucket
from ggsched_llm.layer_costs import Candidate, LayerCosts, layer_costs
from ggsched_llm.memory_need import MemoryNeed, PlanNeed, add_up, plan_need
from ggsched_llm.offload import Homes, Offload, find_homes, layer_devices
from ggsched_llm.spec import ModelSpec
from ggsched_llm.stage_balance import balanced_layers

MAX_CHOICES: Final = 20_000
"""Candidates that are looked at one by one; where there are more, only the best split of layers."""
DECODING_STEPS: Final = 64
"""A candidate is as fast as a micro-batch of a prompt and a number of tokens that follow it."""
LEAST_CONTEXT: Final = 256
"""Where the context is left open it is halved down to this many tokens."""

_KEPT: Final = (16, 8, 4, 2, 1)

Make = Callable[[Graph, Homes], Plan]
"""Makes a plan as the session will, with weights and caches at home there."""


def read_margin(text: str) -> tuple[int, float]:
    """Read ``512MiB`` or ``5%``, as bytes and as a share.

    Raises:
        ValueError: it is neither.
    """
    if text.endswith("%"):
        share = number(text[:-1]) / 100
        if share >= 1:
            raise ValueError(f"{text!r} is not a share from 0% to below 100%")
        return 0, share
    return read_size(text), 0.0


@dataclass(frozen=True, slots=True)
class FitRequest:
    """What ``--fit`` may choose, and how much it leaves.

    Layers on accelerators and experts on the host are chosen where ``Offload`` leaves them open.

    Attributes:
        least_ctx: The context is halved down to this many rows where nothing else fits; None keeps
            it as it is wanted.
        margin: Bytes of each memory to leave free, and a share of what is free; the larger counts.
        all_logits: Whether each token of a prompt gets logits.
        beside: Bytes of devices, by name, that a draft model takes.
        n_draft: Tokens that the model's own head drafts at once; 0 where it does not.
    """

    least_ctx: int | None = None
    margin: tuple[int, float] = flag(
        (0, 0.05), "--fit-margin", read_margin, "Memory of each device that --fit leaves free.",
        param="fit_margin", heading=HOMES, metavar="SIZE|N%", unset="5%",
    )  # fmt: skip
    all_logits: bool = False
    beside: Mapping[str, int] = field(default_factory=dict)
    n_draft: int = 0

    def contexts(self, n_ctx: int) -> Iterator[int]:
        """Yield the sizes of the context that will do, the one that is wanted first."""
        yield n_ctx
        while self.least_ctx is not None and n_ctx // 2 >= self.least_ctx:
            n_ctx //= 2
            yield n_ctx

    def limits(self, free: Sequence[int]) -> tuple[int, ...]:
        """Return the bytes of each device that may be used, of those that are free."""
        nbytes, share = self.margin
        return tuple(n - max(nbytes, int(share * n)) for n in free)


@dataclass(frozen=True, slots=True)
class Fit:
    """What was chosen.

    Attributes:
        offload: Where weights and caches live.
        n_ctx: Rows of the KV cache.
        plans_kept: Plans whose memory may be kept.
        need: What a session that fills the context takes.
        reasons: Why, in a few lines.
        tried: Candidates for which plans were made.
        all_logits: Whether each token of a prompt was to get logits.
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
    n_ctx: int,
    step: int,
    make: Make,
) -> Fit:
    """Return the fastest way to spread a model that fits, with the largest context that fits.

    Args:
        free: Bytes that are free on each device.
        offload: What is decided already: overrides, shares, numbers that are not to be chosen.
        request: What is to be chosen.
        n_ctx: Rows of the KV cache that are wanted.
        step: Tokens of one micro-batch at most.
        make: Makes plans.

    Raises:
        OutOfDeviceMemory: nothing fits.
        UsageError: an override or a split that makes no sense.
    """
    space = ByLayers(spec, topology, rates, offload, step, make)
    return fastest(space, topology, free, request, n_ctx=n_ctx, step=step)


class Choice(Protocol):
    """One way to place a model."""

    @property
    def n_ctx(self) -> int:
        """Rows of the KV cache."""

    def text(self) -> str:
        """Return it as options."""


C = TypeVar("C", bound=Choice)


class FitSpace(Protocol[C]):
    """The ways to place a model, among which ``fastest`` chooses."""

    def candidates(self, n_ctx: int, limits: Sequence[int]) -> Iterator[C]:
        """Yield what there is to choose from, see ``candidates``."""

    def estimate(self, choice: C) -> float:
        """Return about how many seconds a micro-batch and ``DECODING_STEPS`` take."""

    def least_bytes(self, choice: C) -> Mapping[int, int]:
        """Return bytes by device below which no plan is; none where no bound is certain."""

    def offload(self, choice: C) -> Offload:
        """Return a choice as options of a session."""

    def plans(self, choice: C) -> Callable[[BatchSize], Plan]:
        """Return what makes the plan of a micro-batch."""


def fastest(
    space: FitSpace[C],
    topology: Topology,
    free: Sequence[int],
    request: FitRequest,
    *,
    n_ctx: int,
    step: int,
) -> Fit:
    """Return the fastest choice that fits, with the largest context that fits; see ``fit``.

    Raises:
        OutOfDeviceMemory: nothing fits.
    """
    free = [n - request.beside.get(f.name, 0) for n, f in zip(free, topology.devices, strict=True)]
    limits, tried, misses = request.limits(free), 0, list[Miss]()
    lacks = partial(shortage, topology, limits)

    def confirm(choice: C) -> Fit | None:
        nonlocal tried
        missing = lacks(space.least_bytes(choice), {})
        if not missing:
            tried += 1
            sizes = micro_batches(choice.n_ctx, step, all_logits=request.all_logits)
            if request.n_draft:
                sizes.append(BatchSize(min(request.n_draft, choice.n_ctx), choice.n_ctx, 0))
            missing, need, kept = _planned(sizes, space.plans(choice), len(limits), lacks)
        if missing:
            misses.append((choice, missing))
            return None
        seconds = space.estimate(choice)
        reasons = fit_reasons(choice, seconds, need, misses, topology, free, wanted=n_ctx)
        return Fit(
            space.offload(choice), choice.n_ctx, kept, need, reasons, tried, request.all_logits,
            topology, limits,
        )  # fmt: skip

    for size in request.contexts(n_ctx):
        found = next(ranked(space.candidates(size, limits), space.estimate, confirm), None)
        if found is not None:
            return found
    choice, missing = shortest(misses)
    raise OutOfDeviceMemory(
        "no way to spread the model fits",
        where="--fit",
        why=f"{choice.text()} comes closest and lacks {lacking_text(missing, ', ')}",
        hint="take a smaller -ub, a smaller --fit-margin or more devices",
    )


class ByLayers:
    """Layers on accelerators, experts on the host."""

    def __init__(
        self,
        spec: ModelSpec,
        topology: Topology,
        rates: MachineRates,
        offload: Offload,
        step: int,
        make: Make,
    ) -> None:
        """See ``fit``."""
        self._spec, self._topology, self._offload, self._make = spec, topology, offload, make
        self._costs = cache(lambda n_ctx: fit_costs(spec, topology, rates, offload, n_ctx, step))

    def candidates(self, n_ctx: int, limits: Sequence[int]) -> Iterator[Candidate]:
        """See ``FitSpace``."""
        costs = self._costs(n_ctx)
        return candidates(self._spec, self._topology, self._offload, costs, n_ctx, limits)

    def estimate(self, choice: Candidate) -> float:
        """See ``FitSpace``."""
        return self._costs(choice.n_ctx).estimate(choice)

    def least_bytes(self, choice: Candidate) -> Mapping[int, int]:
        """See ``FitSpace``; with overrides no bound is certain."""
        if self._offload.overrides:
            return {}
        moves = self._offload.experts.offload != "off"
        return self._costs(choice.n_ctx).least_bytes(choice, moves)

    def offload(self, choice: Candidate) -> Offload:
        """See ``FitSpace``."""
        return replace(
            self._offload,
            n_gpu_layers=choice.n_gpu_layers if choice.counts else self._offload.n_gpu_layers,
            n_cpu_moe=choice.n_cpu_moe,
            stage_layers=choice.counts or None,
        )

    def plans(self, choice: Candidate) -> Callable[[BatchSize], Plan]:
        """See ``FitSpace``."""
        homes = find_homes(self._spec, self._topology, self.offload(choice))
        return lambda batch: self._make(batch.graph(self._spec, choice.n_ctx), homes)


def fit_costs(
    spec: ModelSpec,
    topology: Topology,
    rates: MachineRates,
    offload: Offload,
    n_ctx: int,
    step: int,
) -> LayerCosts:
    """Return the figures of the layers for a micro-batch and ``DECODING_STEPS``."""
    tokens = min(step, n_ctx)
    prompt = BatchSize(tokens, kv_bucket(tokens, n_ctx), 1), 1
    decoding = BatchSize(1, kv_bucket(min(n_ctx, 512), n_ctx), 1), DECODING_STEPS
    return layer_costs(spec, topology, rates, offload, (prompt, decoding), n_ctx)


def candidates(
    spec: ModelSpec,
    topology: Topology,
    offload: Offload,
    costs: LayerCosts,
    n_ctx: int,
    limits: Sequence[int],
) -> Iterator[Candidate]:
    """Yield what there is to choose from.

    Args:
        offload: What is decided already.
        costs: Of the layers, with such a context.
        n_ctx: Rows of the KV cache.
        limits: Bytes of each device that may be used.
    """
    count = len(costs.nbytes)
    layers: Sequence[int] = range(count, -1, -1)
    if not costs.stages:
        layers = (0,)
    elif offload.n_gpu_layers is not None:
        layers = (min(offload.n_gpu_layers, count),)
    experts: Sequence[int] = (offload.n_cpu_moe,)
    if not offload.n_cpu_moe and costs.stages and spec.hparams.n_expert:
        experts = range(count)
    are_few = len(experts) * count_splits(count, len(costs.stages)) <= MAX_CHOICES
    for n_layers in layers:
        asked = replace(offload, n_gpu_layers=n_layers)
        for n_cpu_moe in experts:
            splits: Iterator[tuple[int, ...]] | tuple[tuple[int, ...], ...] = ()
            if offload.stage_layers is not None:
                splits = (offload.stage_layers,) * (sum(offload.stage_layers) == n_layers)
            elif offload.tensor_split or offload.split_by in ("memory", "equal"):
                homes = layer_devices(spec.hparams, topology.devices, asked)[count - n_layers :]
                splits = (tuple(homes.count(s) for s in costs.stages),)
            elif offload.split_by is None and are_few:
                splits = every_split(n_layers, len(costs.stages))
            else:
                reserve = max(costs.arena[count - n_layers :], default=0)
                room = [max(0, limits[s] - reserve) for s in costs.stages]
                split = balanced_layers(costs, n_layers, n_cpu_moe, room)
                splits = () if split is None else (split.counts,)
            for counts in splits:
                yield Candidate(n_ctx, counts, n_cpu_moe)


def every_split(wanted: int, stages: int) -> Iterator[tuple[int, ...]]:
    """Yield every way to divide consecutive layers among stages; a stage may get none."""
    if not stages:
        yield ()
        return
    for cuts in combinations_with_replacement(range(wanted + 1), stages - 1):
        yield tuple(b - a for a, b in pairwise((0, *cuts, wanted)))


def count_splits(layers: int, stages: int) -> int:
    """Return in how many ways up to ``layers`` layers can be divided among stages."""
    if not stages:
        return 1
    return sum(comb(wanted + stages - 1, stages - 1) for wanted in range(layers + 1))


def micro_batches(n_ctx: int, step: int, *, all_logits: bool = False) -> list[BatchSize]:
    """Return micro-batches of all sizes that fill a context: of whole prompts, and decoding."""
    prompt = batch_schedule(n_ctx, 1, n_ctx=n_ctx, step=step, all_logits=all_logits)
    return [*prompt, *batch_schedule(1, n_ctx, n_ctx=n_ctx, step=1)]


Miss = tuple[Choice, Mapping[str, int]]
"""A choice, and the bytes that it lacks by device."""


def fit_reasons(
    choice: Choice,
    seconds: float,
    need: MemoryNeed,
    misses: Sequence[Miss],
    topology: Topology,
    free: Sequence[int],
    *,
    wanted: int,
) -> tuple[str, ...]:
    """Return what was chosen, what it takes, and what would have been better but lacks memory.

    Args:
        choice: What was chosen.
        seconds: Its estimate.
        need: What it takes.
        misses: What comes before it and does not fit.
        free: Bytes that are free on each device.
        wanted: The context that was wanted.
    """
    takes = ", ".join(
        f"{facts.name} {nbytes_text(need.peak[d].total)} of {nbytes_text(free[d])}"
        for d, facts in enumerate(topology.devices)
        if need.peak[d].total
    )
    lines = [
        f"fit: {choice.text()}, predicted {seconds_text(seconds)} for a micro-batch and "
        f"{DECODING_STEPS} tokens",
        f"it takes {takes}; host {nbytes_text(need.peak[HOST].total)}",
    ]
    if misses:
        other, missing = shortest([m for m in misses if m[0].n_ctx == choice.n_ctx] or misses)
        better = "faster" if other.n_ctx == choice.n_ctx else "wanted"
        lines.append(f"{better}, but too large: {other.text()} lacks {lacking_text(missing)}")
    elif choice.n_ctx == wanted:
        lines.append("nothing that fits is predicted to be faster")
    return tuple(lines)


def lacking_text(missing: Mapping[str, int], between: str = " and ") -> str:
    """Return the bytes that are missing by device, for people."""
    return between.join(f"{nbytes_text(n)} on {name}" for name, n in missing.items())


def shortest(misses: Sequence[Miss]) -> Miss:
    """Return the one that lacks least."""
    return min(misses, key=lambda miss: sum(miss[1].values()))


def shortage(
    topology: Topology, limits: Sequence[int], used: Mapping[int, int], largest: Mapping[int, int]
) -> dict[str, int]:
    """Return by device the bytes that are missing; empty if everything fits.

    Devices that share the host's memory have to fit it together, the host's own bytes included.

    Args:
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


def _planned(
    sizes: Sequence[BatchSize],
    plan: Callable[[BatchSize], Plan],
    n_devices: int,
    lacks: Callable[[Mapping[int, int], Mapping[int, int]], dict[str, int]],
) -> tuple[dict[str, int], MemoryNeed, int]:
    """Return what the plans of micro-batches lack and take, and how many of them may be kept."""
    needs: dict[BatchSize, PlanNeed] = {}

    def taken(order: Sequence[BatchSize], kept: int) -> tuple[dict[str, int], MemoryNeed, int]:
        need = add_up(order, needs, n_devices, kept)
        return lacks({d: n.total for d, n in need.peak.items()}, need.largest), need, kept

    # The largest first: what does not fit does not with them, as a rule.
    for size in sorted(set(sizes), reverse=True):
        needs[size] = plan_need(plan(size))
        found = taken([size], 1)
        if found[0]:
            return found
    for kept in _KEPT:
        found = taken(sizes, kept)
        if not found[0]:
            break
    return found
