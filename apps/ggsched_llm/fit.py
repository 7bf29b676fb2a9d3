"""``--fit``: how to spread a model so that it fits the memory that is free, the fastest way first.

Every choice (layers on accelerators and how they are divided, experts on the host, the context)
gets an estimate of its seconds and a lower bound of its bytes, which come from one graph instead of
a plan for each choice. In the order of the estimates, those that are not ruled out are checked with
real plans, until one fits to the byte. So nothing that fits is missed, and few plans are made. The
context is kept as long as anything fits with it.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement, pairwise, permutations
from math import comb
from typing import Final

from ggsched.errors import OutOfDeviceMemory
from ggsched.ir.graph import Graph, Node
from ggsched.ir.tensor import Role
from ggsched.plan.bundle import Plan
from ggsched.plan.splits import HOST
from ggsched.topology.cost import MachineRates
from ggsched.topology.model import Topology
from ggsched.units import nbytes_text, seconds_text
from ggsched_llm.batches import BatchSize, batch_schedule, kv_bucket
from ggsched_llm.memory_need import MemoryNeed, PlanNeed, add_up, plan_need
from ggsched_llm.offload import (
    Homes,
    Offload,
    find_homes,
    has_cpu_host,
    host_index,
    layer_devices,
    stages,
)
from ggsched_llm.spec import ModelSpec
from ggsched_llm.stage_balance import layer_costs, split_layers

_BLOCK: Final = re.compile(r"^blk\.(\d+)\.")
_EXPERTS: Final = re.compile(r"^blk\.(\d+)\.ffn_(up|down|gate)_exps\.")
MAX_CHOICES: Final = 20_000
"""Choices that are looked at one by one; where there are more, only the best split of layers."""
DECODING_STEPS: Final = 64
"""A choice is as fast as a micro-batch of a prompt and a number of tokens that follow it."""


@dataclass(frozen=True, slots=True)
class FitChoice:
    """One way to spread a model.

    Attributes:
        n_ctx: Rows of the KV cache.
        counts: Layers of each stage, which are the last ones of the model.
        n_cpu_moe: Leading blocks whose experts stay on the host device.
    """

    n_ctx: int
    counts: tuple[int, ...]
    n_cpu_moe: int

    @property
    def n_gpu_layers(self) -> int:
        """Layers that are offloaded."""
        return sum(self.counts)

    def text(self) -> str:
        """Return it as options, e.g. ``-ngl 12 --n-cpu-moe 3 -c 4096``."""
        words = [f"-ngl {self.n_gpu_layers}"] if self.counts else []
        if len(self.counts) > 1 and self.n_gpu_layers:
            words.append(f"({' + '.join(map(str, self.counts))} layers)")
        if self.n_cpu_moe:
            words.append(f"--n-cpu-moe {self.n_cpu_moe}")
        return " ".join([*words, f"-c {self.n_ctx}"])


@dataclass(frozen=True, slots=True)
class LayerTable:
    """Figures by layer for one size of the context; the last layer is the output.

    Attributes:
        nbytes: Weights and caches without experts.
        expert_nbytes: Experts.
        rest_nbytes: What belongs to no layer: the embedding and rotation factors.
        rest_with_first: Whether that lives with the first layer, or else on the host device.
        arena: Bytes of intermediate results that a device needs at least for a layer.
        expert_arena: The same for the products with its experts.
        seconds: By device and layer, experts and all, of what ``DECODING_STEPS`` says.
        seconds_host_experts: The same with the experts on the host device.
        crossing_s: By pair of devices what it costs to hand the hidden state on, to another machine
            perhaps, and go on there.
    """

    nbytes: tuple[int, ...]
    expert_nbytes: tuple[int, ...]
    rest_nbytes: int
    rest_with_first: bool
    arena: tuple[int, ...]
    expert_arena: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]
    seconds_host_experts: tuple[tuple[float, ...], ...]
    crossing_s: Mapping[tuple[int, int], float]


def layer_table(
    spec: ModelSpec,
    rates: MachineRates,
    host: int,
    n_ctx: int,
    step: int,
    *,
    rest_with_first: bool = False,
) -> LayerTable:
    """Return the figures of a model's layers.

    Args:
        spec: The model.
        rates: Of the machine.
        host: Device of what is not offloaded.
        n_ctx: Rows of the KV cache.
        step: Tokens of one micro-batch at most.
        rest_with_first: See ``LayerTable``.
    """
    layers = spec.hparams.n_layer + 1
    tokens = min(step, n_ctx)
    largest = BatchSize(tokens, n_ctx, 1).graph(spec, n_ctx)
    runs = (
        (BatchSize(tokens, kv_bucket(tokens, n_ctx), 1).graph(spec, n_ctx), 1),
        (BatchSize(1, kv_bucket(min(n_ctx, 512), n_ctx), 1).graph(spec, n_ctx), DECODING_STEPS),
    )
    with_experts, without = (
        _seconds(spec, rates, host, runs, n, rest_with_first) for n in (0, layers)
    )
    hidden = 4 * spec.hparams.n_embd
    crossing_s = {
        (a, b): (1 + DECODING_STEPS)
        * (rates.devices[a].event_s + rates.devices[b].launch_s + rates.link(a, b).seconds(hidden))
        for a, b in permutations(range(len(rates.devices)), 2)
    }
    dense, experts, rest = _bytes(spec, largest)
    arena, expert_arena = _arenas(largest, layers)
    return LayerTable(
        dense,
        experts,
        rest,
        rest_with_first,
        arena,
        expert_arena,
        with_experts,
        without,
        crossing_s,
    )


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


def device_of_layers(choice: FitChoice, stages: Sequence[int], host: int, layers: int) -> list[int]:
    """Return the device of each layer."""
    offloaded = [s for s, count in zip(stages, choice.counts, strict=True) for _ in range(count)]
    return [host] * (layers - len(offloaded)) + offloaded


def least_bytes(
    table: LayerTable,
    choice: FitChoice,
    stages: Sequence[int],
    host: int,
    *,
    experts_move: bool = False,
) -> dict[int, int]:
    """Return bytes by device that no plan of this choice can go below.

    Args:
        table: Figures of the layers.
        choice: The choice.
        stages: Devices that layers go to.
        host: Device of what is not offloaded.
        experts_move: Whether what lives on the host device may be computed elsewhere.
    """
    devices = device_of_layers(choice, stages, host, len(table.nbytes))
    entry = devices[0] if table.rest_with_first else host
    resident, arena = {entry: table.rest_nbytes}, dict.fromkeys((host, *stages), 0)
    for layer, device in enumerate(devices):
        expert_device = host if layer < choice.n_cpu_moe else device
        resident[device] = resident.get(device, 0) + table.nbytes[layer]
        resident[expert_device] = resident.get(expert_device, 0) + table.expert_nbytes[layer]
        if device != host or not experts_move:
            arena[device] = max(arena[device], table.arena[layer])
        if expert_device != host or not experts_move:
            arena[expert_device] = max(arena[expert_device], table.expert_arena[layer])
    return {d: resident.get(d, 0) + arena[d] for d in arena}


def estimate(table: LayerTable, choice: FitChoice, stages: Sequence[int], host: int) -> float:
    """Return about how many seconds a micro-batch and the tokens that follow it take."""
    devices = device_of_layers(choice, stages, host, len(table.nbytes))
    seconds = 0.0
    before = devices[0] if table.rest_with_first else host
    for layer, device in enumerate(devices):
        if device != before:
            seconds += table.crossing_s[before, device]
        before = device
        on_host = layer < choice.n_cpu_moe and table.expert_nbytes[layer] > 0
        if on_host and device != host:
            seconds += table.seconds_host_experts[device][layer]
            seconds += table.crossing_s[host, device] + table.crossing_s[device, host]
        else:
            seconds += table.seconds[device][layer]
    return seconds


def _seconds(
    spec: ModelSpec,
    rates: MachineRates,
    host: int,
    runs: Sequence[tuple[Graph, int]],
    n_cpu_moe: int,
    with_embedding: bool,
) -> tuple[tuple[float, ...], ...]:
    """Return by device and layer the seconds of micro-batches, each a number of times."""
    total = [[0.0] * (spec.hparams.n_layer + 1) for _ in rates.devices]
    for graph, times in runs:
        costs = layer_costs(
            spec, graph, rates.devices, host, n_cpu_moe=n_cpu_moe, with_embedding=with_embedding
        )
        for row, more in zip(total, costs.seconds, strict=True):
            for layer, seconds in enumerate(more):
                row[layer] += times * seconds
    return tuple(tuple(row) for row in total)


def _bytes(spec: ModelSpec, graph: Graph) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Return bytes of layers without experts, of their experts, and of what belongs to none."""
    layers = spec.hparams.n_layer + 1
    dense, experts, rest = [0] * layers, [0] * layers, 0
    for name, weight in spec.weights.items():
        if name not in graph:
            continue
        match = _BLOCK.match(name)
        nbytes = weight.nbytes
        if _EXPERTS.match(name) and match:
            experts[int(match[1])] += nbytes
        elif match:
            dense[int(match[1])] += nbytes
        elif name.startswith("output") or (spec.is_tied and name == "token_embd.weight"):
            dense[-1] += nbytes
        else:
            rest += nbytes
    for root in graph.roots(Role.STATE):
        match = _BLOCK.match(root.name)
        dense[int(match[1]) if match else -1] += root.nbytes
    return tuple(dense), tuple(experts), rest


def _arenas(graph: Graph, layers: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return what the arena of a layer holds at least, and that of its experts.

    Only nodes count that read a weight or a cache of the layer: they run where that lives, and the
    other operands and the result of a product are all there at once.
    """
    dense, experts = [0] * layers, [0] * layers
    for node in graph.nodes:
        names = [
            graph.tensors[graph.tensors[t].storage].name
            for t in node.inputs
            if graph.tensors[t].role in (Role.WEIGHT, Role.STATE)
        ]
        match = next((m for m in map(_BLOCK.match, names) if m), None)
        if match is None or node.op not in ("mul_mat", "mul_mat_id"):
            continue
        table = experts if any(_EXPERTS.match(n) for n in names) else dense
        layer = int(match[1])
        table[layer] = max(table[layer], _at_once(graph, node))
    return tuple(dense), tuple(experts)


def _at_once(graph: Graph, node: Node) -> int:
    tensors = [graph.tensors[t] for t in node.tensors]
    held = {t.storage: t.nbytes for t in tensors if t.role is Role.TEMP}
    return sum(held.values())


Miss = tuple[FitChoice, Mapping[str, int]]
"""A choice, and the bytes that it lacks by device."""


def fit_reasons(
    choice: FitChoice,
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
        topology: The machine.
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
        lacking = " and ".join(f"{nbytes_text(n)} on {name}" for name, n in missing.items())
        better = "faster" if other.n_ctx == choice.n_ctx else "wanted"
        lines.append(f"{better}, but too large: {other.text()} lacks {lacking}")
    elif choice.n_ctx == wanted:
        lines.append("nothing that fits is predicted to be faster")
    return tuple(lines)


def shortest(misses: Sequence[Miss]) -> Miss:
    """Return the one that lacks least."""
    return min(misses, key=lambda miss: sum(miss[1].values()))


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
    prompt = batch_schedule(n_ctx, 1, n_ctx=n_ctx, step=step, all_logits=all_logits)
    return [*prompt, *batch_schedule(1, n_ctx, n_ctx=n_ctx, step=1)]


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
        lacking = ", ".join(f"{nbytes_text(n)} on {name}" for name, n in missing.items())
        return OutOfDeviceMemory(
            "no way to spread the model fits",
            where="--fit",
            why=f"{choice.text()} comes closest and lacks {lacking}",
            hint="take a smaller -ub, a smaller --fit-margin or more devices",
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
        """Yield the ways to divide layers: as it was requested, else all, or the best of many."""
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
