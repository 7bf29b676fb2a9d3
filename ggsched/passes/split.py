"""Split: cut the node order along devices and list the transfers that this needs.

A storage that changes while the graph runs is copied anew after each write, by counting its
*versions*; readers of one version on one device share a replica, which holds just the byte range
that they read. Where no copy path exists the bytes go through host memory in two transfers.

A policy may bring operands in a way of its own (``OperandPolicy``), as offloaded ops do.

Between devices that read each other's buffers, what one node reads once needs no replica: the node
is bound to the home. That is how summands of several devices are added up without copies.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import starmap
from typing import Final, Protocol

import msgspec

from ggsched.ir.graph import Graph
from ggsched.ir.tensor import Role
from ggsched.plan.bundle import HostSlot
from ggsched.plan.placement import Placement
from ggsched.plan.splits import HOST, Rows, Split, Splits, Transfer, Value, ValueKind
from ggsched.topology.caps import reads_peer
from ggsched.topology.model import Topology

ZERO: Final = bytes(1)


READS_ONCE: Final = frozenset({"add", "sub", "mul", "div", "scale", "cont", "concat", "cpy"})
"""Ops that read each element of their operands once, as a copy would."""


class OperandPolicy(Protocol):
    """Brings operands from other devices in a way of its own."""

    def begins(self, node: int) -> bool:
        """Whether a node begins a split for the sake of what is brought."""

    def begin(self, node: int, split_id: int) -> None:
        """Take note of the split that a node begins."""

    def bring(
        self, lowering: "Lowering", node: int, tid: int, device: int, split_id: int
    ) -> int | None:
        """Return a value on a device that holds an operand; None to leave it to the pass."""


def split(
    graph: Graph,
    topology: Topology,
    placement: Placement,
    clears: Collection[str] = (),
    *,
    peers: bool = False,
    policy: OperandPolicy | None = None,
) -> Splits:
    """Return splits, values, transfers and the binding of each operand to a value.

    Args:
        placement: Devices of nodes and storages.
        clears: Names of states that are filled with zeros before the first split.
        peers: Whether results of other devices are read where they lie, if devices can.
        policy: Brings some of the operands.
    """
    lower = Lowering(graph, topology, placement, policy, peers=peers)
    for t in graph.roots(Role.STATE):
        if t.name in clears and t.id in placement.homes:
            lower.clear(t.id)
    devices = [c.device for c in placement.choices]
    splits: list[Split] = []
    bindings: list[tuple[int, ...]] = []
    first = 0
    for i, device in enumerate(devices):
        begins = policy is not None and policy.begins(i)
        if i and (device != devices[i - 1] or begins):
            splits.append(Split(len(splits), devices[i - 1], first, i))
            first = i
        if begins and policy is not None:
            policy.begin(i, len(splits))
        bindings.append(lower.bind(i, device, len(splits)))
    if devices:
        splits.append(Split(len(splits), devices[-1], first, len(devices)))
    for tid in graph.outputs:
        lower.read_back(tid, len(splits))
    transfers = _in_program_order(lower.transfers)
    return Splits(tuple(lower.values), transfers, tuple(splits), tuple(bindings))


def input_slots(graph: Graph, splits: Splits) -> tuple[HostSlot, ...]:
    """Return where the host writes each input before a run."""
    return tuple(
        HostSlot(graph.tensors[v.storage].name, v.storage, v.id)
        for v in splits.values
        if v.kind == "input"
    )


def output_slots(graph: Graph, splits: Splits) -> tuple[HostSlot, ...]:
    """Return where each output ends up: a read-back, or the slot of an input as it is."""
    read_back = iter([v for v in splits.values if v.kind == "output"])
    input_slot = {v.storage: v for v in splits.values if v.kind == "input"}
    home = {v.storage for v in splits.values if v.kind == "home"}
    slots = []
    for tid in graph.outputs:
        t = graph.tensors[tid]
        value = next(read_back) if t.storage in home else input_slot[t.storage]
        slots.append(HostSlot(graph.tensors[t.storage].name, tid, value.id))
    return tuple(slots)


class Lowering:
    """Walks the nodes once; makes values and transfers as operands request them."""

    def __init__(
        self,
        graph: Graph,
        topology: Topology,
        placement: Placement,
        policy: OperandPolicy | None,
        *,
        peers: bool,
    ) -> None:
        self.tensors = graph.tensors
        self.readers: Mapping[tuple[int, int], int] = _readers(graph, placement) if peers else {}
        self.nodes = graph.nodes
        self.topology = topology
        self.homes = placement.homes
        self.values: list[Value] = []
        self.transfers: list[Transfer] = []
        self.version: dict[int, int] = {}
        self.home_value: dict[int, int] = {}
        self.host_value: dict[int, int] = {}
        self.replica: dict[tuple[int, int, int], int] = {}
        self.staging: dict[int, int] = {}  # by replica, where no copy path leads to it
        self.policy = policy

    def bind(self, i: int, device: int, split_id: int) -> tuple[int, ...]:
        """Return the value of each operand and of the result of node ``i``."""
        node, tensors, homes = self.nodes[i], self.tensors, self.homes
        known = self.home_value
        bound = []
        for tid in node.inputs:
            t = tensors[tid]
            storage = t.storage
            if homes.get(storage) == device:
                value = known.get(storage)
                bound.append(self.new_home(storage, split_id) if value is None else value)
            elif self.readers and self.reads_in_place(node.op, storage, device):
                bound.append(self.home(storage, split_id))
            else:
                policy = self.policy
                brought = None if policy is None else policy.bring(self, i, tid, device, split_id)
                if brought is None:
                    brought = self.remote(storage, t.offset, t.end, device, split_id)
                bound.append(brought)
        storage = tensors[node.output].storage
        value = known.get(storage)
        bound.append(self.new_home(storage, split_id) if value is None else value)
        unwritten = -1 if tensors[storage].role is Role.TEMP else 0
        self.version[storage] = self.version.get(storage, unwritten) + 1
        return tuple(bound)

    def reads_in_place(self, op: str, storage: int, device: int) -> bool:
        """Whether a node reads a result of another device without a copy."""
        home = self.homes.get(storage)
        if home is None or op not in READS_ONCE or self.readers.get((storage, device)) != 1:
            return False
        if self.tensors[storage].role is not Role.TEMP:
            return False
        facts = self.topology.devices
        return reads_peer(facts[device], facts[home])

    def home(self, storage: int, split_id: int) -> int:
        """Return the value in the storage's home."""
        value = self.home_value.get(storage)
        return self.new_home(storage, split_id) if value is None else value

    def new_home(self, storage: int, split_id: int) -> int:
        """Add the value in the storage's home, uploading an input that nodes write."""
        root, device = self.tensors[storage], self.homes[storage]
        role = root.role
        bound = root.name if role is Role.WEIGHT or role is Role.STATE else ""
        value = self.home_value[storage] = len(self.values)
        self.values.append(Value(value, "home", storage, device, 0, root.nbytes, bound))
        if role is Role.INPUT:
            self.transfer(self.host_slot(storage), value, device, split_id)
        return value

    def clear(self, storage: int) -> None:
        """Fill a state with zeros, which makes a version of it as a node does."""
        value = self.home(storage, 0)
        by = self.homes[storage]
        self.transfers.append(Transfer(len(self.transfers), value, value, by, 0, pattern=ZERO))
        self.version[storage] = self.version.get(storage, 0) + 1

    def remote(self, storage: int, start: int, end: int, device: int, split_id: int) -> int:
        """Return a replica on ``device`` that holds these bytes in their latest version."""
        key = (device, storage, self.version.get(storage, 0))
        value = self.replica.get(key)
        if value is None:
            value = self.value("replica", storage, device, start, end)
            self.replica[key] = value
            if storage in self.homes:
                self._copy(self.home(storage, split_id), value, split_id)
            else:
                self.transfer(self.host_slot(storage), value, device, split_id)
        known = self.values[value]
        if start < known.start or end > known.end:
            self._grow(value, start, end)
            if value in self.staging:
                self._grow(self.staging[value], start, end)
        return value

    def on_host(self, storage: int, start: int, end: int, split_id: int) -> int:
        """Return a value in host memory that holds these bytes in their latest version."""
        if storage not in self.homes:
            return self.host_slot(storage)
        key = (HOST, storage, self.version.get(storage, 0))
        value = self.replica.get(key)
        if value is None:
            value = self.replica[key] = self.value("staging", storage, HOST, start, end)
            self.transfer(self.home(storage, split_id), value, self.homes[storage], split_id)
        self._grow(value, start, end)
        return value

    def read_back(self, tid: int, last: int) -> None:
        """Bring an output to host memory after the last split."""
        t = self.tensors[tid]
        if t.storage not in self.homes:  # an input that nobody writes is its own output
            self.host_slot(t.storage)
            return
        source = self.home(t.storage, last)
        value = self.value("output", t.storage, HOST, t.offset, t.end)
        self.transfer(source, value, self.homes[t.storage], last)

    def _copy(self, src: int, dst: int, split_id: int) -> None:
        a, b = self.values[src].device, self.values[dst].device
        path = self.topology.copy_paths.get((a, b))
        if path is not None:
            self.transfer(src, dst, path.by, split_id)
            return
        replica = self.values[dst]
        staging = self.value("staging", replica.storage, HOST, replica.start, replica.end)
        self.staging[dst] = staging
        self.transfer(src, staging, a, split_id)
        self.transfer(staging, dst, b, split_id)

    def host_slot(self, storage: int) -> int:
        """Return the host memory that the host fills with an input before each run."""
        value = self.host_value.get(storage)
        if value is None:
            value = self.value("input", storage, HOST, 0, self.tensors[storage].nbytes)
            self.host_value[storage] = value
        return value

    def value(
        self,
        kind: ValueKind,
        storage: int,
        device: int,
        start: int,
        end: int,
        bound: str = "",
        ring: int = -1,
    ) -> int:
        """Add a value, and return its id."""
        number = len(self.values)
        self.values.append(Value(number, kind, storage, device, start, end, bound, ring))
        return number

    def _grow(self, value: int, start: int, end: int) -> None:
        v = self.values[value]
        start, end = min(v.start, start), max(v.end, end)
        self.values[value] = msgspec.structs.replace(v, start=start, end=end)

    def transfer(self, src: int, dst: int, by: int, before: int, rows: Rows | None = None) -> None:
        """Add a transfer before a split."""
        self.transfers.append(Transfer(len(self.transfers), src, dst, by, before, rows))


def _readers(graph: Graph, placement: Placement) -> Counter[tuple[int, int]]:
    """Return how many nodes of each device read each storage."""
    return Counter(
        (storage, choice.device)
        for node, choice in zip(graph.nodes, placement.choices, strict=True)
        for storage in {graph.tensors[t].storage for t in node.inputs}
    )


def _in_program_order(transfers: Sequence[Transfer]) -> tuple[Transfer, ...]:
    """Return the transfers by the split that they stand before, numbered anew."""
    ordered = sorted(transfers, key=lambda t: t.before)
    return tuple(starmap(_numbered, enumerate(ordered)))


def _numbered(number: int, transfer: Transfer) -> Transfer:
    return transfer if transfer.id == number else msgspec.structs.replace(transfer, id=number)
