"""Runs a model on tokens, batch by batch: graphs, plans, inputs, and one look at the logits."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, takewhile
from math import isfinite
from typing import TypeVar

import numpy as np

from ggsched.errors import GgschedError, UsageError
from ggsched.ir.dtype import DType
from ggsched.ir.graph import Graph
from ggsched.passes.place import Constraints
from ggsched.plan.bundle import Plan
from ggsched.run.cache import RecentCache
from ggsched.run.run_order import Outputs, StartedRun
from ggsched.scheduler import Scheduler
from ggsched.topology.caps import offers
from ggsched.topology.cost import MachineRates
from ggsched_llm.batches import (
    MicroBatch,
    MicroBatches,
    Span,
    dry_run,
    kv_bucket,
    padding,
    row_inputs,
    span_inputs,
)
from ggsched_llm.cache_rows import CacheRows
from ggsched_llm.graph import CHOOSING_OPS, KEEPING_OPS, build_model_graph
from ggsched_llm.memory_need import MemoryNeed, memory_need
from ggsched_llm.micro_batch_size import has_room
from ggsched_llm.sampling import argmax
from ggsched_llm.session_options import SessionOptions
from ggsched_llm.spec import ModelSpec
from ggsched_llm.timing import Timing
from ggsched_llm.token_inputs import NEXT_TOKEN, TokenInputs

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Part:
    """A micro-batch: tokens of one or several sequences, and those of them that get logits."""

    spans: tuple[Span, ...]
    out_rows: Sequence[int]
    is_wanted: bool

    @property
    def n_tokens(self) -> int:
        return sum(len(span.tokens) for span in self.spans)

    @property
    def n_rows(self) -> int:
        return max(span.end_row for span in self.spans)


@dataclass(slots=True)
class _Step:
    """A step that chooses and was started.

    Attributes:
        n_past: Tokens before the one that it runs.
        top: Id of the output that is the chosen token.
        largest: Id of the output that is its logit.
        token: What it runs, once that is known.
    """

    n_past: int
    run: StartedRun
    top: int
    largest: int
    token: int | None = None


@dataclass(frozen=True, slots=True)
class StartedRows:
    """A micro-batch that was started, of which several tokens get logits.

    Attributes:
        n_rows: Of how many tokens, the first ones, anything is wanted; others are padding.
        note: Checks that logits are finite.
    """

    run: StartedRun
    graph: Graph
    n_rows: int
    note: Callable[[np.ndarray], bool]

    @property
    def is_done(self) -> bool:
        """Whether nobody would wait for it."""
        return self.run.is_done

    def logits(self) -> np.ndarray:
        """Wait, and return float32 (tokens, vocabulary)."""
        logits: np.ndarray = self.run.outputs()[self.graph.outputs[0]][: self.n_rows]
        self.note(logits)
        return logits

    def tokens(self) -> list[int]:
        """Wait, and return what a graph that chooses chose, up to what is not finite."""
        out, (top, largest) = self.run.outputs(), self.graph.outputs
        chosen = zip(out[top][: self.n_rows, 0], out[largest][: self.n_rows], strict=True)
        return [int(token) for token, _ in takewhile(lambda found: self.note(found[1]), chosen)]


class BatchRunner:
    """A model on a scheduler; knows sizes, and nothing of the sequence.

    Attributes:
        micro_batches: Runs several micro-batches as one graph where that pays.
        constraints: What all plans are made with.
        chooses: Whether the token after a step can be chosen where the logits are: all devices
            have the ops, the logits are not in host memory, where the host could as well look at
            them, and a step can be run again, which states of recurrent blocks do not allow.
        keeps: Whether it stays there for the next step, which can be enqueued ahead of it then.
            Not beside a device in host memory, whose launches the enqueueing thread runs itself.
        step_s: Seconds that the last step that chose took, without setting up. One that was over
            while the caller was busy counts as the one before at most.
        n_draft: Tokens that the model's own head drafts at once; 0 where it does not.
        last_plan: Of the last run.
        top_token: The first of the largest logits of the last token; None if a device chose it.
    """

    def __init__(
        self,
        spec: ModelSpec,
        scheduler: Scheduler,
        constraints: Constraints,
        rates: MachineRates,
        options: SessionOptions,
        timing: Timing,
        *,
        rewrite: Callable[[Graph], Graph] | None = None,
        lanes: int = 1,
        larger: Sequence[int] = (),
        free: Sequence[int] = (),
        nbytes_beside: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        """Take what runs the model.

        Args:
            scheduler: Plans and runs.
            constraints: Homes of weights and states.
            rates: For predictions.
            timing: Takes the time that was spent.
            rewrite: Makes of the model's graphs what is planned.
            lanes: Micro-batches that devices which share layers work on at once.
            larger: Sizes of micro-batches that the first prompt which is longer than one may have
                in place of that of the options, if there is room.
            free: Bytes of each device for all that the session has.
            nbytes_beside: Returns the bytes of devices, by name, that a draft model takes of these.
        """
        self._larger, self._free = larger, free
        self._nbytes_beside = nbytes_beside
        self._rewrite = rewrite
        self._spec, self._scheduler, self._options = spec, scheduler, options
        self._pads = spec.hparams.recurrent is None  # states take each token in
        facts = [device.facts for device in scheduler.devices]
        hosts = [f.is_host or f.imports_host_memory for f in facts]
        last = constraints.homes.get(NEXT_TOKEN)
        on_host = any(hosts) if last is None else hosts[last]

        def able(ops: Sequence[tuple[str, DType]]) -> bool:
            return all(offers(f.ops, op, dtype.name) for f in facts for op, dtype in ops)

        self.chooses = self._pads and able(CHOOSING_OPS) and not on_host
        may_overlap = scheduler.overlaps and not any(hosts)
        self.keeps = self.chooses and able(KEEPING_OPS) and may_overlap
        self.n_draft = 0
        self.step_s = 0.0
        self._chosen_s = 0.0
        self._ahead: _Step | None = None
        self._timing = timing
        self.constraints = constraints
        self.micro_batches = MicroBatches(
            scheduler,
            constraints,
            rates,
            mode=options.pipelining,
            slots=options.pipeline_buffers,
            lanes=lanes,
        )
        self._graphs: RecentCache[tuple[int, int, int, bool], Graph] = RecentCache(64)
        self._alike: dict[tuple[int, int, bool], CacheRows] = {}
        self._of_token: tuple[Graph, TokenInputs] | None = None
        self.last_plan: Plan | None = None
        self._planned_last: tuple[object, ...] = (None, None, None)
        self.top_token: int | None = None
        self._has_nonfinite = False

    @property
    def has_nonfinite(self) -> bool:
        """Whether any logits were not finite since this was last set to False.

        Then the KV cache may hold such numbers.
        """
        self._drop_ahead()
        return self._has_nonfinite

    @has_nonfinite.setter
    def has_nonfinite(self, value: bool) -> None:
        self._has_nonfinite = value

    def graph(self, n_tokens: int, n_past: int, n_out: int, *, chooses: bool = False) -> Graph:
        """Return the graph of a micro-batch that follows ``n_past`` tokens."""
        return self._graph(n_tokens, n_past + n_tokens, n_out, chooses)

    def _graph(self, n_tokens: int, n_rows: int, n_out: int, chooses: bool = False) -> Graph:
        """Return the graph of a micro-batch that looks at the first rows of the cache."""
        n_ctx = self._options.n_ctx
        n_kv = kv_bucket(n_rows, n_ctx)

        def make() -> Graph:
            alike = self._alike.get((n_tokens, n_out, chooses))
            if alike is not None and n_kv < n_ctx:
                return alike.with_rows(n_kv)
            built = build_model_graph(
                self._spec,
                n_tokens=n_tokens,
                n_kv=n_kv,
                n_out=n_out,
                n_ctx=n_ctx,
                chooses=chooses,
                keeps=chooses and self.keeps and n_tokens == 1,
            )
            if self._rewrite is not None:
                built = self._rewrite(built)
            if n_kv < n_ctx and (found := CacheRows.of(built, n_kv)) is not None:
                self._alike[n_tokens, n_out, chooses] = found
            return built

        return self._graphs.get((n_tokens, n_kv, n_out, chooses), make)

    def memory_need(
        self, n_prompt: int, n_predict: int, *, all_logits: bool, chooses: bool
    ) -> MemoryNeed:
        """Return what a run takes, to the byte, without loading anything.

        Args:
            n_prompt: Tokens of the prompt.
            n_predict: Tokens to generate.
            all_logits: Whether each token of the prompt gets logits.
            chooses: Whether the tokens after the first are chosen where the logits are.

        Raises:
            UsageError: no prompt, or one that the context does not hold.
        """
        if n_prompt < 1 or n_predict < 0:
            what = f"a prompt of {n_prompt} tokens, and {n_predict} that are generated"
            raise UsageError(what, why="a prompt has at least one, and no number is negative")
        self._step_for(n_prompt)
        options = self._options
        plans = dry_run(
            self.graph,
            partial(self.graph, chooses=chooses),
            self.micro_batches,
            n_prompt,
            n_predict,
            n_ctx=options.n_ctx,
            step=options.step,
            together=self._together,
            all_logits=all_logits,
            pads=self._pads,
            runs_ahead=chooses and self.keeps,
        )
        if self.n_draft:
            end = min(max(n_prompt + n_predict, self.n_draft), options.n_ctx)
            graph = self._graph(self.n_draft, end, 0)
            plans = chain(plans, [self._scheduler.plan(graph, self.constraints)])
        n_devices = len(self._scheduler.topology.devices)
        kept, takes_turns = options.plans_kept, self._scheduler.takes_turns

        def twice(plan: Plan) -> bool:
            is_step = any(arena.name == NEXT_TOKEN for arena in plan.memory.arenas)
            return takes_turns(plan, started=is_step)

        return self._planned(
            lambda: memory_need(plans, n_devices, plans_kept=kept, double_buffered=twice)
        )

    def run(self, tokens: np.ndarray, n_past: int, *, all_logits: bool, copy: bool) -> np.ndarray:
        """Run tokens that follow ``n_past`` others, micro-batch by micro-batch.

        Args:
            tokens: int32; at least one.
            n_past: Tokens before them.
            all_logits: Return logits for each token instead of for the last one only.
            copy: False for logits that are to be read before anything else is run.
        """
        count = len(tokens)
        if count == 1:
            return self._run_token(int(tokens[0]), n_past, copy or all_logits)
        step = self._step_for(count)
        if self._pads and not all_logits:
            room = self._options.n_ctx - n_past - count
            more = padding(count, step=step, room=room)
            if more:  # rows of the cache that later tokens write before anybody looks at them
                tokens = np.pad(tokens, (0, more), mode="edge")
        parts: list[_Part] = []
        for start in range(0, len(tokens), step):
            piece = tokens[start : start + step]
            last = min(len(piece), count - start)
            rows = range(len(piece)) if all_logits else range(last - 1, last)
            is_wanted = all_logits or start + step >= len(tokens)
            parts.append(_Part((Span(piece, n_past + start),), rows, is_wanted))
        found = self._run_parts(parts, copy or all_logits)
        return np.concatenate(found) if all_logits else found[-1]

    def _run_token(self, token: int, n_past: int, copy: bool) -> np.ndarray:
        """Run one token, as ``run`` does, with less work for the host: a step waits for that."""
        graph = self._graph(1, n_past + 1, 1)
        return self._run(graph, self._inputs_of(graph, token, n_past), copy)

    def _inputs_of(self, graph: Graph, token: int, n_past: int) -> Mapping[str, np.ndarray]:
        known = self._of_token
        if known is None or known[0] is not graph:
            known = self._of_token = graph, TokenInputs(graph, self._spec.hparams.window)
        return known[1].at(token, n_past)

    def run_and_choose(self, token: int, n_past: int, *, goes_on: bool = False) -> int | None:
        """Run one token that follows ``n_past`` others, and choose the next where the logits are.

        Only where ``chooses``. The host then waits for eight bytes in place of the logits. Where it
        ``keeps``, and the caller says that it goes on, the step behind this one is enqueued before
        this one has come to its end, so that the devices need not wait for the host.

        Args:
            token: What to run.
            n_past: Tokens before it.
            goes_on: Whether the chosen token is to be run next. Its row of the cache is written
                even if it is not after all.

        Returns:
            The first of the largest logits. None if that is not finite: then the token has to be
            run again for its logits, as what is in front of the output matrix may not be finite.
        """
        self.top_token = None
        began, setup_s = time.perf_counter(), self._timing.setup_s
        step = self._ahead
        is_ahead = step is not None and (step.token, step.n_past) == (token, n_past)
        if step is None or not is_ahead:
            self._drop_ahead()
            step = self._ahead = self._start_step(token, n_past)
        is_hidden = is_ahead and step.run.is_done
        # If the next step cannot be started, this one is still there to be asked for again.
        self._ahead = self._start_step(None, n_past + 1) if goes_on and self.keeps else None
        found = self._note_step(step)
        ended = time.perf_counter()
        seconds = ended - (self._chosen_s if is_ahead else began) - self._timing.setup_s + setup_s
        self.step_s = min(seconds, self.step_s) if is_hidden else seconds
        self._chosen_s = ended
        if self._ahead is not None:
            self._ahead.token = found
        return found

    def _start_step(self, token: int | None, n_past: int) -> "_Step":
        """Start a step that chooses; without a token, with the one that the last step chose."""
        graph = self._graph(1, n_past + 1, 1, chooses=True)
        plan, constraints = self._plan(graph), self.constraints
        scheduler, known = self._scheduler, self._scheduler.setup_s
        if self.keeps and token is not None:
            scheduler.prepare(graph, constraints)
            scheduler.exchange.set_state(graph.named(NEXT_TOKEN), np.array([token], np.int32))
        inputs = self._inputs_of(graph, token or 0, n_past)
        run = scheduler.start(graph, inputs, constraints)
        self._timing.setup_s += scheduler.setup_s - known
        self.last_plan = plan
        top, largest = graph.outputs
        return _Step(n_past, run, top, largest, token)

    def _note_step(self, step: "_Step") -> int | None:
        """Return the token that a step chose, or None, which is noted, if it is not finite."""
        out = step.run.outputs()
        if isfinite(out[step.largest][0, 0, 0]):
            return int(out[step.top][0, 0])
        self._has_nonfinite = True  # also if the second run is never made
        return None

    def start_rows(
        self,
        tokens: Sequence[int],
        n_past: int,
        out_rows: Sequence[int],
        *,
        size: int,
        chooses: bool = False,
    ) -> StartedRows:
        """Start tokens that follow ``n_past`` others as one micro-batch, padded to ``size``.

        Rows of the cache behind the tokens are written, too, and have to be written again.

        Args:
            tokens: At least one.
            n_past: Tokens before them.
            out_rows: Which get logits, counted with the padding.
            size: Tokens of the micro-batch, for which the cache has room.
            chooses: Whether what follows them is chosen where the logits are.
        """
        self._drop_ahead()
        ids = np.full(size, tokens[-1], np.int32)
        ids[: len(tokens)] = tokens
        graph = self._graph(size, n_past + size, len(out_rows), chooses)
        self.last_plan = self._plan(graph)
        inputs = span_inputs(graph, [Span(ids, n_past)], out_rows, self._spec.hparams.window)
        scheduler, known = self._scheduler, self._scheduler.setup_s
        run = scheduler.start(graph, inputs, self.constraints)
        self._timing.setup_s += scheduler.setup_s - known
        return StartedRows(run, graph, min(len(tokens), len(out_rows)), self._note)

    def draft(self, token: int, n_past: int) -> Iterator[tuple[int, float]]:
        """Yield the tokens that the model's head predicts behind a token, with probabilities.

        Args:
            token: Not run yet.
            n_past: Tokens before it, at least one; all have been run.
        """
        self._drop_ahead()
        graph = self._graph(self.n_draft, n_past + self.n_draft, 0)
        ids, window = np.full(self.n_draft, token, np.int32), self._spec.hparams.window
        inputs = span_inputs(graph, [Span(ids, n_past)], (), window)
        inputs["bounds"][:, 0] = 1  # the first token has no row
        out = self._outputs(graph, inputs, copy=False)
        for top, share in zip(graph.outputs[::2], graph.outputs[1::2], strict=True):
            yield int(out[top][0, 0]), float(out[share][0, 0, 0])

    def _drop_ahead(self) -> None:
        """Wait for a step that was enqueued ahead and is not wanted; look at what it computed."""
        step, self._ahead = self._ahead, None
        if step is not None:
            with suppress(GgschedError):  # what a device does not forget comes up again
                self._note_step(step)

    def run_spans(self, spans: Sequence[Span], *, copy: bool = True) -> np.ndarray:
        """Run tokens of several sequences, micro-batch by micro-batch.

        Args:
            spans: The tokens of each, at least one, in different rows of the cache.
            copy: False for logits that are to be read before anything else is run.

        Returns:
            float32 (sequences, vocabulary), for the last token of each.
        """
        parts: list[_Part] = []
        step = self._step_for(sum(len(span.tokens) for span in spans))
        pieces: list[Span] = []
        ends: list[int] = []
        used = 0

        def close() -> None:
            nonlocal pieces, ends, used
            parts.append(_Part(tuple(pieces), ends or [used - 1], bool(ends)))
            pieces, ends, used = [], [], 0

        for span in spans:
            start = 0
            while start < len(span.tokens):
                piece = span.tokens[start : start + step - used]
                if len(piece) == len(span.tokens):
                    pieces.append(span)
                else:
                    pieces.append(replace(span, tokens=piece, n_past=span.n_past + start))
                start += len(piece)
                used += len(piece)
                if start == len(span.tokens):
                    ends.append(used - 1)
                if used == step:
                    close()
        if pieces:
            close()
        found = self._run_parts(parts, copy or sum(part.is_wanted for part in parts) > 1)
        return found[0] if len(found) == 1 else np.concatenate(found)

    def run_tokens(self, numbers: np.ndarray, *, copy: bool = True) -> np.ndarray:
        """Run a token of each of some sequences: ``run_spans`` with less work for the host.

        Args:
            numbers: Ids, tokens of the sequence before, first rows of the cache, slots: int32
                (4, T), for at most ``step`` tokens.
            copy: False for logits that are to be read before anything else is run.

        Returns:
            float32 (T, vocabulary).
        """
        tokens, positions, first, slots = np.ascontiguousarray(numbers)
        n = len(tokens)
        graph = self._graph(n, int((first + positions).max()) + 1, n)
        out_rows = np.arange(n, dtype=np.int32)
        window = self._spec.hparams.window
        inputs = row_inputs(graph, positions, first, slots, tokens, out_rows, window)
        return self._run(graph, inputs, copy)

    @property
    def step(self) -> int:
        """Tokens of a micro-batch at most."""
        return self._options.step

    def _step_for(self, n_tokens: int) -> int:
        """Return ``step``, which the first prompt that is longer may make larger."""
        if self._larger and n_tokens > self.step:
            sizes, self._larger, chosen = self._larger, (), self._options
            beside, devices = self._nbytes_beside(), self._scheduler.topology.devices
            free = [n - beside.get(d.name, 0) for n, d in zip(self._free, devices, strict=True)]
            try:
                for size in sizes:
                    self._options = larger = replace(chosen, n_ubatch=size)
                    logits_nbytes = 4 * size * self._spec.hparams.n_vocab
                    need = self.memory_need(size, 0, all_logits=False, chooses=False)
                    if has_room(need, logits_nbytes, free):
                        chosen = larger
                        break
            finally:  # no size stays that was not checked to its end
                self._options = chosen
        return self.step

    def _run_parts(self, parts: Sequence["_Part"], copy: bool) -> list[np.ndarray]:
        """Run micro-batches, batch by batch; return the logits of those that are wanted."""
        found: list[np.ndarray] = []
        graphs = [self._graph(p.n_tokens, p.n_rows, len(p.out_rows)) for p in parts]
        each = [MicroBatch(g, p.is_wanted) for g, p in zip(graphs, parts, strict=True)]
        first = 0
        while first < len(parts):
            some = each[first : first + self._together]
            end = first + self._planned(partial(self.micro_batches.count, some))
            found += self._run_batch(each[first:end], parts[first:end], copy)
            first = end
        return found

    @property
    def _together(self) -> int:
        """Micro-batches of one batch at most: as many as there are lanes, or any number."""
        most = max(1, self._options.n_batch // self._options.step)
        return min(most, self.micro_batches.lanes) if self.micro_batches.lanes > 1 else most

    def _run_batch(
        self, each: Sequence[MicroBatch], parts: Sequence["_Part"], copy: bool
    ) -> list[np.ndarray]:
        """Run the micro-batches of a batch, together where that pays."""
        window = self._spec.hparams.window
        self._drop_ahead()

        def inputs(k: int) -> dict[str, np.ndarray]:
            return span_inputs(each[k].graph, parts[k].spans, parts[k].out_rows, window)

        self._timing.batches += len(parts) > 1
        if len(parts) > 1 and self._planned(lambda: self.micro_batches.pays(each)):
            self.last_plan = self.micro_batches.plan(each)
            self._planned_last = (None, None, None)
            rows = self._ran(lambda: self.micro_batches.run(each, inputs))
            self._timing.joined += 1
            for logits in rows:
                self._note(logits)
            return rows
        found = [self._run(part.graph, inputs(k), copy) for k, part in enumerate(each)]
        return [logits for logits, part in zip(found, each, strict=True) if part.is_wanted]

    def _run(self, graph: Graph, inputs: Mapping[str, np.ndarray], copy: bool) -> np.ndarray:
        logits = self._outputs(graph, inputs, copy=copy)[graph.outputs[0]]
        self._note(logits)
        return logits

    def _outputs(self, graph: Graph, inputs: Mapping[str, np.ndarray], *, copy: bool) -> Outputs:
        if self._ahead is not None:
            self._drop_ahead()
        self.last_plan = self._plan(graph)
        scheduler, known = self._scheduler, self._scheduler.setup_s
        out = scheduler.run(graph, inputs, self.constraints, copy=copy)
        self._timing.setup_s += scheduler.setup_s - known
        return out

    def _plan(self, graph: Graph) -> Plan:
        """Return the plan of the next run of a graph, which may be the one that ran last."""
        scheduler, constraints = self._scheduler, self.constraints
        before, plan, topology = self._planned_last, self.last_plan, scheduler.topology
        is_same = before[0] is graph and before[1] is constraints and before[2] is topology
        if plan is None or not is_same or scheduler.settings.streams == "autotune":
            plan = self._planned(lambda: scheduler.plan(graph, constraints))
            self._planned_last = graph, constraints, topology
        return plan

    def _planned(self, make: Callable[[], T]) -> T:
        """Return what is made; its time counts as planning if plans had to be made."""
        known, began = self._scheduler.plan_cache.misses, time.perf_counter()
        made = make()
        if self._scheduler.plan_cache.misses != known:
            seconds = time.perf_counter() - began
            self._timing.planning_s += seconds
            self._timing.setup_s += seconds
        return made

    def _ran(self, run: Callable[[], T]) -> T:
        """Return what a run returns; what it spent on loading and compiling counts as set-up."""
        known = self._scheduler.setup_s
        out = run()
        self._timing.setup_s += self._scheduler.setup_s - known
        return out

    def _note(self, logits: np.ndarray) -> bool:
        """Return whether logits are finite; note that, and the largest one for the sampler.

        A value that is not finite in front of the output matrix is in each sum of its row, so one
        column shows it.
        """
        self.top_token = best = argmax(logits[-1])
        is_finite = isfinite(logits[-1, best]) and (
            isfinite(logits[0, 0]) if len(logits) == 1 else np.isfinite(logits[:, 0]).all()
        )
        self._has_nonfinite |= not is_finite
        return bool(is_finite)
