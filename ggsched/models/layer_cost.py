"""What each layer of a model costs on each device, and the bytes that it brings along."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

from ggsched.ir.graph import Graph
from ggsched.models.spec import ModelSpec, WeightSpec
from ggsched.passes.cost.work_size import node_cost
from ggsched.topology.cost import Rates

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
            nbytes[layer] += weight_nbytes(spec.weights[name])
    for root in graph.tensors:
        match = _LABEL.match(root.name)
        if root.role.value == "state" and not root.is_view and match:
            nbytes[int(match[1])] += root.nbytes
    return LayerCosts(tuple(tuple(row) for row in seconds), tuple(nbytes))


def weight_nbytes(weight: WeightSpec) -> int:
    """Return the bytes of a weight in the graph."""
    *outer, row = weight.shape
    return prod(outer) * weight.dtype.row_nbytes(row)


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
