"""Micro-batches: which ones a run needs, what the host sets for them, and running several as one.

A graph depends on the size of a micro-batch only. Fed one after another, each micro-batch ends with
the host waiting for its result before the next begins, and of several devices one works at a time.
Joined into one graph the second device starts on the first micro-batch while the first device goes
on with the second, and the host waits once. Whether that pays is predicted before it is done.

Where attention lives on one device and experts on another, each part comes back to a device once
for each layer. Part after part leaves every device waiting then: a stream keeps its order, and the
second layer of the first part, which waits for the other device, stands before the first layer of
the second part. Interleaved stages put it behind.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Final, Literal, NamedTuple

import numpy as np

from ggsched.errors import GraphError, UsageError
from ggsched.ir.graph import Graph
from ggsched.ir.join import Joined, join_graphs
from ggsched.ir.schedule import apply_schedule, rounds
from ggsched.ir.tensor import Role
from ggsched.passes.cost.predict import predict_step
from ggsched.passes.memory.rings import Slots
from ggsched.passes.place import Constraints
from ggsched.plan.bundle import Plan
from ggsched.run.cache import RecentCache
from ggsched.scheduler import Scheduler
from ggsched.topology.cost import MachineRates
from ggsched_llm.graph import build_model_graph
from ggsched_llm.spec import ModelSpec

_SHORT: Final = 32
_LEAST: Final = 256
_SIZES: Final = 16
"""Lengths of a prompt between a power of two and the next that have plans of their own."""


class BatchSize(NamedTuple):
    """What the graph of a micro-batch depends on.

    Attributes:
        n_tokens: Tokens that enter.
        n_kv: Rows of the KV cache that attention looks at.
        n_out: Tokens that get logits; 0 for drafts of the model's own head.
    """

    n_tokens: int
    n_kv: int
    n_out: int

    def graph(self, spec: ModelSpec, n_ctx: int) -> Graph:
        """Return the graph of such a micro-batch, with a KV cache of ``n_ctx`` rows."""
        return build_model_graph(
            spec, n_tokens=self.n_tokens, n_kv=self.n_kv, n_out=self.n_out, n_ctx=n_ctx
        )


def batch_schedule(
    n_prompt: int, n_predict: int, *, n_ctx: int, step: int, all_logits: bool = False
) -> Iterator[BatchSize]:
    """Yield the micro-batches of a prompt and the decoding steps that follow, in order.

    One that is repeated is given once: a context of a billion tokens has a few hundred sizes.

    Args:
        n_prompt: Tokens of the prompt; at least one.
        n_predict: Tokens to generate at most; the last one is not fed back.
        n_ctx: Rows of the KV cache; generation ends when it is full.
        step: Tokens of one micro-batch at most.
        all_logits: Whether each token of the prompt gets logits, as for ``run --logits``.

    Raises:
        UsageError: a prompt that is empty or that does not fit the context.
    """
    for start in batch_starts(n_prompt, n_ctx=n_ctx, step=step, together=1):
        n = min(step, n_prompt - start)
        yield BatchSize(n, kv_bucket(start + n, n_ctx), n if all_logits else 1)
    for past in decoding_starts(n_prompt, n_predict, n_ctx=n_ctx):
        yield BatchSize(1, kv_bucket(past + 1, n_ctx), 1)


def batch_starts(
    n_prompt: int, *, n_ctx: int, step: int, together: int, most: int = 1
) -> Iterator[int]:
    """Yield where batches of a prompt begin, without those that repeat the graphs of the last.

    Args:
        n_prompt: Tokens of the prompt; at least one.
        n_ctx: Rows of the KV cache.
        step: Tokens of one micro-batch at most.
        together: Micro-batches of one batch.
        most: How often the same graphs are given in a row.

    Raises:
        UsageError: a prompt that is empty or that does not fit the context.
    """
    if not 1 <= n_prompt <= n_ctx:
        raise UsageError(
            f"a prompt of {n_prompt} tokens", why=f"it has 1 to {n_ctx}, which the context holds"
        )
    batch = step * together
    last = (n_prompt - 1) // batch * batch
    start = 0
    while start < last:
        rows = kv_bucket(start + step, n_ctx)
        same = (rows - start) // batch if start + batch <= rows else 1
        end = min(start + max(1, same) * batch, last)
        yield from range(start, end, batch)[:most]
        start = end
    yield last


def decoding_starts(n_prompt: int, n_predict: int, *, n_ctx: int) -> Iterator[int]:
    """Yield the tokens that are there before decoding steps, one step for each graph.

    Args:
        n_prompt: Tokens of the prompt.
        n_predict: Tokens to generate at most; the last one is not fed back.
        n_ctx: Rows of the KV cache.
    """
    past, end = n_prompt, min(n_ctx, n_prompt + n_predict - 1)
    while past < end:
        yield past
        past = max(past + 1, kv_bucket(past + 1, n_ctx))


def kv_bucket(n_used: int, n_ctx: int) -> int:
    """Return the rows of the cache that attention looks at: ``n_used``, rounded up.

    To 32 or 256, then to powers of two. So a growing sequence needs a new plan, which takes as long
    as dozens of tokens on a fast device, at every doubling at most. Kernels skip rows that no token
    sees, so looking at more of them costs little.
    """
    if n_used <= _SHORT:
        return min(_SHORT, n_ctx)
    return min(max(_LEAST, 1 << (n_used - 1).bit_length()), n_ctx)


def padding(n_tokens: int, *, step: int, room: int) -> int:
    """Return the tokens to add to the last micro-batch of a prompt, so that its plan comes again.

    Planning a length that was never met takes as long as hundreds of tokens on a fast device, so
    prompts are rounded up by a sixteenth of their length at most, and by 3 % on average if all
    lengths are equally likely. Fewer than 32 tokens are left as they are.

    Args:
        n_tokens: Tokens of the prompt.
        step: Tokens of one micro-batch at most; no micro-batch is added.
        room: Rows of the cache behind the prompt.
    """
    unit = max(1, (1 << (n_tokens.bit_length() - 1)) // _SIZES)
    return max(0, min(-n_tokens % unit, -n_tokens % step, room))


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens of one sequence that follow each other.

    Attributes:
        tokens: int32 (T,).
        n_past: Tokens of the sequence before these.
        first_row: Row of the cache where the sequence begins.
        slot: Of the states of recurrent blocks.
    """

    tokens: np.ndarray
    n_past: int
    first_row: int = 0
    slot: int = 0

    @property
    def end_row(self) -> int:
        """One past the last row of the cache that they write."""
        return self.first_row + self.n_past + len(self.tokens)


def batch_inputs(
    graph: Graph, tokens: np.ndarray, n_past: int, n_out: int, window: int
) -> dict[str, np.ndarray]:
    """Return the host inputs of a micro-batch of one sequence.

    Args:
        graph: Of ``build_model_graph``; it may do without some of the inputs.
        tokens: int32 (T,).
        n_past: Tokens before these; token i goes to cache row ``n_past + i``.
        n_out: Tokens, counted from the end, that get logits.
        window: Sliding window in tokens, 0 for none.
    """
    n = len(tokens)
    return span_inputs(graph, [Span(tokens, n_past)], range(n - n_out, n), window)


def span_inputs(
    graph: Graph, spans: Sequence[Span], out_rows: Sequence[int], window: int
) -> dict[str, np.ndarray]:
    """Return the host inputs of a micro-batch of several sequences.

    Args:
        graph: Of ``build_model_graph``; it may do without some of the inputs.
        spans: Tokens of sequences that lie in different rows of the cache.
        out_rows: Tokens that get logits, counted through all spans.
        window: Sliding window in tokens, 0 for none.
    """
    return row_inputs(graph, *_rows_of(spans), out_rows, window)


def row_inputs(
    graph: Graph,
    positions: np.ndarray,
    first: np.ndarray,
    slots: np.ndarray,
    tokens: np.ndarray,
    out_rows: Sequence[int] | np.ndarray,
    window: int,
) -> dict[str, np.ndarray]:
    """Return the host inputs of a micro-batch of any tokens.

    Args:
        graph: Of ``build_model_graph``; it may do without some of the inputs.
        positions: Of each token in its sequence; int32 (T,), as all that follow.
        first: Rows of the cache where their sequences begin.
        slots: Slots of the states of recurrent blocks.
        tokens: Ids.
        out_rows: Tokens that get logits.
        window: Sliding window in tokens, 0 for none.
    """
    rows = first + positions
    inputs = {
        "tokens": tokens,
        "positions": positions,
        "slots": slots,
        "kv_rows": rows,
        "bounds": _pairs(first, rows + 1),
        "out_rows": np.asarray(out_rows, np.int32),
    }
    if window:
        inputs["bounds_window"] = _pairs(np.maximum(first, rows + 1 - window), rows + 1)
    return {name: value for name, value in inputs.items() if name in graph}


def _rows_of(
    spans: Sequence[Span],
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return positions, first rows, slots and tokens of spans, int32 (T,) each."""
    if len(spans) == 1:
        (span,) = spans
        n = len(span.tokens)
        positions = np.arange(span.n_past, span.n_past + n, dtype=np.int32)
        first, slots = np.empty((2, n), np.int32)
        first[:], slots[:] = span.first_row, span.slot
        return positions, first, slots, span.tokens
    counts = [len(span.tokens) for span in spans]
    numbers = np.array([(s.n_past, s.first_row, s.slot) for s in spans], np.int32)
    positions, first, slots = np.repeat(numbers.T, counts, axis=1)
    if max(counts) > 1:
        positions += np.concatenate([np.arange(n, dtype=np.int32) for n in counts])
    return positions, first, slots, np.concatenate([span.tokens for span in spans])


def _pairs(begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    pairs = np.empty((len(begin), 2), np.int32)
    pairs[:, 0], pairs[:, 1] = begin, end
    return pairs


def interleave(joined: Joined, plan: Plan) -> Joined | None:
    """Return the joined graph with as many parts in turns as there are devices.

    Each device takes up one stage of these parts, then its next stage of them; so as many slots of
    what is handed over are in use.

    None where no part comes back to a device that it has left, where the parts are spread in
    different ways, or where the order would change what is computed.

    Args:
        joined: The parts.
        plan: Its plan, part after part, which says where the nodes run.
    """
    stage_of, devices = _stages(joined, plan)
    if len(set(devices)) == len(devices):
        return None
    stages_of = [
        [s for s, d in enumerate(devices) if d == device] for device in sorted(set(devices))
    ]
    schedule = rounds(len(joined.firsts), stages_of, len(stages_of))
    try:
        return apply_schedule(joined, stage_of, schedule)
    except GraphError:  # a state that a later stage writes and another part's earlier one reads
        return None


def _stages(joined: Joined, plan: Plan) -> tuple[list[int], Sequence[int]]:
    """Return the stage of each node, counted within its part, and the device of each stage.

    No stages where two parts disagree.
    """
    seen: list[list[int]] = [[] for _ in joined.firsts]
    stage_of: list[int] = []
    for choice, part in zip(plan.placement.choices, joined.part_of, strict=True):
        own = seen[part]
        if not own or own[-1] != choice.device:
            own.append(choice.device)
        stage_of.append(len(own) - 1)
    longest = max(seen, key=len, default=[])
    agree = all(longest[: len(own)] == own for own in seen)
    return stage_of, longest if agree else ()


Pipelining = Literal["auto", "on", "off"]

DEFAULT_SLOTS = 2
"""One buffer that is read and one that is written: more are of use only where a copy takes longer
than a stage."""

_WORTH_IT = 0.95
_KEPT = 16
_FEW: Final = 4
"""Micro-batches of a plan that others follow, or as many as devices and so that all have turns.

A plan's memory is free for its run after next when it has left the last device; by then its
alternate must have kept the first device busy. That takes one less than there are devices."""


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
        sequential_s: Seconds one micro-batch after another.
        source: Where the rates came from.
    """

    together_s: float
    sequential_s: float
    source: str

    @property
    def pays(self) -> bool:
        """Whether joining is predicted to be worth it."""
        return self.together_s < _WORTH_IT * self.sequential_s


_Key = tuple[tuple[str, bool], ...]


@dataclass(frozen=True)
class _Batch:
    joined: Joined
    constraints: Constraints


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
        lanes: int = 1,
    ) -> None:
        """Take what runs the model.

        Args:
            scheduler: Plans and runs.
            constraints: Homes of weights and states.
            rates: For predictions.
            mode: ``auto`` goes by the prediction; ``on`` joins whatever it says.
            slots: Buffers of what is handed from device to device, ``DEFAULT_SLOTS`` if not given.
            lanes: Micro-batches that are under way on a device at once, on streams of their own.
        """
        self.scheduler = scheduler
        self.constraints = constraints
        self.rates = rates
        self.mode = mode
        self.slots = DEFAULT_SLOTS if slots is None else slots
        self.lanes = lanes
        self._batches: RecentCache[_Key, _Batch] = RecentCache(_KEPT)
        self._forecasts: RecentCache[_Key, Forecast | None] = RecentCache(_KEPT)
        self._paid: set[tuple[object, ...]] = set()
        self._is_cut = True

    def pays(self, parts: Sequence[MicroBatch]) -> bool:
        """Whether these should run as one graph.

        What pays does so too where attention looks at more rows of the cache, which all stages do.

        Raises:
            PlanError: a part cannot be placed on the devices.
        """
        if self.mode == "off" or len(parts) < 2 or len(self.scheduler.topology.devices) < 2:
            return False
        if self.mode == "on":
            return True
        sizes = (*map(_sizes, parts), *(part.is_wanted for part in parts))
        if sizes not in self._paid:
            forecast = self.forecast(parts)
            if forecast is None or not forecast.pays:
                return False
            self._paid.add(sizes)
        return True

    def count(self, parts: Sequence[MicroBatch]) -> int:
        """Return how many of the micro-batches that may run as one graph are to do so (ADR 78).

        A few, which the next ones follow without a wait, plan as fast for any number; all where a
        wait would come between, or where logits are wanted before.

        Args:
            parts: Micro-batches in a row, as many as may run as one graph.

        Raises:
            PlanError: they cannot be placed on the devices.
        """
        n_devices = len(self.scheduler.topology.devices)
        few = -(-_FEW // n_devices) * n_devices
        first = parts[:few]
        if self.mode == "off" or n_devices < 2 or len(parts) <= few or not self._is_cut:
            return len(parts)
        if any(part.is_wanted for part in first):
            return len(parts)
        self._is_cut = self.scheduler.takes_turns(self.plan(first))
        return few if self._is_cut else len(parts)

    def forecast(self, parts: Sequence[MicroBatch]) -> Forecast | None:
        """Return what both ways are predicted to take; None where one device does it all."""
        return self._forecasts.get(_key(parts), lambda: self._forecast(parts))

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
        return self._batches.get(_key(parts), lambda: self._join(self._planned(parts)))

    def _planned(self, parts: Sequence[MicroBatch]) -> list[MicroBatch]:
        """Return the parts as they are planned; a joined graph is planned as it is."""
        planned = self.scheduler.planned_graph
        return [replace(p, graph=planned(p.graph, self.constraints)) for p in parts]

    def _join(self, parts: Sequence[MicroBatch]) -> _Batch:
        keep = [part.graph.outputs[:1] if part.is_wanted else () for part in parts]
        name = f"{parts[0].graph.name} x {len(parts)}"
        joined = join_graphs([part.graph for part in parts], keep=keep, name=name)
        constraints = self.constraints.with_slots(Slots(self.slots, joined.firsts, self.lanes))
        return _Batch(self._in_better_order(joined, constraints), constraints)

    def _in_better_order(self, joined: Joined, constraints: Constraints) -> Joined:
        """Return the parts in turns where a part comes back to a device and that is faster.

        Parts with streams of their own do not wait for each other in any order.
        """
        if self.lanes > 1:
            return joined
        plan = self.scheduler.plan(joined.graph, constraints)
        turned = interleave(joined, plan)
        if turned is None:
            return joined
        other = self.scheduler.plan(turned.graph, constraints)
        now = predict_step(joined.graph, plan, self.rates).seconds
        then = predict_step(turned.graph, other, self.rates).seconds
        return turned if then < now else joined

    def _forecast(self, parts: Sequence[MicroBatch]) -> Forecast | None:
        batch, parts = self._batch(parts), self._planned(parts)
        first = self.scheduler.plan(parts[0].graph, self.constraints)
        if len({s.device for s in first.splits.splits}) < 2:
            return None
        sequential_s = sum(
            self._sequential_s([p.graph for p in some]) for some in _of_one_size(parts)
        )
        plan = self.scheduler.plan(batch.joined.graph, batch.constraints)
        prediction = predict_step(batch.joined.graph, plan, self.rates)
        return Forecast(prediction.seconds, sequential_s, prediction.source)

    def _sequential_s(self, graphs: Sequence[Graph]) -> float:
        """Return what graphs of one size take one after another, going by the first and the last.

        They differ in the rows of the cache that attention looks at, which grow evenly.
        """
        ends = graphs if len(graphs) < 3 else (graphs[0], graphs[-1])  # two ends
        plans = [self.scheduler.plan(graph, self.constraints) for graph in ends]
        seconds = [
            predict_step(graph, plan, self.rates).seconds
            for graph, plan in zip(ends, plans, strict=True)
        ]
        return sum(seconds) / len(seconds) * len(graphs)


def _key(parts: Sequence[MicroBatch]) -> _Key:
    return tuple((part.graph.digest, part.is_wanted) for part in parts)


def _sizes(part: MicroBatch) -> tuple[object, ...]:
    """Return the shapes of inputs, which depend on the tokens, not on the rows of the cache."""
    return tuple(t.shape for t in part.graph.roots(Role.INPUT))


def _of_one_size(parts: Sequence[MicroBatch]) -> Iterator[list[MicroBatch]]:
    """Yield micro-batches in a row whose inputs have the same shapes."""
    for _, some in groupby(parts, key=_sizes):
        yield list(some)


MakeGraph = Callable[[int, int, int], Graph]
"""Returns the graph of (tokens, tokens before them, tokens that get logits)."""


def dry_run(
    graph: MakeGraph,
    step_graph: MakeGraph,
    micro_batches: MicroBatches,
    n_prompt: int,
    n_predict: int,
    *,
    n_ctx: int,
    step: int,
    together: int,
    all_logits: bool = False,
    pads: bool = False,
    runs_ahead: bool = False,
) -> Iterator[Plan]:
    """Yield the plans of a prompt and of the decoding steps that follow, in order of their use.

    Plans that come again one after another are given once, those of several micro-batches twice.

    Args:
        graph: Makes graphs of the model.
        step_graph: Makes those of decoding steps.
        micro_batches: Decides which micro-batches run as one graph.
        n_prompt: Tokens of the prompt; at least one.
        n_predict: Tokens to generate at most; the last one is not fed back.
        n_ctx: Rows of the KV cache; generation ends when it is full.
        step: Tokens of one micro-batch at most.
        together: Micro-batches of one batch, which may run as one graph.
        all_logits: Whether each token of the prompt gets logits.
        pads: Whether the last micro-batch is rounded up, see ``padding``.
        runs_ahead: Whether decoding steps are started one ahead of the other; then their plans are
            given twice where they come again.

    Raises:
        UsageError: a prompt that is empty or that does not fit the context.
        PlanError: a graph cannot be placed.
    """
    more = padding(n_prompt, step=step, room=n_ctx - n_prompt) if pads and not all_logits else 0

    def parts(first: int) -> list[MicroBatch]:
        found = []
        for start in range(first, min(n_prompt, first + step * together), step):
            n = min(step, n_prompt - start)
            is_last = start + n == n_prompt
            made = graph(n + more if is_last else n, start, n if all_logits else 1)
            found.append(MicroBatch(made, all_logits or is_last))
        return found

    together = micro_batches.count(parts(0))
    for first in batch_starts(n_prompt, n_ctx=n_ctx, step=step, together=together, most=2):
        yield from _plans(micro_batches, parts(first))
    starts = [*decoding_starts(n_prompt, n_predict, n_ctx=n_ctx)]
    end = min(n_ctx, n_prompt + n_predict - 1)
    for past, later in pairwise([*starts, end]):
        steps = [MicroBatch(step_graph(1, past, 1), True)]
        for _ in range(1 + (runs_ahead and later - past > 1)):
            yield from _plans(micro_batches, steps)


def _plans(micro_batches: MicroBatches, parts: Sequence[MicroBatch]) -> Iterator[Plan]:
    if micro_batches.pays(parts):
        yield micro_batches.plan(parts)
        return
    for part in parts:
        yield micro_batches.scheduler.plan(part.graph, micro_batches.constraints)
