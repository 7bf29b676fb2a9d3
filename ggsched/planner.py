"""The planner: each graph is planned once, and where two ways are tried, the faster one stays."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from ggsched.config import Settings
from ggsched.ir.graph import Graph
from ggsched.ir.tensor import Role
from ggsched.passes.decomposed_plan import DecomposedGraph, decomposed_plan
from ggsched.passes.memory.rings import Slots
from ggsched.passes.options import AUTO_LIMIT, PlanOptions, StreamPolicy, plan_options
from ggsched.passes.pipeline import make_plan
from ggsched.passes.place import Constraints, OffloadPolicy, PlacementPolicy
from ggsched.passes.placement.automatic import Automatic
from ggsched.passes.placement.named import placement_policy
from ggsched.plan.bundle import Plan
from ggsched.report.debug_output import log_plan
from ggsched.run.autotune import Measured, Trial, Trials
from ggsched.run.cache import RecentCache
from ggsched.sanitize import check_plan
from ggsched.topology.model import Topology

KEPT: Final = 4
"""Plans that are kept for each whose memory is: they cost little and take a while to make."""


class PlanKey(NamedTuple):
    """All that a plan depends on, the machine apart. Digests are empty where nothing was given."""

    graph: str
    homes: tuple[tuple[str, int], ...]
    pins: tuple[tuple[int, int], ...]
    clears: tuple[str, ...]
    rates: str
    slots: Slots | None
    offload: OffloadPolicy | None
    reads_peers: bool
    placement: str
    placed: str
    lanes: tuple[tuple[int, tuple[int, ...]], ...]
    options: PlanOptions


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """How often a plan was found, and how often it had to be made."""

    hits: int
    misses: int


def plan_key(
    graph: Graph, constraints: Constraints, placement: str, options: PlanOptions
) -> PlanKey:
    """Return the key of the plan of a graph, with the placement policy's key.

    Constraints name every tensor of a model while a graph has some of them; the key keeps those.
    """
    return PlanKey(
        graph=graph.digest,
        homes=tuple(sorted((n, d) for n, d in constraints.homes.items() if n in graph)),
        pins=tuple(sorted(constraints.pins.items())),
        clears=tuple(sorted(name for name in constraints.clears if name in graph)),
        rates=constraints.rates.digest if constraints.rates else "",
        slots=constraints.slots,
        offload=constraints.offload,
        reads_peers=constraints.reads_peers,
        placement=placement,
        placed=constraints.digest if constraints.placed is not None else "",
        lanes=tuple(sorted((d, tuple(lanes)) for d, lanes in constraints.lanes.items())),
        options=options,
    )


class Planner:
    """Plans of graphs on one machine, by graph digest and constraints.

    Args:
        settings: What plans are to be like, and how they are checked.
        plan_limit: Number of plans whose memory is kept.
        placement: Decides where nodes run.
        propose: Returns what devices propose for a graph, see ``Constraints.lanes``.

    Raises:
        UsageError: a memory budget for a device that is not there, or no policy.
    """

    def __init__(
        self,
        settings: Settings,
        topology: Topology,
        plan_limit: int,
        placement: PlacementPolicy | str = "auto",
        propose: Callable[[Graph], Mapping[int, Sequence[int]]] = lambda _: {},
    ) -> None:
        self._propose = propose
        self._placement = placement_policy(placement)
        self._settings = settings
        self._topology = topology
        self._options = plan_options(settings, topology)
        self._plans: RecentCache[PlanKey, Plan] = RecentCache(KEPT * plan_limit)
        self._keys: RecentCache[tuple[str, str], PlanKey] = RecentCache(KEPT * plan_limit)
        self._trials: Trials[PlanKey, PlanOptions] = Trials(KEPT * plan_limit)
        self._known_homes: dict[str, int] = {}

    @property
    def cache(self) -> CacheInfo:
        """Hits and misses so far."""
        return CacheInfo(self._plans.hits, self._plans.misses)

    @property
    def measured(self) -> tuple[Measured, ...]:
        """What was found about one stream against several, for the graphs run last."""
        return self._trials.measured

    def plan(self, graph: Graph, constraints: Constraints) -> Plan:
        """Return the plan that the next run of a graph uses; a new one is checked first.

        Raises:
            PlanError: the graph cannot be placed on the devices.
            RaceFound: the sanitizer found a defect in the plan.
        """
        return self._planned(graph, constraints, self.next_key(graph, constraints))

    def draft(self, graph: Graph, constraints: Constraints) -> Plan:
        """Return the plan that ``plan`` would, neither checked nor kept.

        Raises:
            PlanError: the graph cannot be placed on the devices.
        """
        return self._draft(graph, constraints, self._options)

    def decomposed(self, graph: Graph, constraints: Constraints) -> DecomposedGraph | None:
        """Return the graph with nodes decomposed, if that is better on this machine, or None."""
        if constraints.slots is not None or constraints.placed is not None:
            return None  # the parts of a joined graph follow from its nodes
        policy, wanted = self._resolved(graph, constraints)
        return decomposed_plan(graph, self._topology, wanted, self._options, policy)

    def known_homes(self, graph: Graph) -> dict[str, int]:
        """Return where plans of other graphs have put weights and states of a graph, by name."""
        return {name: device for name, device in self._known_homes.items() if name in graph}

    def is_measured(self, graph: Graph, constraints: Constraints) -> bool:
        """Whether the first run of a graph decides where it is placed."""
        policy = self._placement
        if not isinstance(policy, Automatic) or not policy.is_measured:
            return False
        return constraints.placed is None and (
            policy.for_graph(graph, self._topology, constraints) is policy.by_cost
        )

    def next_key(self, graph: Graph, constraints: Constraints) -> PlanKey:
        """Return the key of the plan that the next run uses."""
        key = self._key(graph, constraints)
        if self._settings.streams != "autotune":
            return key
        way = self._trials.way(key, lambda: self._begin_trial(graph, constraints, key))
        return key._replace(options=way)

    def is_tried(self, graph: Graph, constraints: Constraints) -> bool:
        """Whether the time of the next run counts."""
        is_tuned = self._settings.streams == "autotune"
        return is_tuned and self._trials.is_open(self._key(graph, constraints))

    def note_run(self, graph: Graph, constraints: Constraints, seconds: float) -> PlanKey | None:
        """Report to a trial how long its run took; return the key of the plan that lost, if any."""
        key = self._key(graph, constraints)
        loser = self._trials.note(key, seconds)
        return None if loser is None else key._replace(options=loser)

    def forget(self, digest: str) -> None:
        """Forget the plans of a graph, whatever their constraints."""
        for known in (k for k in self._keys if k[0] == digest):
            self._keys.drop(known)
        for key in (k for k in self._plans if k.graph == digest):
            self._plans.drop(key)
        self._trials.forget(lambda key: key.graph == digest)

    def settle(self, reason: str) -> None:
        """End all trials: one stream per device it is."""
        self._trials.settle(reason)

    def move_to(self, topology: Topology) -> None:
        """Plan for this machine from now on; memory sizes may differ from opening to opening."""
        if topology != self._topology:
            self._topology = topology
            self._plans.take_all()
            self._trials.forget()
            self._known_homes.clear()

    def _key(self, graph: Graph, constraints: Constraints) -> PlanKey:
        """Return the key of a plan; by digests, since making it takes a while."""
        known = (graph.digest, constraints.digest)
        policy = self._placement.key
        return self._keys.get(known, lambda: plan_key(graph, constraints, policy, self._options))

    def _planned(self, graph: Graph, constraints: Constraints, key: PlanKey) -> Plan:
        return self._plans.get(key, lambda: self._make_plan(graph, constraints, key.options))

    def _draft(self, graph: Graph, constraints: Constraints, options: PlanOptions) -> Plan:
        policy, wanted = self._resolved(graph, constraints)
        if options.streams.limit > 1 and not wanted.lanes:
            wanted = replace(wanted, lanes=self._propose(graph))
        return make_plan(graph, self._topology, wanted, options, placement=policy)

    def _make_plan(self, graph: Graph, constraints: Constraints, options: PlanOptions) -> Plan:
        plan = self._draft(graph, constraints, options)
        self._note_homes(graph, plan)
        log_plan(plan, self._settings.debug)
        order = self._settings.sanitize == "plan"
        if order or self._settings.verify:
            # Allocation reports missing memory as OutOfMemory, with what would fit.
            skipped, machine = ("memory_sizes",), self._topology
            report = check_plan(plan, graph=graph, topology=machine, without=skipped, order=order)
            report.raise_if_findings()
        return plan

    def _resolved(
        self, graph: Graph, constraints: Constraints
    ) -> tuple[PlacementPolicy, Constraints]:
        """Return policy and constraints of a graph; the default policy keeps homes once given."""
        policy = self._placement
        if not isinstance(policy, Automatic) or constraints.placed is not None:
            return policy, constraints
        return policy.resolve(graph, self._topology, constraints, self._known_homes)

    def _note_homes(self, graph: Graph, plan: Plan) -> None:
        """Remember where weights and states live, for graphs that share them."""
        for tid, device in plan.placement.homes.items():
            t = graph.tensors[tid]
            if t.role in (Role.WEIGHT, Role.STATE):
                self._known_homes.setdefault(t.name, device)

    def _begin_trial(
        self, graph: Graph, constraints: Constraints, key: PlanKey
    ) -> Trial[PlanOptions]:
        """Return a trial of one stream against several: those of the gate, if it lets any in."""
        single = replace(self._options, streams=StreamPolicy())
        several = self._options
        plan = self._planned(graph, constraints, key)
        if not any(gain.is_taken for gain in plan.streams.gains):
            several = replace(self._options, streams=StreamPolicy(AUTO_LIMIT, is_forced=True))
            plan = self._planned(graph, constraints, key._replace(options=several))
        trial = Trial(graph.name, (single, several))
        if not any(gain.is_taken for gain in plan.streams.gains):
            trial.settle(0, "no nodes are independent")
        return trial
