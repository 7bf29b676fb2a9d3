"""What ``--fit`` chooses from, and quick figures of each choice.

A lower bound of the bytes on each device and an estimate of the seconds come from one graph instead
of a plan for each choice.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement, pairwise
from math import comb
from typing import Final

from ggsched.ir.graph import Graph, Node
from ggsched.ir.tensor import Role
from ggsched.models.batch_schedule import BatchSize, kv_bucket
from ggsched.models.layer_cost import layer_costs, weight_nbytes
from ggsched.models.spec import ModelSpec
from ggsched.topology.cost import MachineRates

_BLOCK: Final = re.compile(r"^blk\.(\d+)\.")
_EXPERTS: Final = re.compile(r"^blk\.(\d+)\.ffn_(up|down|gate)_exps\.")
MAX_CHOICES: Final = 20_000
"""Choices that are looked at one by one; where there are more, only the best split of layers."""
DECODING_STEPS: Final = 64
"""A choice is as fast as a micro-batch of a prompt and so many tokens that follow it."""


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
        crossing_s: What it costs to hand the hidden state to another device and go on there.
    """

    nbytes: tuple[int, ...]
    expert_nbytes: tuple[int, ...]
    rest_nbytes: int
    rest_with_first: bool
    arena: tuple[int, ...]
    expert_arena: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]
    seconds_host_experts: tuple[tuple[float, ...], ...]
    crossing_s: float


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
    event_s = max(r.event_s + r.launch_s for r in rates.devices)
    link_s = max((link.seconds(hidden) for link in rates.links.values()), default=0.0)
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
        (1 + DECODING_STEPS) * (event_s + link_s),
    )


def every_split(wanted: int, stages: int) -> Iterator[tuple[int, ...]]:
    """Yield every way to divide so many consecutive layers among stages; a stage may get none."""
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
        experts_move: Whether experts on the host device may be computed elsewhere.
    """
    devices = device_of_layers(choice, stages, host, len(table.nbytes))
    entry = devices[0] if table.rest_with_first else host
    resident, arena = {entry: table.rest_nbytes}, dict.fromkeys((host, *stages), 0)
    for layer, device in enumerate(devices):
        expert_device = host if layer < choice.n_cpu_moe else device
        resident[device] = resident.get(device, 0) + table.nbytes[layer]
        resident[expert_device] = resident.get(expert_device, 0) + table.expert_nbytes[layer]
        arena[device] = max(arena[device], table.arena[layer])
        if expert_device == device or not experts_move:
            arena[expert_device] = max(arena[expert_device], table.expert_arena[layer])
    return {d: resident.get(d, 0) + arena[d] for d in arena}


def estimate(table: LayerTable, choice: FitChoice, stages: Sequence[int], host: int) -> float:
    """Return about how many seconds a micro-batch and the tokens that follow it take."""
    devices = device_of_layers(choice, stages, host, len(table.nbytes))
    seconds, crossings = 0.0, 0
    before = devices[0] if table.rest_with_first else host
    for layer, device in enumerate(devices):
        crossings += device != before
        before = device
        on_host = layer < choice.n_cpu_moe and table.expert_nbytes[layer] > 0
        if on_host and device != host:
            seconds += table.seconds_host_experts[device][layer]
            crossings += 2
        else:
            seconds += table.seconds[device][layer]
    return seconds + crossings * table.crossing_s


def _seconds(
    spec: ModelSpec,
    rates: MachineRates,
    host: int,
    runs: Sequence[tuple[Graph, int]],
    n_cpu_moe: int,
    with_embedding: bool,
) -> tuple[tuple[float, ...], ...]:
    """Return by device and layer the seconds of micro-batches, each so many times."""
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
        nbytes = weight_nbytes(weight)
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
