"""Divides contiguous layers among devices, so that the slowest stage is as fast as can be.

In a pipeline each micro-batch passes all stages, and once it is full one micro-batch leaves in the
time of the slowest stage. Which contiguous split makes that smallest is the linear partition
problem. It is solved exactly by dynamic programming, with a cost for each pair of layer and stage,
since stages may be devices of different kinds, and with a limit of memory for each stage.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import inf
from typing import Final

from ggsched.errors import UsageError
from ggsched.ir.graph import Graph
from ggsched.passes.cost.work_size import node_cost
from ggsched.topology.cost import MachineRates, Rates
from ggsched.topology.model import Topology
from ggsched.units import seconds_text
from ggsched_llm.batches import BatchSize
from ggsched_llm.offload import Offload, has_cpu_host, host_index, span_text, stages
from ggsched_llm.spec import ModelSpec

_LABEL: Final = re.compile(r"^blk\.(\d+)\b")
_EXPERTS: Final = re.compile(r"^blk\.(\d+)\.ffn_(up|down|gate)_exps\.")


@dataclass(frozen=True, slots=True)
class LayerCosts:
    """Costs of the blocks in order and, last, of the output layer.

    Attributes:
        seconds: By device of the topology and layer.
        nbytes: Weights and caches of each layer, experts that stay on the host left out.
    """

    seconds: tuple[tuple[float, ...], ...]
    nbytes: tuple[int, ...]


def layer_costs(
    spec: ModelSpec,
    graph: Graph,
    rates: Sequence[Rates],
    host: int,
    *,
    n_cpu_moe: int = 0,
    with_embedding: bool = False,
) -> LayerCosts:
    """Return what a micro-batch costs, layer by layer.

    Args:
        spec: The model.
        graph: Of the micro-batch.
        rates: Of each device.
        host: Device of the experts of the first ``n_cpu_moe`` blocks.
        n_cpu_moe: Leading blocks whose experts stay on the host device.
        with_embedding: Whether the first block brings along what belongs to no layer: the lookup
            and the bytes of an embedding that is not the output matrix, and rotation factors.
    """
    layers = spec.hparams.n_layer + 1
    seconds = [[0.0] * layers for _ in rates]
    for node_id, layer in _layer_of_nodes(graph, layers, with_embedding and not spec.is_tied):
        node = graph.nodes[node_id]
        weight = _expert_block(graph, node_id)
        stays = weight is not None and weight < n_cpu_moe
        for device, row in enumerate(seconds):
            row[layer] += node_cost(rates[host if stays else device], graph, node)
    nbytes = [0] * layers
    for name, layer in _layer_of_tensors(spec, layers, with_embedding):
        match = _EXPERTS.match(name)
        if match is None or int(match[1]) >= n_cpu_moe:
            nbytes[layer] += spec.weights[name].nbytes
    for root in graph.tensors:
        match = _LABEL.match(root.name)
        if root.role.value == "state" and not root.is_view and match:
            nbytes[int(match[1])] += root.nbytes
    return LayerCosts(tuple(tuple(row) for row in seconds), tuple(nbytes))


def _layer_of_nodes(graph: Graph, layers: int, with_embedding: bool) -> list[tuple[int, int]]:
    """Return the layer of each node; those before the first block count for it or for none."""
    found: list[tuple[int, int]] = []
    seen_a_block = False
    for node in graph.nodes:
        match = _LABEL.match(node.name)
        if match:
            seen_a_block = True
            found.append((node.id, int(match[1])))
        elif seen_a_block:
            found.append((node.id, layers - 1))
        elif with_embedding:
            found.append((node.id, 0))
    return found


def _expert_block(graph: Graph, node_id: int) -> int | None:
    """Return the block of a node that reads experts."""
    for tid in graph.nodes[node_id].inputs:
        match = _EXPERTS.match(graph.tensors[graph.tensors[tid].storage].name)
        if match:
            return int(match[1])
    return None


def _layer_of_tensors(spec: ModelSpec, layers: int, with_embedding: bool) -> list[tuple[str, int]]:
    """Return the layer of each weight that moves with a layer."""
    found = []
    for name in spec.weights:
        match = _LABEL.match(name)
        if match:
            found.append((name, int(match[1])))
        elif name.startswith("output") or (spec.is_tied and name == "token_embd.weight"):
            found.append((name, layers - 1))
        elif with_embedding:
            found.append((name, 0))
    return found


@dataclass(frozen=True, slots=True)
class LayerSplit:
    """How many layers each stage gets, in order.

    Attributes:
        counts: Layers of each stage; a stage may be empty.
        slowest: Cost of the most expensive stage.
        total: Cost of all stages.
        reasons: Why each stage has its layers, for people.
    """

    counts: tuple[int, ...]
    slowest: float
    total: float
    reasons: tuple[str, ...] = field(default=(), compare=False)


def split_layers(
    costs: Sequence[Sequence[float]],
    nbytes: Sequence[int] = (),
    limits: Sequence[int | None] = (),
) -> LayerSplit | None:
    """Return the split with the cheapest slowest stage, or None where no split fits.

    Of several one is taken whose first stages are the best, and then the cheapest, for the layers
    that they have.

    Args:
        costs: By stage and layer, 0 or more.
        nbytes: Bytes of each layer; none count if not given.
        limits: Bytes that each stage has room for, None for any number.
    """
    stages, layers = len(costs), len(costs[0]) if costs else 0
    if not stages:
        return None
    sums = [[0.0, *accumulate(row)] for row in costs]
    sizes = [0, *accumulate(nbytes or [0] * layers)]
    room = [None] * stages if not limits else list(limits)
    # best[i]: the best (slowest, total) of the stages so far with the first i layers.
    best: list[tuple[float, float]] = [(0.0, 0.0)] + [(inf, inf)] * layers
    cuts: list[list[int]] = []
    for stage in range(stages):
        limit = room[stage]
        found: list[tuple[float, float]] = []
        cut: list[int] = []
        for end in range(layers + 1):
            choice, at = (inf, inf), 0
            for start in range(end + 1):
                if best[start][0] == inf:
                    continue
                if limit is not None and sizes[end] - sizes[start] > limit:
                    continue
                cost = sums[stage][end] - sums[stage][start]
                slowest, total = best[start]
                candidate = max(slowest, cost), total + cost
                if candidate < choice:
                    choice, at = candidate, start
            found.append(choice)
            cut.append(at)
        best = found
        cuts.append(cut)
    if best[layers][0] == inf:
        return None
    counts, end = [0] * stages, layers
    for stage in reversed(range(stages)):
        counts[stage] = end - cuts[stage][end]
        end = cuts[stage][end]
    return LayerSplit(tuple(counts), *best[layers])


def balanced_layers(
    spec: ModelSpec,
    topology: Topology,
    rates: MachineRates,
    offload: Offload,
    size: BatchSize,
    *,
    n_ctx: int,
    limits: Sequence[int | None] = (),
) -> LayerSplit:
    """Return how many of the offloaded layers each stage gets, so that the slowest is fastest.

    Args:
        spec: The model.
        topology: The machine.
        rates: Of the machine.
        offload: Which layers are offloaded, and whose experts stay on the host.
        size: The micro-batch that is balanced for.
        n_ctx: Rows of the KV cache.
        limits: Bytes of weights and caches that each stage has room for, None for any number.

    Raises:
        UsageError: there is nothing to divide among, or no split fits.
    """
    targets = stages(topology.devices, offload)
    if not targets:
        names = ", ".join(d.name for d in topology.devices)
        raise UsageError(
            "there are no devices to divide layers among",
            why=f"devices: {names}",
            hint="name several in --devices",
        )
    host = host_index(topology.devices, offload)
    graph = size.graph(spec, n_ctx)
    costs = layer_costs(
        spec,
        graph,
        rates.devices,
        host,
        n_cpu_moe=offload.n_cpu_moe,
        with_embedding=not has_cpu_host(topology.devices, offload),
    )
    layers = spec.hparams.n_layer + 1
    wanted = layers if offload.n_gpu_layers is None else min(layers, offload.n_gpu_layers)
    first = layers - wanted
    found = split_layers([costs.seconds[t][first:] for t in targets], costs.nbytes[first:], limits)
    if found is None:
        raise UsageError(
            f"no split of {wanted} layers fits {len(targets)} devices",
            hint="offload fewer layers (-ngl), or let --fit choose",
        )
    return replace(
        found, reasons=_reasons(found.counts, costs, targets, first, limits, size.n_tokens)
    )


def _reasons(
    counts: Sequence[int],
    costs: LayerCosts,
    targets: Sequence[int],
    first: int,
    limits: Sequence[int | None],
    n_tokens: int,
) -> tuple[str, ...]:
    """Say what each stage takes, and what it would take with a neighbour's nearest layer."""
    layers = len(costs.nbytes)
    ends = [first + end for end in accumulate(counts)]
    spans = [range(end - count, end) for end, count in zip(ends, counts, strict=True)]

    def text(stage: int, *more: int) -> str:
        own = (*spans[stage], *more)
        limit = limits[stage] if limits else None
        if limit is not None and sum(costs.nbytes[i] for i in own) > limit:
            return "has no room"
        took = seconds_text(sum(costs.seconds[targets[stage]][i] for i in own))
        return f"would take {took}" if more else took

    reasons = []
    for k, own in enumerate(spans):
        said = f"{text(k)} predicted for {n_tokens} tokens"
        if k and own:
            nearest = span_text(own[0], own[0], layers - 1)
            said += f"; with {nearest} stage {k} {text(k - 1, own[0])}"
        if own and own[-1] + 1 < layers:
            behind = own[-1] + 1
            nearest = span_text(behind, behind, layers - 1)
            said += f"; with {nearest} this one {text(k, behind)}"
        reasons.append(said)
    return tuple(reasons)
