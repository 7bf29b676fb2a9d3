"""Where nodes run: what the caller decides, and the policy that decides the rest.

    plan = make_plan(graph, topology, constraints, placement=CostBased())

A policy is an object with a ``key`` and a method ``place``. ``ggsched.passes.placement`` has ggml's
rules (the default of ``make_plan``), pins by pattern, a search by predicted cost, and one that
chooses among these (the default of ``Scheduler``). Constraints bind every policy: a placement that
does not keep them is refused.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

from ggsched.errors import PlanError
from ggsched.ids import show
from ggsched.ir.graph import Graph
from ggsched.passes.memory.rings import Slots
from ggsched.passes.split import OperandPolicy
from ggsched.plan.placement import Placement
from ggsched.topology.caps import lacking
from ggsched.topology.cost import MachineRates, guessed_rates
from ggsched.topology.model import Topology


@dataclass(frozen=True)
class Constraints:
    """Decisions of the caller that planning must respect.

    Attributes:
        homes: Device index for weights and states by name (and for inputs, which are then uploaded
            to that device and copied from there). Other weights and states live where their first
            node runs. Names that a graph does not have are ignored, because one set of
            constraints serves all graphs of a model.
        pins: Device index for nodes by id.
        rates: Measured rates of the machine; None for guesses by kind of device.
        offload: Moves nodes away from the devices that have their weights; None moves none.
        slots: For a graph joined from several parts, the number of buffers of each boundary between
            devices; None for as many as there are parts.
        clears: Names of states that each run fills with zeros before anything else, on a stream of
            their device; for sequences that do not continue from the last run.
        reads_peers: Whether a node that is the only reader of a result of another device reads that
            device's memory instead of a copy, if both declare ``DeviceFacts.reads_peers``.
        placed: A placement that was decided before, under these constraints; no policy is called.
        lanes: A lane for each node of the graph, by device, as that device proposes (STR-7). They
            become streams where no others are predicted to be faster; nonsense is ignored.

    Examples:
        >>> from ggsched.passes import Constraints
        >>> Constraints(homes={"w": 1}, pins={0: 1}).pins
        {0: 1}
    """

    homes: Mapping[str, int] = field(default_factory=dict)
    pins: Mapping[int, int] = field(default_factory=dict)
    rates: MachineRates | None = None
    offload: "OffloadPolicy | None" = None
    slots: Slots | None = None
    clears: frozenset[str] = frozenset()
    reads_peers: bool = False
    placed: Placement | None = None
    lanes: Mapping[int, Sequence[int]] = field(default_factory=dict)

    @cached_property
    def digest(self) -> str:
        """Hash of all of them."""
        rates = self.rates.digest if self.rates else ""
        sets = sorted(self.clears), self.reads_peers
        parts = (rates, self.offload, self.slots, *sets, self.placed, sorted(self.lanes.items()))
        text = repr((sorted(self.homes.items()), sorted(self.pins.items()), *parts))
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def with_slots(self, slots: Slots) -> "Constraints":
        """Return these for a joined graph.

        Args:
            slots: Of the joined graph.

        Examples:
            >>> from ggsched.passes.memory.rings import Slots
            >>> Constraints(pins={0: 1}).with_slots(Slots(2, (0, 8))).slots.count
            2
        """
        return replace(self, slots=slots)

    def rates_on(self, topology: Topology) -> MachineRates:
        """Return the rates to plan with.

        Raises:
            PlanError: the rates are those of another number of devices.

        Examples:
            >>> from ggsched import open_devices, probe
            >>> devices = open_devices(["cpu:0"])
            >>> Constraints().rates_on(probe(devices)).source
            'guesses by kind of device'
            >>> for device in devices:
            ...     device.close()
        """
        if self.rates is None:
            return guessed_rates(topology)
        if len(self.rates.devices) != len(topology.devices):
            raise PlanError(
                f"rates of {len(self.rates.devices)} devices for {len(topology.devices)}",
                hint="take rates of this topology, see ggsched.calibrate.cache.load_rates",
            )
        return self.rates


class OffloadPolicy(Protocol):
    """Moves nodes that a policy has placed where their weights are; part of the key of a plan.

    A frozen record: equal ones decide alike.
    """

    def place(
        self, graph: Graph, topology: Topology, placement: Placement, rates: MachineRates
    ) -> Placement:
        """Return the placement with nodes elsewhere, and with what was considered."""

    def transfers(
        self, graph: Graph, topology: Topology, placement: Placement
    ) -> OperandPolicy | None:
        """Return what brings weights to nodes that were moved; None where none were."""


@dataclass(frozen=True, slots=True)
class PlacementOutcome:
    """What a placement leads to, by prediction and to the byte.

    Attributes:
        seconds: Predicted seconds of a run; infinity where no plan can be made.
        shortage: Bytes that are missing, by device; empty if the plan fits the devices' memory.
        reason: Why no plan can be made, or "".
    """

    seconds: float
    shortage: Mapping[int, int] = field(default_factory=dict)
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PlacementProblem:
    """What a policy has to place, and on what.

    Attributes:
        constraints: What the caller decided, which every policy keeps.
        rates: What things cost on the machine.
        try_out: Plans a placement with the options of the plan and predicts it. It takes as long as
            planning, so a policy tries few placements.
    """

    graph: Graph
    topology: Topology
    constraints: Constraints
    rates: MachineRates
    try_out: Callable[[Placement], PlacementOutcome]


class PlacementPolicy(Protocol):
    """Decides where nodes run and where storages live."""

    @property
    def key(self) -> str:
        """Name and parameters: policies of one key place alike. Part of the plan cache's key."""

    def place(self, problem: PlacementProblem) -> Placement:
        """Return a device with a reason for each node, and a home for each storage.

        The result is a function of the problem alone.

        Raises:
            PlanError: the constraints contradict each other or the devices' abilities, or no device
                supports a node.
        """


def verify_placement(
    graph: Graph, topology: Topology, constraints: Constraints, placement: Placement
) -> None:
    """Check what a policy returned: any caller may have written it.

    Raises:
        PlanError: a node without a choice, a device that does not exist or does not support the
            op, a storage whose home is not the device that writes it; a pinned node, or a tensor
            with a given home, is elsewhere.
    """
    _verify_devices(graph, topology, placement)
    names = dict(enumerate(facts.name for facts in topology.devices))
    for node_id, device in constraints.pins.items():
        if not 0 <= node_id < len(graph.nodes):
            raise PlanError(f"pin of node {node_id}, which does not exist", where=graph.name)
        where = graph.label(graph.nodes[node_id])
        if device not in names:
            raise PlanError(f"device index {device} does not exist", where=where)
        found = placement.choices[node_id].device
        if found != device:
            raise PlanError(f"pinned to {names[device]}, but placed on {names[found]}", where=where)
    for name, device in constraints.homes.items():
        if name not in graph:
            continue
        home = placement.homes.get(graph.named(name).id, device)
        if device not in names:
            raise PlanError(f"device index {device} does not exist", where=name)
        if home != device:
            what = f"its home is given as {names[device]}, but placed on {names[home]}"
            raise PlanError(what, where=name)


def _verify_devices(graph: Graph, topology: Topology, placement: Placement) -> None:
    if len(placement.choices) != len(graph.nodes):
        raise PlanError(f"{len(placement.choices)} choices for {len(graph.nodes)} nodes")
    count = len(topology.devices)
    for node, choice in zip(graph.nodes, placement.choices, strict=True):
        where = graph.label(node)
        if not 0 <= choice.device < count:
            raise PlanError(f"placed on {show('device', choice.device)}, no device", where=where)
        facts = topology.devices[choice.device]
        first = graph.tensors[node.tensors[0]]
        if missing := lacking(facts, node.op, first.dtype.name, node.params.get("of")):
            why = f"it does not support {node.op} of {first.dtype}: {missing} is not declared"
            raise PlanError(f"placed on {facts.name}", where=where, why=why)
        home = placement.homes.get(graph.tensors[node.output].storage)
        if home != choice.device:
            why = f"the home of {show('tensor', graph.tensors[node.output].storage)} is {home}"
            raise PlanError(f"writes a storage from {facts.name}", where=where, why=why)
    for tid, device in placement.homes.items():
        where = show("tensor", tid)
        if not 0 <= tid < len(graph.tensors) or graph.tensors[tid].is_view:
            raise PlanError("home of a tensor that is not a storage", where=where)
        if not 0 <= device < count:
            raise PlanError(f"its home is {show('device', device)}, no device", where=where)
