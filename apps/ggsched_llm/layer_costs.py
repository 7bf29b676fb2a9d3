"""What the layers of a model cost and hold, by device: the estimate that ranks ways to place them.

One graph says it for all candidates, in place of a plan for each: node costs are added up by layer,
and each boundary between devices adds a hand-over. A lower bound of the bytes comes from the same
graph.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

from ggsched.ir.graph import Graph, Node
from ggsched.ir.tensor import Role
from ggsched.passes.cost.work_size import node_costs
from ggsched.topology.cost import MachineRates
from ggsched.topology.model import Topology
from ggsched_llm.batches import BatchSize
from ggsched_llm.offload import Offload, has_cpu_host, host_index, stages
from ggsched_llm.spec import ModelSpec, block_of, expert_block_of

Runs = Sequence[tuple[BatchSize, int]]
"""Micro-batches, the largest first, and how often each runs."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to place a model by layers.

    Attributes:
        n_ctx: Rows of the KV cache.
        counts: Layers of each stage, which are the last ones of the model.
        n_cpu_moe: Leading blocks whose experts stay on the host device.
    """

    n_ctx: int
    counts: tuple[int, ...] = ()
    n_cpu_moe: int = 0

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
class LayerCosts:
    """Figures by layer for one size of the context; the last layer is the output.

    Attributes:
        stages: Devices that layers are offloaded to, in order.
        host: Device of what is not offloaded.
        rest_with_first: Whether what belongs to no layer, the embedding and rotation factors, lives
            with the first layer, or else on the host device.
        seconds: By device and layer, of all runs together.
        host_experts_s: The same with the experts on the host device.
        rest_s: By device, of the nodes that belong to no layer.
        crossing_s: By pair of devices, of handing the hidden state on, perhaps to another machine.
        nbytes: Weights and caches without experts.
        expert_nbytes: Weights of experts.
        rest_nbytes: Weights that belong to no layer.
        arena: Least bytes of intermediate results on the device of a layer.
        expert_arena: The same on the device of its experts.
    """

    stages: tuple[int, ...]
    host: int
    rest_with_first: bool
    seconds: Sequence[Sequence[float]]
    host_experts_s: Sequence[Sequence[float]]
    rest_s: Sequence[float]
    crossing_s: Mapping[tuple[int, int], float]
    nbytes: Sequence[int]
    expert_nbytes: Sequence[int]
    rest_nbytes: int
    arena: Sequence[int]
    expert_arena: Sequence[int]

    def devices(self, candidate: Candidate) -> tuple[int, list[int]]:
        """Return the device where tokens enter, and that of each layer."""
        placed = [s for s, n in zip(self.stages, candidate.counts, strict=True) for _ in range(n)]
        devices = [self.host] * (len(self.nbytes) - len(placed)) + placed
        return devices[0] if self.rest_with_first else self.host, devices

    def estimate(self, candidate: Candidate) -> float:
        """Return about how many seconds the runs take."""
        before, devices = self.devices(candidate)
        seconds = self.rest_s[before]
        for layer, device in enumerate(devices):
            if device != before:
                seconds += self.crossing_s[before, device]
            before = device
            has_experts = self.expert_nbytes[layer] > 0
            if layer < candidate.n_cpu_moe and has_experts and device != self.host:
                seconds += self.crossing_s[self.host, device] + self.crossing_s[device, self.host]
                seconds += self.host_experts_s[device][layer]
            else:
                seconds += self.seconds[device][layer]
        return seconds

    def least_bytes(self, candidate: Candidate, experts_move: bool = False) -> dict[int, int]:
        """Return bytes by device that no plan of a candidate can go below.

        Args:
            experts_move: Whether what lives on the host device may be computed elsewhere.
        """
        host, (entry, devices) = self.host, self.devices(candidate)
        used, arena = dict.fromkeys((host, *self.stages), 0), dict.fromkeys((host, *self.stages), 0)
        used[entry] += self.rest_nbytes
        for layer, device in enumerate(devices):
            experts_on = host if layer < candidate.n_cpu_moe else device
            for home, nbytes, least in (
                (device, self.nbytes, self.arena),
                (experts_on, self.expert_nbytes, self.expert_arena),
            ):
                used[home] += nbytes[layer]
                if home != host or not experts_move:
                    arena[home] = max(arena[home], least[layer])
        return {d: n + arena[d] for d, n in used.items()}

    def seconds_on(self, device: int, n_cpu_moe: int) -> list[float]:
        """Return what each layer takes on a device, with the experts of leading blocks on the host.

        The first layer brings along what belongs to no layer where that lives with it.
        """
        here = [*self.host_experts_s[device][:n_cpu_moe], *self.seconds[device][n_cpu_moe:]]
        here[0] += self.rest_s[device] if self.rest_with_first else 0.0
        return here

    def nbytes_with(self, n_cpu_moe: int) -> list[int]:
        """Return the bytes of each layer, without experts of leading blocks; see ``seconds_on``."""
        nbytes = [
            own + (experts if layer >= n_cpu_moe else 0)
            for layer, (own, experts) in enumerate(
                zip(self.nbytes, self.expert_nbytes, strict=True)
            )
        ]
        nbytes[0] += self.rest_nbytes if self.rest_with_first else 0
        return nbytes


def layer_costs(
    spec: ModelSpec,
    topology: Topology,
    rates: MachineRates,
    offload: Offload,
    runs: Runs,
    n_ctx: int,
) -> LayerCosts:
    """Return the figures of a model's layers.

    Args:
        offload: Which devices may get layers.
        runs: What the seconds are of.
        n_ctx: Rows of the KV cache.
    """
    count, host = spec.hparams.n_layer + 1, host_index(topology.devices, offload)
    seconds = [[0.0] * count for _ in rates.devices]
    host_experts_s = [[0.0] * count for _ in rates.devices]
    rest_s = [0.0 for _ in rates.devices]
    graphs = [(size.graph(spec, n_ctx), times) for size, times in runs]
    for graph, times in graphs:
        costs = node_costs(rates.devices, graph)
        layer = None
        for node in graph.nodes:
            block = block_of(node.name)
            layer = count - 1 if block is None and layer is not None else block
            moves = any(expert_block_of(name) is not None for name in _sources(graph, node))
            for device, own in enumerate(costs):
                if layer is None:
                    rest_s[device] += times * own[node.id]
                    continue
                seconds[device][layer] += times * own[node.id]
                there = costs[host] if moves else own
                host_experts_s[device][layer] += times * there[node.id]
    hidden = 4 * spec.hparams.n_embd
    crossing_s = {
        (a, b): sum(times for _, times in runs)
        * (rates.devices[a].event_s + rates.devices[b].launch_s + rates.link(a, b).seconds(hidden))
        for a, b in permutations(range(len(rates.devices)), 2)
    }
    return LayerCosts(
        tuple(stages(topology.devices, offload)),
        host,
        not has_cpu_host(topology.devices, offload),
        seconds,
        host_experts_s,
        rest_s,
        crossing_s,
        *_bytes(spec, graphs[0][0]),
        *_arenas(graphs[0][0], count),
    )


def _sources(graph: Graph, node: Node) -> list[str]:
    """Return the names of the weights and states that a node reads."""
    read = (graph.tensors[t] for t in node.inputs)
    return [graph.tensors[t.storage].name for t in read if t.role in (Role.WEIGHT, Role.STATE)]


def _bytes(spec: ModelSpec, graph: Graph) -> tuple[list[int], list[int], int]:
    """Return bytes of layers without experts, of their experts, and of what belongs to none."""
    dense, experts, rest = [0] * (spec.hparams.n_layer + 1), [0] * (spec.hparams.n_layer + 1), 0
    for name in spec.weights.keys() & {root.name for root in graph.roots(Role.WEIGHT)}:
        layer, nbytes = spec.layer_of(name), spec.weights[name].nbytes
        if layer is None:
            rest += nbytes
        else:
            (dense if expert_block_of(name) is None else experts)[layer] += nbytes
    for root in graph.roots(Role.STATE):
        block = block_of(root.name)
        dense[-1 if block is None else block] += root.nbytes
    return dense, experts, rest


def _arenas(graph: Graph, layers: int) -> tuple[list[int], list[int]]:
    """Return what the arena of a layer holds at least, and that of its experts.

    Only nodes count that read a weight or a cache of the layer: they run where that lives, and the
    other operands and the result of a product are all there at once.
    """
    dense, experts = [0] * layers, [0] * layers
    for node in graph.nodes:
        names = _sources(graph, node)
        layer = next((b for b in map(block_of, names) if b is not None), None)
        if layer is None or node.op not in ("mul_mat", "mul_mat_id"):
            continue
        is_experts = any(expert_block_of(name) is not None for name in names)
        tensors = [graph.tensors[t] for t in node.tensors]
        nbytes = sum({t.storage: t.nbytes for t in tensors if t.role is Role.TEMP}.values())
        table = experts if is_experts else dense
        table[layer] = max(table[layer], nbytes)
    return dense, experts
