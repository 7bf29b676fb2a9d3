"""Place: choose the device of each node, with the reason for each choice.

The steps follow ggml's scheduler (``ggml_backend_sched_split_graph``): what is pinned first, then
whatever reads a weight goes to that weight, then assigned devices spread along the node order,
accelerators before CPUs, then single nodes move to where their neighbours are, or to the next
device where fewer bytes are copied then, and what is left goes to the first device that can do it.
Two things differ. The unit is the *storage*: every node that writes into a storage, through views
too, runs where the storage lives, so no write can be lost. And a graph input decides nothing,
because it is uploaded to whoever reads it.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from ggsched.errors import PlanError
from ggsched.ids import show
from ggsched.ir.graph import Graph
from ggsched.ir.tensor import Role
from ggsched.passes.experts.policy import ExpertPolicy
from ggsched.passes.memory.rings import Slots
from ggsched.plan.placement import Cause, Placement, PlacementChoice
from ggsched.topology.caps import op_key
from ggsched.topology.cost import MachineRates, guessed_rates
from ggsched.topology.model import Topology


@dataclass(frozen=True)
class Constraints:
    """What the caller decides beforehand.

    Attributes:
        homes: Device index for weights and states by name (and for inputs: then they are uploaded
            there and copied from there). Weights and states that are not here live where their
            first node runs. Names that a graph does not have are ignored, because one set of
            constraints serves all graphs of a model.
        pins: Device index for nodes by id.
        rates: What things cost on the machine; None for guesses by kind of device.
        experts: Whether experts are computed away from where their weights live.
        slots: Of a graph that was joined of several parts, how many buffers each boundary between
            devices has; None for as many as there are parts.
        clears: Names of states that each run fills with zeros before anything else, on the queue
            of their own device; for sequences that do not go on where the last run ended.
    """

    homes: Mapping[str, int] = field(default_factory=dict)
    pins: Mapping[int, int] = field(default_factory=dict)
    rates: MachineRates | None = None
    experts: ExpertPolicy = field(default_factory=ExpertPolicy)
    slots: Slots | None = None
    clears: frozenset[str] = frozenset()

    @cached_property
    def digest(self) -> str:
        """Hash of all homes, pins, rates, the experts' policy, slots and cleared states."""
        rates = self.rates.digest if self.rates else ""
        parts = (rates, self.experts, self.slots, sorted(self.clears))
        text = repr((sorted(self.homes.items()), sorted(self.pins.items()), *parts))
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def with_slots(self, slots: Slots) -> "Constraints":
        """Return these for a joined graph."""
        return replace(self, slots=slots)

    def rates_on(self, topology: Topology) -> MachineRates:
        """Return the rates to plan with.

        Raises:
            PlanError: the rates are those of another number of devices.
        """
        if self.rates is None:
            return guessed_rates(topology)
        if len(self.rates.devices) != len(topology.devices):
            raise PlanError(
                f"rates of {len(self.rates.devices)} devices for {len(topology.devices)}",
                hint="take rates of this topology, see ggsched.calibrate.cache.load_rates",
            )
        return self.rates


def place(graph: Graph, topology: Topology, constraints: Constraints) -> Placement:
    """Return a device for each node and a home for each storage.

    Raises:
        PlanError: a pin that no device index matches, that the device cannot honour or that
            contradicts another; a node, or a group of nodes that write one storage, that no
            device supports.
    """
    work = _Placing(graph, topology)
    _place_pinned(work, constraints)
    _place_by_weights(work, constraints)
    accelerators = [d.kind != "cpu" for d in topology.devices]
    everything = [True] * len(topology.devices)
    node_ids = range(len(graph.nodes))
    for spreads in (accelerators, everything):
        _expand(work, node_ids, spreads, "expand-down")
        _expand(work, reversed(node_ids), spreads, "expand-up")
    _upgrade(work)
    _hand_over_once(work)
    _fill(work)
    return Placement(tuple([work.choice[s] for s in work.out]), _homes(work, constraints))


class _Placing:
    """Tables that the steps share: by storage the home so far, why it is that, and who is able."""

    def __init__(self, graph: Graph, topology: Topology) -> None:
        self.graph = graph
        self.topology = topology
        tensors = graph.tensors
        self.out = [tensors[n.output].storage for n in graph.nodes]
        self.home = [-1] * len(tensors)
        self.choice: dict[int, PlacementChoice] = {}
        self.able = _able(graph, topology, self.out)

    def is_open(self) -> bool:
        return any(self.home[storage] < 0 for storage in self.out)

    def has(self, device: int) -> bool:
        return 0 <= device < len(self.topology.devices)

    def settle(self, storage: int, device: int, cause: Cause, detail: str) -> None:
        self.home[storage] = device
        self.choice[storage] = PlacementChoice(device, cause, detail)


def _able(graph: Graph, topology: Topology, out: list[int]) -> list[int]:
    """Return for each storage a bit mask of the devices that support all nodes writing it."""
    masks: dict[tuple[str, str], int] = {}
    able = [(1 << len(topology.devices)) - 1] * len(graph.tensors)
    tensors = graph.tensors
    for node, storage in zip(graph.nodes, out, strict=True):
        asked = node.op, tensors[node.inputs[0]].dtype.name
        mask = masks.get(asked)
        if mask is None:
            key = op_key(*asked)
            mask = sum(1 << i for i, d in enumerate(topology.devices) if key in d.ops)
            masks[asked] = mask
        able[storage] &= mask
        if not able[storage]:
            raise _nobody_can(graph, topology, out, storage, op_key(*asked))
    return able


def _nobody_can(
    graph: Graph, topology: Topology, out: list[int], storage: int, key: str
) -> PlanError:
    writers = [n for n, s in zip(graph.nodes, out, strict=True) if s == storage]
    names = ", ".join(d.name for d in topology.devices)
    if len(writers) == 1 or not any(key in d.ops for d in topology.devices):
        node = next(
            n for n in writers if op_key(n.op, graph.tensors[n.inputs[0]].dtype.name) == key
        )
        return PlanError(
            f"no device supports {key}",
            where=graph.label(node),
            hint=f"devices: {names}; add one that does, e.g. cpu:0",
        )
    labels = ", ".join(graph.label(n) for n in writers[:4])
    return PlanError(
        "no device supports every node that writes this storage",
        where=f"{show('tensor', storage)} {graph.tensors[storage].name!r}",
        why=f"written by {labels}",
        hint="nodes that write through a view must run where the storage lives; copy with cont()",
    )


def _no_device(device: int, where: str) -> PlanError:
    return PlanError(f"device index {device} does not exist", where=where)


def _place_pinned(work: _Placing, constraints: Constraints) -> None:
    for name, device in constraints.homes.items():
        if name not in work.graph:
            continue
        tensor = work.graph.named(name)
        if not work.has(device):
            raise _no_device(device, name)
        if tensor.role is not Role.WEIGHT:
            _pin(work, tensor.id, device, "owner", name)
    for node_id, device in constraints.pins.items():
        if not 0 <= node_id < len(work.graph.nodes):
            raise PlanError(f"pin of node {node_id}, which does not exist", where=work.graph.name)
        if not work.has(device):
            raise _no_device(device, work.graph.label(work.graph.nodes[node_id]))
        _pin(work, work.out[node_id], device, "pin", work.topology.devices[device].name)


def _pin(work: _Placing, storage: int, device: int, cause: Cause, detail: str) -> None:
    if work.home[storage] not in (-1, device) or not work.able[storage] >> device & 1:
        raise _cannot_pin(work, storage, device)
    work.settle(storage, device, cause, detail)


def _cannot_pin(work: _Placing, storage: int, device: int) -> PlanError:
    where = f"{show('tensor', storage)} {work.graph.tensors[storage].name!r}"
    name = work.topology.devices[device].name
    if work.home[storage] not in (-1, device):
        other = work.topology.devices[work.home[storage]].name
        return PlanError(
            f"pinned to {name} and to {other}", where=where, hint="remove one of the pins"
        )
    return PlanError(
        f"pinned to {name}, which does not support the nodes that write it", where=where
    )


def _place_by_weights(work: _Placing, constraints: Constraints) -> None:
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


def _expand(work: _Placing, order: Iterable[int], spreads: list[bool], cause: Cause) -> None:
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


def _upgrade(work: _Placing) -> None:
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


def _hand_over_once(work: _Placing) -> None:
    """Move nodes from the end of a device's run to the next device where fewer bytes are copied.

    A norm between two layers follows the first of them. Where the second lives elsewhere, and reads
    what is normalised as well, both are copied; with the norm on the second device one is. Between
    devices of one kind only, because a copy says nothing of what a node costs on another kind.
    """
    home, out, choice, devices = work.home, work.out, work.choice, work.topology.devices
    ends = [
        i
        for i in range(len(out) - 1)
        if home[out[i]] >= 0
        and home[out[i]] != home[out[i + 1]]
        and choice[out[i]].cause == "expand-down"
    ]
    if not ends:
        return
    reads = _Reads(work)
    for end in ends:
        there = home[out[end + 1]]
        for i in range(end, -1, -1):
            storage, here = out[i], home[out[i]]
            if here in (there, -1) or there < 0 or choice[storage].cause != "expand-down":
                break
            is_able = work.able[storage] >> there & 1 and devices[here].kind == devices[there].kind
            saved = reads.saved_by_moving(i, there) if is_able else 0
            if saved <= 0:
                break
            detail = f"{show('node', i)} saves {saved} bytes of copies"
            work.settle(storage, there, "upgrade", detail)


class _Reads:
    """Who reads which bytes of each storage."""

    def __init__(self, work: _Placing) -> None:
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

        0 where that cannot be told: a storage that is written more than once, a weight or a state
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


def _neighbours(work: _Placing) -> dict[int, list[int]]:
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


def _fill(work: _Placing) -> None:
    for storage in work.out:
        if work.home[storage] < 0:
            mask = work.able[storage]
            first = (mask & -mask).bit_length() - 1
            work.settle(storage, first, "fill", "first that supports it")


def _homes(work: _Placing, constraints: Constraints) -> dict[int, int]:
    """Return the home of each storage that needs one."""
    tensors = work.graph.tensors
    homes = {s: work.home[s] for s in work.out}
    lasting = (Role.WEIGHT, Role.STATE)
    for name, device in constraints.homes.items():
        if name not in work.graph:
            continue
        homes[work.graph.named(name).id] = device
    for node, storage in zip(work.graph.nodes, work.out, strict=True):
        for tid in node.inputs:
            t = tensors[tid]
            if t.role in lasting:
                homes.setdefault(t.storage, work.home[storage])
    for tid in work.graph.outputs:
        t = tensors[tid]
        if t.role is not Role.INPUT:
            homes.setdefault(t.storage, 0)
    for t in tensors:
        if t.role in lasting and not t.is_view:
            homes.setdefault(t.id, 0)
    return homes
