"""Micro-batches: those of one batch as one graph, so that devices work on several of them at once.

Fed one after another, each micro-batch ends with the host waiting for its result before the next
begins, and of several devices one works at a time. Joined into one graph the second device starts
on the first micro-batch while the first device goes on with the second, and the host waits once.
Whether that pays is predicted before it is done.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ggsched.ir.graph import Graph
from ggsched.ir.join import Joined, join_graphs
from ggsched.models.interleaved_stages import interleave
from ggsched.passes.cost.predict import predict_step
from ggsched.passes.memory.rings import Slots
from ggsched.passes.place import Constraints
from ggsched.plan.bundle import Plan
from ggsched.run.cache import RecentCache
from ggsched.scheduler import Scheduler
from ggsched.topology.cost import MachineRates

Pipelining = Literal["auto", "on", "off"]

DEFAULT_SLOTS = 2
"""One buffer that is read and one that is written: more are of use only where a copy takes longer
than a stage."""

_WORTH_IT = 0.95
_KEPT = 16


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One micro-batch: its graph, and whether its logits are wanted."""

    graph: Graph
    is_wanted: bool


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a batch is predicted to take.

    Attributes:
        together_s: Seconds as one graph.
        apart_s: Seconds one micro-batch after another.
        source: Where the rates came from.
    """

    together_s: float
    sequential_s: float
    source: str

    @property
    def pays(self) -> bool:
        """Whether joining is predicted to be worth it."""
        return self.together_s < _WORTH_IT * self.sequential_s


@dataclass(frozen=True)
class _Batch:
    joined: Joined
    constraints: Constraints
    forecast: Forecast | None


class MicroBatches:
    """Runs the micro-batches of a batch as one graph, where that pays."""

    def __init__(
        self,
        scheduler: Scheduler,
        constraints: Constraints,
        rates: MachineRates,
        *,
        mode: Pipelining = "auto",
        slots: int | None = None,
    ) -> None:
        """Take what runs the model.

        Args:
            scheduler: Plans and runs.
            constraints: Homes of weights and states.
            rates: For predictions.
            mode: ``auto`` goes by the prediction; ``on`` joins whatever it says.
            slots: Buffers of what is handed from device to device, ``DEFAULT_SLOTS`` if not given.
        """
        self.scheduler = scheduler
        self.constraints = constraints
        self.rates = rates
        self.mode = mode
        self.slots = DEFAULT_SLOTS if slots is None else slots
        self._batches: RecentCache[tuple[tuple[str, bool], ...], _Batch] = RecentCache(_KEPT)

    def pays(self, parts: Sequence[MicroBatch]) -> bool:
        """Whether these should run as one graph.

        Raises:
            PlanError: a part cannot be placed on the devices.
        """
        if self.mode == "off" or len(parts) < 2 or len(self.scheduler.topology.devices) < 2:
            return False
        if self.mode == "on":
            return True
        forecast = self.forecast(parts)
        return forecast is not None and forecast.pays

    def forecast(self, parts: Sequence[MicroBatch]) -> Forecast | None:
        """Return what both ways are predicted to take; None where one device does it all."""
        return self._batch(parts).forecast

    def plan(self, parts: Sequence[MicroBatch]) -> Plan:
        """Return the plan of the micro-batches as one graph."""
        batch = self._batch(parts)
        return self.scheduler.plan(batch.joined.graph, batch.constraints)

    def run(
        self,
        parts: Sequence[MicroBatch],
        inputs: Callable[[int], dict[str, np.ndarray]],
    ) -> list[np.ndarray]:
        """Run them and return the first output of each whose logits are wanted, in order.

        Args:
            parts: The micro-batches, in order.
            inputs: Makes the host inputs of a part, by name in the part's own graph.

        Raises:
            As ``Scheduler.run``.
        """
        batch = self._batch(parts)
        joined = batch.joined
        given: dict[str, np.ndarray] = {}
        for k in range(len(parts)):
            for name, value in inputs(k).items():
                if joined.input_name(k, name) in joined.graph:
                    given[joined.input_name(k, name)] = value
        out = self.scheduler.run(joined.graph, given, batch.constraints)
        return [
            out[joined.outputs[k, part.graph.outputs[0]]]
            for k, part in enumerate(parts)
            if part.is_wanted
        ]

    def _batch(self, parts: Sequence[MicroBatch]) -> _Batch:
        key = tuple((part.graph.digest, part.is_wanted) for part in parts)
        return self._batches.get(key, lambda: self._join(parts))

    def _join(self, parts: Sequence[MicroBatch]) -> _Batch:
        keep = [part.graph.outputs[:1] if part.is_wanted else () for part in parts]
        name = f"{parts[0].graph.name} x {len(parts)}"
        joined = join_graphs([part.graph for part in parts], keep=keep, name=name)
        constraints = self.constraints.with_slots(Slots(self.slots, joined.firsts))
        joined = self._in_better_order(joined, constraints)
        forecast = self._forecast(parts, joined, constraints) if self.mode == "auto" else None
        return _Batch(joined, constraints, forecast)

    def _in_better_order(self, joined: Joined, constraints: Constraints) -> Joined:
        """Return the parts in turns where a part comes back to a device and that is faster."""
        plan = self.scheduler.plan(joined.graph, constraints)
        turned = interleave(joined, plan)
        if turned is None:
            return joined
        other = self.scheduler.plan(turned.graph, constraints)
        now = predict_step(joined.graph, plan, self.rates).seconds
        then = predict_step(turned.graph, other, self.rates).seconds
        return turned if then < now else joined

    def _forecast(
        self, parts: Sequence[MicroBatch], joined: Joined, constraints: Constraints
    ) -> Forecast | None:
        first = self.scheduler.plan(parts[0].graph, self.constraints)
        if len({s.device for s in first.splits.splits}) < 2:
            return None
        sequential_s = 0.0
        for part in parts:
            plan = self.scheduler.plan(part.graph, self.constraints)
            sequential_s += predict_step(part.graph, plan, self.rates).seconds
        plan = self.scheduler.plan(joined.graph, constraints)
        prediction = predict_step(joined.graph, plan, self.rates)
        return Forecast(prediction.seconds, sequential_s, prediction.source)
