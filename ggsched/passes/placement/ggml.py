"""ggml's rules: the default policy of ``make_plan``.

The steps follow ggml's scheduler (``ggml_backend_sched_split_graph``): what is pinned first, then
whatever reads a weight goes to that weight, then assigned devices spread along the node order,
accelerators before CPUs, then single nodes move to where their neighbours are, or to the next
device where fewer bytes are copied then (of small results also to the one before), and what is left
goes to the first device that can do it.
Two things differ. The unit is the storage. And a graph input decides nothing, because it is
uploaded to every device that reads it.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from ggsched.ids import show
from ggsched.ir.graph import Graph
from ggsched.ir.tensor import Role
from ggsched.passes.place import Constraints, PlacementProblem
from ggsched.passes.placement.tables import PlacementTables, finished, place_pinned
from ggsched.plan.placement import Cause, Placement
from ggsched.topology.model import Topology

SMALL_NBYTES: Final = 64 << 10
"""To copy as much as this takes about as long as to copy nothing."""


@dataclass(frozen=True, slots=True)
class GgmlRules:
    """Placement by ggml's rules: homes of weights attract nodes, and devices spread from there."""

    @property
    def key(self) -> str:
        """See ``PlacementPolicy``."""
        return "ggml"

    def place(self, problem: PlacementProblem) -> Placement:
        """See ``PlacementPolicy``."""
        return place(problem.graph, problem.topology, problem.constraints)


def place(graph: Graph, topology: Topology, constraints: Constraints) -> Placement:
    """Return a device for each node and a home for each storage.

    Raises:
        PlanError: a pin that no device index matches, that the device cannot honour or that
            contradicts another; a node, or a group of nodes that write one storage, that no
            device supports.
    """
    work = PlacementTables(graph, topology)
    place_pinned(work, constraints)
    _place_by_weights(work, constraints)
    accelerators = [d.kind != "cpu" for d in topology.devices]
    everything = [True] * len(topology.devices)
    node_ids = range(len(graph.nodes))
    for spreads in (accelerators, everything):
        _expand(work, node_ids, spreads, "expand-down")
        _expand(work, reversed(node_ids), spreads, "expand-up")
    _upgrade(work)
    _hand_over_once(work)
    _keep_small_results(work)
    _fill(work)
    return finished(work, constraints)


def _place_by_weights(work: PlacementTables, constraints: Constraints) -> None:
    tensors, homes = work.graph.tensors, constraints.homes
    if not homes:
        return
    for node, storage in zip(work.graph.nodes, work.out, strict=True):
        # As in ggml: the factors of a rotation are few, and one tensor for all layers.
        if work.home[storage] >= 0 or node.op == "rope":
            continue
        for tid in node.inputs:
            t = tensors[tid]
            if t.role is not Role.WEIGHT:
                continue
            name = tensors[t.storage].name
            device = homes.get(name, -1)
            if device >= 0 and work.able[storage] >> device & 1:
                work.settle(storage, device, "weights", name)
                break


def _expand(work: PlacementTables, order: Iterable[int], spreads: list[bool], cause: Cause) -> None:
    """Give nodes without a device that of the node before them in ``order``."""
    home, out, able = work.home, work.out, work.able
    if not work.is_open():
        return
    current, source = -1, -1
    for i in order:
        storage = out[i]
        device = home[storage]
        if device >= 0:
            current, source = (device, i) if spreads[device] else (-1, -1)
        elif current >= 0 and able[storage] >> current & 1:
            work.settle(storage, current, cause, show("node", source))


def _upgrade(work: PlacementTables) -> None:
    """Move single nodes to a device of higher priority where that saves crossings.

    Only a node at the edge of its run of nodes moves, so that no split is added; and none that
    writes a storage which others write too, because they would move along from wherever they are.
    """
    home, out, choice = work.home, work.out, work.choice
    spread = [
        (i, s)
        for i, s in enumerate(out)
        if home[s] > 0 and choice[s].cause in ("expand-down", "expand-up")
    ]
    if not spread:
        return
    neighbours = _neighbours(work)
    writers = Counter(out)
    for i, storage in spread:
        current = home[storage]
        if writers[storage] > 1:
            continue
        beside = {home[out[k]] for k in (i - 1, i + 1) if 0 <= k < len(out)}
        around = neighbours.get(storage, [])
        here = sum(1 for other in around if home[other] not in (current, -1))
        for device in sorted(beside):
            if 0 <= device < current and work.able[storage] >> device & 1:
                there = sum(1 for other in around if home[other] not in (device, -1))
                if there < here:
                    saved = f"{show('node', i)} saves {here - there} crossings"
                    work.settle(storage, device, "upgrade", saved)
                    break


def _hand_over_once(work: PlacementTables) -> None:
    """Move nodes from the end of a device's run to the next device where fewer bytes are copied.

    A norm between two layers follows the first of them. Where the second lives elsewhere, and reads
    what is normalised as well, both are copied; with the norm on the second device one is. Between
    devices of one kind only, because a copy says nothing of what a node costs on another kind.
    """
    kinds = [device.kind for device in work.topology.devices]
    _move_ends(work, "expand-down", 1, lambda s, there: kinds[work.home[s]] == kinds[there])


def _keep_small_results(work: PlacementTables) -> None:
    """Move nodes from the beginning of a device's run to the device before, to copy less.

    A layer ends with the addition of its residual. If the next layer lives on another device, that
    addition would move there, since no weight ties it to a device, and both operands would be
    copied instead of their sum. Only for small results, as in decoding, where a copy takes longer
    than the node on any device.
    """
    tensors = work.graph.tensors
    _move_ends(work, "expand-up", -1, lambda s, _: tensors[s].nbytes <= SMALL_NBYTES)


def _move_ends(
    work: PlacementTables, cause: Cause, side: int, may_move: Callable[[int, int], bool]
) -> None:
    """Move nodes that a ``cause`` placed to the neighbour, as long as fewer bytes are copied.

    ``side`` is 1 for the ends of devices' runs, -1 for the beginnings.
    """
    home, out, choice = work.home, work.out, work.choice
    ends = [
        i
        for i in (range(len(out) - 1) if side > 0 else range(1, len(out)))
        if home[out[i]] >= 0
        and home[out[i]] != home[out[i + side]]
        and choice[out[i]].cause == cause
    ]
    if not ends:
        return
    reads = _Reads(work)
    for end in ends:
        there = home[out[end + side]]
        for i in range(end, -1, -1) if side > 0 else range(end, len(out)):
            storage, here = out[i], home[out[i]]
            if here in (there, -1) or there < 0 or choice[storage].cause != cause:
                break
            is_able = work.able[storage] >> there & 1 and may_move(storage, there)
            saved = reads.saved_by_moving(i, there) if is_able else 0
            if saved <= 0:
                break
            detail = f"{show('node', i)} saves {saved} bytes of copies"
            work.settle(storage, there, "upgrade", detail)


class _Reads:
    """The readers of each storage, with the bytes that they read."""

    def __init__(self, work: PlacementTables) -> None:
        self._work = work
        self._writers = Counter(work.out)
        self._by: dict[int, list[tuple[int, int, int]]] = {}
        tensors = work.graph.tensors
        for node in work.graph.nodes:
            for tid in node.inputs:
                t = tensors[tid]
                self._by.setdefault(t.storage, []).append((node.id, t.offset, t.end))

    def saved_by_moving(self, node_id: int, there: int) -> int:
        """Return how many bytes fewer are copied with a node on another device.

        0 where that is not known: a storage that is written more than once, a weight or a state
        among the operands, or a third device.
        """
        work, tensors = self._work, self._work.graph.tensors
        storage = work.out[node_id]
        here = work.home[storage]
        operands = {tensors[t].storage for t in work.graph.nodes[node_id].inputs}
        for s in (storage, *operands):
            role = tensors[s].role
            if role is Role.INPUT and not self._writers[s] and s not in work.graph.outputs:
                continue
            if role is not Role.TEMP or self._writers[s] != 1:
                return 0
            if work.home[s] not in (here, there):
                return 0
        if {work.home[work.out[n]] for n, _, _ in self._by.get(storage, ())} - {here, there}:
            return 0
        before = sum(map(self._copied, (storage, *operands)))
        work.home[storage] = there
        after = sum(map(self._copied, (storage, *operands)))
        work.home[storage] = here
        return before - after

    def _copied(self, storage: int) -> int:
        """Return the bytes of a storage that are copied to other devices than its own."""
        work = self._work
        spans: dict[int, tuple[int, int]] = {}
        for node_id, start, end in self._by.get(storage, ()):
            device = work.home[work.out[node_id]]
            first, last = spans.get(device, (start, end))
            spans[device] = min(first, start), max(last, end)
        spans.pop(work.home[storage], None)
        return sum(end - start for start, end in spans.values())


def _neighbours(work: PlacementTables) -> dict[int, list[int]]:
    """Return for each storage the storages next to it in the data flow, written ones only."""
    tensors = work.graph.tensors
    written = set(work.out)
    around: dict[int, list[int]] = {}
    for node, storage in zip(work.graph.nodes, work.out, strict=True):
        for tid in node.inputs:
            other = tensors[tid].storage
            if other != storage and other in written:
                around.setdefault(storage, []).append(other)
                around.setdefault(other, []).append(storage)
    return around


def _fill(work: PlacementTables) -> None:
    for storage in work.out:
        if work.home[storage] < 0:
            mask = work.able[storage]
            first = (mask & -mask).bit_length() - 1
            work.settle(storage, first, "fill", "first that supports it")
