"""Predict: how long a step of a plan takes, by the rates of the machine.

The commands are simulated with the cost model. Launches of several streams of one device slow each
other down, so they are simulated twice: alone first, then with as many busy streams as each met on
the average. Launches of devices on one processor take turns.
"""

from dataclasses import dataclass

from ggsched.ir.graph import Graph
from ggsched.ops.record import PRODUCTS
from ggsched.passes.cost.simulate import PredictedSpan, PredictedTimeline, simulate
from ggsched.passes.cost.work_size import expected_rows, node_cost
from ggsched.plan.bundle import Plan
from ggsched.plan.command import Command
from ggsched.plan.effects import Effects, Step, Traffic
from ggsched.topology.caps import processors
from ggsched.topology.cost import HOST, MachineRates, Work, node_seconds

_CLEARED = Work("", PRODUCTS, 0.0, 0.0)

_STEPS = 2
"""The second step finds the streams as one in the middle of a sequence does."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a step is predicted to take.

    Attributes:
        seconds: Of one step among others of its kind, see ``PredictedTimeline.period_s``.
        timeline: When each command runs.
        source: Where the rates came from.
    """

    seconds: float
    timeline: PredictedTimeline
    source: str


def predict_step(graph: Graph, plan: Plan, rates: MachineRates) -> Prediction:
    """Return how long one step (run) of a plan takes, and when each command runs.

    Args:
        graph: The graph that the plan was made of; sizes of nodes are not in a plan.
        rates: Of the plan's devices, by index.
    """
    costs = RateCosts(graph, plan, rates)
    shared = processors(plan.devices)
    timeline = simulate(plan, costs, steps=_STEPS, processors=shared)
    if costs.shares(timeline.spans):
        timeline = simulate(plan, costs, steps=_STEPS, processors=shared)
    return Prediction(timeline.period_s, timeline, rates.source)


class RateCosts:
    """The costs of a plan's commands by the rates of a machine.

    An event costs ``event_s`` of the device that records it, whoever waits and however: that is
    what is measured.
    """

    def __init__(self, graph: Graph, plan: Plan, rates: MachineRates) -> None:
        self._graph, self._plan, self._rates = graph, plan, rates
        self._streams: dict[int, float] = {}
        self._known: dict[int, float] = {}
        self._filled_by = {t.dst: t.by for t in plan.splits.transfers} if rates.machines else {}

    def enqueue_s(self, device: int) -> float:
        """See ``CommandCosts``."""
        return self._rates.enqueue_s

    def record_s(self, device: int) -> float:
        """See ``CommandCosts``. The calling thread runs a plan of one stream on a CPU itself."""
        is_here = len(self._plan.streams.streams) == 1 and self._plan.devices[device].is_host
        return 0.0 if is_here else self._rates.devices[device].event_s

    def notice_s(self, waiter: int, recorder: int) -> float | None:
        """See ``CommandCosts``."""
        return None

    def wait_s(self, waiter: int, recorder: int) -> float:
        """See ``CommandCosts``. Threads pass on events between a CPU and other devices."""
        devices = self._plan.devices
        is_passed_on = devices[waiter].is_host != devices[recorder].is_host
        return self._rates.devices[waiter].event_s if is_passed_on else 0.0

    def work_s(self, command: Command) -> float:
        """See ``CommandCosts``."""
        known = self._known.get(command.id)
        if known is None:
            known = self._known[command.id] = self._work(command)
        return known

    def shares(self, spans: tuple[PredictedSpan, ...]) -> bool:
        """Let launches that met others of their device cost more; return whether any did."""
        plan = self._plan
        by_device: dict[int, list[PredictedSpan]] = {}
        for span in spans:
            effects = plan.commands[span.command].effects
            if effects.engine == "compute":
                device = plan.streams.streams[effects.streams[0]].device
                by_device.setdefault(device, []).append(span)
        for group in by_device.values():
            self._streams.update(_company(group))
        self._known.clear()
        return bool(self._streams)

    def _work(self, command: Command) -> float:
        effects = command.effects
        if effects.traffic is not None:
            return self._moving(effects.traffic) + self._message(effects)
        rates = self._rates.devices[self._plan.streams.streams[effects.streams[0]].device]
        streams = self._streams.get(command.id, 1.0)
        nodes = self._graph.nodes
        return rates.launch_s + sum(
            node_cost(rates, self._graph, nodes[step.node], streams) + self._from_peers(step)
            for step in effects.steps
        )

    def _from_peers(self, step: Step) -> float:
        """Return the seconds in which a node's operands come from other devices.

        A copy's latency is not among them: the node is there already.
        """
        arenas = self._plan.memory.arenas
        here = arenas[step.operands[-1].arena].device
        seconds = 0.0
        for region in step.operands[:-1]:
            there = arenas[region.arena].device
            if there not in (here, HOST):
                seconds += region.nbytes / self._rates.link(there, here).bandwidth
        return seconds

    def _moving(self, traffic: Traffic) -> float:
        """Return the seconds of a transfer; host memory has one number in plans and in rates."""
        arenas = self._plan.memory.arenas
        if traffic.src is None:
            rates = self._rates.devices[arenas[traffic.dst].device]
            return rates.launch_s + node_seconds(rates, _CLEARED._replace(nbytes=traffic.nbytes))
        src = HOST if traffic.through_host else arenas[traffic.src].device
        link = self._rates.link(src, arenas[traffic.dst].device)
        nbytes = traffic.nbytes
        if traffic.row_nbytes:
            rows = expected_rows(nbytes // traffic.row_nbytes, traffic.rows)
            nbytes = round(rows * traffic.row_nbytes)
        return link.seconds(nbytes)

    def _message(self, effects: Effects) -> float:
        """Return the seconds in which bytes that come from another machine are on their way.

        They are counted with the upload behind the message: plans have no command for that.
        """
        if not self._rates.machines or effects.transfer < 0:
            return 0.0
        here = self._plan.streams.streams[effects.streams[0]].device
        there = self._filled_by.get(self._plan.splits.transfers[effects.transfer].src, here)
        between = self._rates.between(there, here)
        assert effects.traffic is not None
        return 0.0 if between is None else between.seconds(effects.traffic.nbytes)


def _company(spans: list[PredictedSpan]) -> dict[int, float]:
    """Return for each span that overlaps others how many run on the average, itself included."""
    spans = sorted(spans, key=lambda s: (s.start_s, s.end_s))
    together: dict[int, float] = {}
    for i, a in enumerate(spans):
        for b in spans[i + 1 :]:
            if b.start_s >= a.end_s:
                break
            common = min(a.end_s, b.end_s) - b.start_s
            for one in (a, b):
                if one.end_s > one.start_s and common > 0:
                    share = common / (one.end_s - one.start_s)
                    together[one.command] = together.get(one.command, 1.0) + share
    return together
