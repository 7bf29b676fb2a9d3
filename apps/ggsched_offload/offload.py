"""Offload: compute experts where their weights lie, or where the rest of the block is?

For each block (see ``experts``) both are predicted: here with activations that cross to the weights
and results that cross back, there with weights that cross. That is the choice of Fiddler (Kamahori
et al., arXiv 2402.07033), by measured rates, and for whole blocks instead of single experts.

Weights can cross in two ways. The *rows* that the router chose, once it has chosen: then the host
reads the ids, so nothing can be copied before the layer's own router ran. Or the whole *layer*,
which needs no ids and can be copied while earlier layers compute, as far as the staging ring
reaches; what is not hidden behind computing is counted. That moves rows that nobody chooses, so it
is considered only where nearly all are expected to be chosen: with many tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from msgspec.structs import replace

from ggsched.errors import PlanError
from ggsched.flags import HOMES, flag, read_size
from ggsched.ir.graph import Graph
from ggsched.ir.tensor import Role
from ggsched.passes.cost.work_size import expected_rows, node_cost
from ggsched.plan.placement import OpOffload, Placement, PlacementChoice
from ggsched.topology.cost import HOST, Link, MachineRates
from ggsched.topology.model import Topology
from ggsched.units import seconds_text
from ggsched_offload.find import DENSE, OffloadBlock, chosen_rows, find_blocks
from ggsched_offload.transfers import OffloadTransfers

_NEARLY_ALL: Final = 0.75
"""From this share of rows on that are expected to be chosen, copying all of them is considered."""

_SHARE_OF_REST: Final = 0.5
"""Of a device's memory beside weights and states; what is left is for results and other plans."""

_NO_COPY: Final = Link(0.0, 1.0)


OffloadWhen = Literal["off", "auto", "on"]


@dataclass(frozen=True, slots=True)
class ExpertPolicy:
    """Whether experts and layers are computed away from their weights, and with how much memory.

    Attributes:
        offload: ``off``: never. ``auto``: where that is predicted to be faster. ``on``: wherever
            it is possible.
        ring: Buffers on the computing device, each for the weights of one block.
        cache_nbytes: Memory for rows that stay on the computing device between runs, shared
            evenly by all blocks.
    """

    offload: OffloadWhen = flag(
        "off", "--op-offload", ("auto", "on", "off"),
        "Compute layers and experts of the CPU on the accelerator, to which their weights are "
        "copied, of experts those that the router chose: where that is predicted to be faster, "
        "wherever it is possible, or never.",
        param="op_offload", heading=HOMES, unset="auto",
    )  # fmt: skip
    ring: int = flag(
        1, "--expert-staging-buffers", 1,
        "Buffers on the accelerator, each for the weights of one block; from 2 on the weights of "
        "whole blocks are copied while earlier ones compute, where that is faster.",
        param="expert_staging_buffers", heading=HOMES, unset=2, old="--expert-ring",
    )  # fmt: skip
    cache_nbytes: int = flag(
        0, "--expert-cache", read_size,
        "Memory on the accelerator for experts that were chosen before, e.g. 512MiB. [default: 0]",
        param="expert_cache", heading=HOMES, metavar="BYTES",
    )  # fmt: skip

    def __post_init__(self) -> None:
        if self.ring < 1 or self.cache_nbytes < 0:
            raise PlanError(
                f"a ring of {self.ring} and a cache of {self.cache_nbytes} bytes",
                where="experts",
                why="a ring has at least one buffer, and a cache 0 bytes or more",
            )

    def place(
        self, graph: Graph, topology: Topology, placement: Placement, rates: MachineRates
    ) -> Placement:
        """Return the placement with experts moved to where they are predicted to be faster.

        All blocks that could move are noted in it, with the seconds of both.
        """
        blocks = find_blocks(graph, topology, placement) if self.offload != "off" else ()
        if not blocks:
            return placement
        cached = _cached_rows(graph, blocks, self.cache_nbytes)
        ends = frozenset(block.end - 1 for block in blocks)
        rest = _rest(graph, topology, placement)
        weigher = _Weigher(graph, topology, placement, self, rates, _readers(graph), ends, rest)
        offloads = [weigher.weigh(block, cached.get(block.there, 0)) for block in blocks]
        return _moved(graph, placement, _in_slots(offloads, self.ring))

    def transfers(
        self, graph: Graph, topology: Topology, placement: Placement
    ) -> OffloadTransfers | None:
        """Return what brings weights to what was moved; None where nothing was."""
        return OffloadTransfers(graph, topology, placement) if placement.offloads else None


def _rest(graph: Graph, topology: Topology, placement: Placement) -> list[int]:
    """Return how much memory of each device the weights and states of a graph leave."""
    rest = [facts.memory_nbytes for facts in topology.devices]
    for t in graph.tensors:
        if t.role in (Role.WEIGHT, Role.STATE) and not t.is_view and t.id in placement.homes:
            rest[placement.homes[t.id]] -= t.nbytes
    return rest


def _readers(graph: Graph) -> dict[int, list[int]]:
    """Return for each storage the nodes that read it."""
    readers: dict[int, list[int]] = {}
    for node in graph.nodes:
        for tid in node.inputs:
            readers.setdefault(graph.tensors[tid].storage, []).append(node.id)
    return readers


@dataclass(frozen=True, slots=True)
class _Weigher:
    graph: Graph
    topology: Topology
    placement: Placement
    policy: ExpertPolicy
    rates: MachineRates
    readers: Mapping[int, Sequence[int]]
    ends: frozenset[int]
    """Last nodes of all blocks."""
    rest: Sequence[int]
    """Bytes of each device that no weight and no state has."""

    def weigh(self, block: OffloadBlock, cached: int) -> OpOffload:
        """Return what is predicted for a block, and which way is better."""
        here_s = self._compute(block, block.here) + self._crossings(block, block.here)
        away_s = self._compute(block, block.there) + self._crossings(block, block.there)
        way, copies_s = self._copies(block, cached)
        there_s = away_s + copies_s
        is_taken = self.policy.offload == "on" or (there_s < here_s and self._has_room(block))
        kept = cached if way == "rows" else 0
        return OpOffload(
            block.first,
            block.end,
            block.ids,
            block.here,
            block.there,
            here_s,
            there_s,
            way,
            is_taken,
            cached=kept,
        )

    def _has_room(self, block: OffloadBlock) -> bool:
        """Whether the staging ring takes no more than a part of what the device has left."""
        tensors = self.graph.tensors
        nbytes = sum(tensors[w].nbytes for w in block.weights)
        return self.policy.ring * nbytes <= _SHARE_OF_REST * self.rest[block.there]

    def _copies(self, block: OffloadBlock, cached: int) -> tuple[Literal["rows", "layer"], float]:
        """Return the better way to copy the weights, and its seconds."""
        layer_s = self._layer(block)
        if block.ids == DENSE:
            return "layer", layer_s
        ids = self.graph.tensors[block.ids]
        rows_s = self._ids_known(block) + self._rows(block, ids.size, cached)
        if self._may_go_ahead(block, ids.size) and layer_s < rows_s:
            return "layer", layer_s
        return "rows", rows_s

    def _may_go_ahead(self, block: OffloadBlock, draws: int) -> bool:
        """Whether the whole layer can be copied before its router ran, without much for nothing."""
        has_path = (block.here, block.there) in self.topology.copy_paths
        counts = [self.graph.tensors[w].shape[0] for w in block.weights]
        used = all(expected_rows(n, draws) >= _NEARLY_ALL * n for n in counts)
        return has_path and used and self.policy.ring > 1

    def _compute(self, block: OffloadBlock, device: int) -> float:
        rates, nodes = self.rates.devices[device], self.graph.nodes[block.first : block.end]
        return rates.launch_s + sum(node_cost(rates, self.graph, node) for node in nodes)

    def _crossings(self, block: OffloadBlock, device: int) -> float:
        """Return the seconds of activations that enter and leave the block on other devices."""
        tensors, homes = self.graph.tensors, self.placement.homes
        nodes = self.graph.nodes[block.first : block.end]
        made = {tensors[node.output].storage for node in nodes}
        known = made.union(block.weights)
        entering: dict[int, int] = {}
        for node in nodes:
            for t in (tensors[tid] for tid in node.inputs):
                if t.storage not in known:
                    entering[t.storage] = max(entering.get(t.storage, 0), t.nbytes)
        leaving: dict[int, tuple[int, int]] = {}
        for storage in made:
            for i in self.readers.get(storage, ()):
                if not block.first <= i < block.end:
                    leaving[storage] = self.placement.choices[i].device, tensors[storage].nbytes
        total = 0.0
        for storage, nbytes in entering.items():
            total += self._crossing(homes.get(storage, HOST), device, nbytes)
        for to, nbytes in leaving.values():
            total += self._crossing(device, to, nbytes)
        return total

    def _crossing(self, src: int, dst: int, nbytes: int) -> float:
        if src == dst:
            return 0.0
        recorder = dst if src == HOST else src
        return self._link(src, dst).seconds(nbytes) + self.rates.devices[recorder].event_s

    def _link(self, src: int, dst: int) -> Link:
        return _NO_COPY if src == dst else self.rates.link(src, dst)

    def _ids_known(self, block: OffloadBlock) -> float:
        """Return the seconds until the host has the ids."""
        ids = self.graph.tensors[block.ids]
        home = self.placement.homes.get(ids.storage)
        return 0.0 if home is None else self._crossing(home, HOST, ids.nbytes)

    def _rows(self, block: OffloadBlock, draws: int, cached: int) -> float:
        """Return the seconds of the rows that are expected to be chosen and not to be cached."""
        link, total = self._weights_link(block), 0.0
        for weight in block.weights:
            t = self.graph.tensors[weight]
            count = t.shape[0]
            missing = expected_rows(count, draws) * (1.0 - min(1.0, cached / count))
            copies = missing * (1.0 - missing / count) + 1.0  # runs of neighbours
            total += copies * link.latency_s + missing * t.strides[0] / link.bandwidth
        return total

    def _layer(self, block: OffloadBlock) -> float:
        """Return the seconds of whole weights that computing since the block before cannot hide."""
        link = self._weights_link(block)
        total = sum(link.seconds(self.graph.tensors[w].nbytes) for w in block.weights)
        return max(0.0, total - self._since_block_before(block)) if self.policy.ring > 1 else total

    def _weights_link(self, block: OffloadBlock) -> Link:
        if (block.here, block.there) in self.topology.copy_paths:
            return self.rates.link(block.here, block.there)
        return self.rates.link(HOST, block.there)

    def _since_block_before(self, block: OffloadBlock) -> float:
        """Return the seconds that pass on the block's device between two such blocks."""
        rates, seconds = self.rates.devices[block.there], self._compute(block, block.there)
        for i in range(block.first - 1, -1, -1):
            node = self.graph.nodes[i]
            if i in self.ends or chosen_rows(self.graph, node) is not None:
                return seconds
            if self.placement.choices[i].device == block.there:
                seconds += node_cost(rates, self.graph, node)
        return 0.0  # before the first block there is nothing to hide behind


def _cached_rows(graph: Graph, blocks: Sequence[OffloadBlock], nbytes: int) -> dict[int, int]:
    """Return by device how many rows of each weight a cache of a number of bytes keeps.

    All weights of blocks that could move share it evenly, each counted once however many
    decisions take rows of it, so that it is the same for each batch.
    """
    weights: dict[int, set[int]] = {}
    for block in blocks:
        if block.ids != DENSE:
            weights.setdefault(block.there, set()).update(block.weights)
    cached: dict[int, int] = {}
    for there, known in weights.items():
        tensors = [graph.tensors[w] for w in known]
        row_nbytes = sum(t.strides[0] for t in tensors)
        cached[there] = min(nbytes // row_nbytes, *(t.shape[0] for t in tensors))
    return cached


def _in_slots(offloads: Sequence[OpOffload], ring: int) -> list[OpOffload]:
    """Give the taken ones slots of their device's ring, and layers a start as early as it allows.

    A layer's copies begin behind the last reader of its slot in program order.
    """
    out, count = [], dict[int, int]()
    for o in offloads:
        if o.is_taken:
            number = count.get(o.there, 0)
            count[o.there] = number + 1
            ahead = min(number + 1, ring - 1) if o.way == "layer" else 0
            o = _with(o, number % ring, ahead)
        out.append(o)
    return out


def _with(o: OpOffload, slot: int, ahead: int) -> OpOffload:
    return OpOffload(
        o.first, o.end, o.ids, o.here, o.there, o.here_s, o.there_s, o.way, True, slot, ahead,
        o.cached,
    )  # fmt: skip


def _moved(graph: Graph, placement: Placement, offloads: Sequence[OpOffload]) -> Placement:
    choices, homes = list(placement.choices), dict(placement.homes)
    for o in offloads:
        if o.is_taken:
            for i in range(o.first, o.end):
                choices[i] = PlacementChoice(o.there, "offload", _why(o))
                homes[graph.tensors[graph.nodes[i].output].storage] = o.there
    return replace(placement, choices=tuple(choices), homes=homes, offloads=tuple(offloads))


def _why(o: OpOffload) -> str:
    return f"{o.way} in {seconds_text(o.there_s)}, on the weights' device {seconds_text(o.here_s)}"
