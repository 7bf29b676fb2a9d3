"""A session: one sequence of tokens, its KV cache, and the scheduler that runs the model on it."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

import numpy as np

from ggsched.backend.protocols import Device
from ggsched.calibrate.cache import load_rates
from ggsched.config import Settings
from ggsched.errors import UsageError
from ggsched.ir.graph import Graph
from ggsched.models.batches import MicroBatch, MicroBatches, batch_inputs, kv_bucket, rehearse
from ggsched.models.fit import Fit
from ggsched.models.graph import build_model_graph
from ggsched.models.homes import (
    balance_options,
    constraints_of,
    fit_options,
    homes_by_policy,
    untie_embedding,
)
from ggsched.models.load import Model, weight_array
from ggsched.models.memory_need import MemoryNeed, memory_need
from ggsched.models.offload import Homes, find_homes, source_name
from ggsched.models.sampling import Sampler, Sampling, argmax
from ggsched.models.session_options import SessionOptions
from ggsched.models.spec import ModelSpec
from ggsched.passes.place import Constraints
from ggsched.plan.bundle import Plan
from ggsched.run.cache import RecentCache
from ggsched.run.call_guard import CallGuard, guarded
from ggsched.run.release import close_after
from ggsched.run.store import Progress
from ggsched.scheduler import Scheduler
from ggsched.topology.cost import MachineRates
from ggsched.trace.recorder import Recorder

__all__ = ["Session", "SessionOptions", "Timing"]

_LOG: Final = logging.getLogger("ggsched")


@dataclass(slots=True)
class Timing:
    """Tokens and seconds spent on them.

    Attributes:
        prompt_tokens: Tokens that were fed in runs of several, or as a prompt.
        prompt_s: Seconds that took.
        decode_tokens: Tokens that were fed one by one while generating.
        decode_s: Seconds that took.
        planning_s: Seconds spent on planning, checks included, which are part of the above.
        fastest_step_s: Seconds of the fastest of the decoding steps, 0 before there is one.
    """

    prompt_tokens: int = 0
    prompt_s: float = 0.0
    decode_tokens: int = 0
    decode_s: float = 0.0
    planning_s: float = 0.0
    fastest_step_s: float = 0.0

    def note_step(self, seconds: float) -> None:
        """Take note of a decoding step."""
        self.decode_tokens += 1
        self.decode_s += seconds
        if self.fastest_step_s:
            seconds = min(seconds, self.fastest_step_s)
        self.fastest_step_s = seconds


class Session:
    """A model on devices, with one sequence; close it, or use ``with``.

    One call at a time, as for ``Scheduler``, whose guard it shares: a call that is made while
    another thread is in one, of the session or of its scheduler, raises ``UsageError`` and changes
    nothing. Threads may take turns, also with a generator of ``generate``. ``n_past``,
    ``constraints``, ``timing`` and ``last_plan`` may be read at any time.
    """

    def __init__(
        self,
        model: Model,
        devices: Sequence[str] | Sequence[Device] | None = None,
        options: SessionOptions | None = None,
        *,
        settings: Settings | None = None,
        progress: Progress | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        """Open devices and decide where the model's tensors live; nothing is loaded yet.

        Raises:
            UsageError: sizes that make no sense, a device or a rule that does not exist.
            BackendUnavailable: a device that is not there.
        """
        self.model = model
        self.spec: ModelSpec = model.spec
        self.options = options or SessionOptions()
        self.options.check()
        self.scheduler = Scheduler(
            devices,
            weights=lambda name: weight_array(model, source_name(self.spec, name)),
            settings=settings,
            placement=self.options.placement,
            plan_limit=self.options.plans_kept,
            progress=progress,
            recorder=recorder,
        )
        try:
            topology = self.scheduler.topology
            self.rates: MachineRates = load_rates(topology, self.scheduler.settings.rates)
            self.fit: Fit | None = None
            parts = model.spec, self.scheduler, self.rates, self.options
            self.homes: Homes
            if self.options.is_by_layers:
                if self.options.fit is None:
                    self.options = balance_options(*parts)
                else:
                    self.options, self.fit = fit_options(*parts)
                self.spec = untie_embedding(model.spec, self.scheduler, self.options, self.fit)
                self.homes = find_homes(self.spec, topology, self.options.offload)
            else:
                self.homes = homes_by_policy(*parts)
        except BaseException:
            self.scheduler.close()
            raise
        self._constraints = constraints_of(self.homes, self.rates)
        options = self.options
        self._micro_batches = MicroBatches(
            self.scheduler,
            self._constraints,
            self.rates,
            mode=options.pipelining,
            slots=options.pipeline_buffers,
        )
        self._graphs: RecentCache[tuple[int, int, int], Graph] = RecentCache(64)
        self._n_past = 0
        self._edits = 0  # of the sequence; what is being generated belongs to one of them
        self._is_tainted = False
        self._likeliest: int | None = None  # of the last logits, where it is known
        self.last_plan: Plan | None = None
        self.timing = Timing()
        if self.fit is not None and options.pipelining == "auto":
            self._let_pipeline_fit(self.fit)

    @property
    def guard(self) -> CallGuard:
        """Admits one call at a time; the scheduler's."""
        return self.scheduler.guard

    @property
    def constraints(self) -> Constraints:
        """What all plans of the session are made with."""
        return self._constraints

    @property
    def n_past(self) -> int:
        """Tokens in the sequence so far."""
        return self._n_past

    @guarded(is_open=True, may_nest=True)
    def graph(self, n_tokens: int, n_past: int, n_out: int) -> Graph:
        """Return the graph of a micro-batch that follows ``n_past`` tokens."""
        n_kv = kv_bucket(n_past + n_tokens, self.options.n_ctx)
        return self._graphs.get(
            (n_tokens, n_kv, n_out),
            lambda: build_model_graph(
                self.spec,
                n_tokens=n_tokens,
                n_kv=n_kv,
                n_out=n_out,
                n_ctx=self.options.n_ctx,
            ),
        )

    def plan(self, n_tokens: int, n_past: int = 0, n_out: int = 1) -> Plan:
        """Return the plan of a micro-batch, without running it."""
        return self.plan_of(self.graph(n_tokens, n_past, n_out))

    def plan_of(self, graph: Graph) -> Plan:
        """Return the plan of a graph of the model, with the session's homes and rates."""
        return self.scheduler.plan(graph, self._constraints)

    @guarded(is_open=True, may_nest=True)
    def memory_need(self, n_prompt: int, n_predict: int, *, all_logits: bool = False) -> MemoryNeed:
        """Return what a run takes, to the byte, without loading anything.

        Args:
            n_prompt: Tokens of the prompt.
            n_predict: Tokens to generate.
            all_logits: Whether each token of the prompt gets logits.

        Raises:
            UsageError: a prompt that the context does not hold.
        """
        options = self.options
        plans = rehearse(
            self.graph,
            self._micro_batches,
            n_prompt,
            n_predict,
            n_ctx=options.n_ctx,
            step=options.step,
            together=max(1, options.n_batch // options.step),
            all_logits=all_logits,
        )
        n_devices = len(self.scheduler.topology.devices)
        return memory_need(plans, n_devices, plans_kept=options.plans_kept)

    @guarded(is_open=True)
    def feed(self, tokens: Sequence[int], *, all_logits: bool = False) -> np.ndarray:
        """Append tokens to the sequence, micro-batch by micro-batch; all of them or none.

        Args:
            tokens: Ids; at least one.
            all_logits: Return logits for each token instead of for the last one only.

        Returns:
            float32 (tokens, vocabulary), or (1, vocabulary) for the last token.

        Raises:
            UsageError: no tokens, an id outside the vocabulary, a full context, or another thread
                is in a call.
        """
        return self._feed(tokens, all_logits, copy=True)

    def _feed(self, tokens: Sequence[int], all_logits: bool, *, copy: bool) -> np.ndarray:
        """Append tokens. Without copy, logits are to be read before anything else is fed."""
        self._check_tokens(tokens)
        rows: list[np.ndarray] = []
        step = self.options.step
        whole = np.asarray(tokens, np.int32)
        parts = [whole[start : start + step] for start in range(0, len(whole), step)]
        size = max(1, self.options.n_batch // step)
        before = self._n_past
        try:
            for first in range(0, len(parts), size):
                is_last = first + size >= len(parts)
                batch = parts[first : first + size]
                rows += self._run_batch(batch, all_logits, is_last, copy or all_logits)
        except BaseException:
            self._n_past = before
            raise
        self._edits += 1
        return np.concatenate(rows) if all_logits else rows[-1]

    def generate(
        self,
        prompt: Sequence[int],
        n_predict: int,
        sampling: Sampling | None = None,
        *,
        stop: frozenset[int] = frozenset(),
        on_logits: Callable[[np.ndarray], None] | None = None,
    ) -> Iterator[int]:
        """Feed a prompt, then yield up to ``n_predict`` tokens, the stop token not among them.

        Between two tokens other calls may be made that leave the sequence as it is. After one that
        changes it (``feed``, ``reset``, another ``generate``) the generator raises.

        Args:
            prompt: Ids; at least one.
            n_predict: Tokens at most.
            sampling: Greedy where not given.
            stop: Ids that end the generation. It ends early, with a warning, when the context is
                full.
            on_logits: Called with the logits (rows, vocabulary) of all that is fed: of every
                prompt token, then of each generated token but the last. The session may be used
                in it, as between two tokens.

        Raises:
            UsageError: as ``feed``, or the sequence was changed since the last token.
        """
        sampler = Sampler(sampling or Sampling())
        fed, edits, token = prompt, 0, -1
        for i in range(max(1, n_predict)):
            with self.guard.hold("Session.generate", is_open=True):
                if i and self._edits != edits:
                    raise UsageError(
                        f"the sequence was changed after {i} generated tokens",
                        where="Session.generate",
                        why="feed, reset or another generate ran between two tokens",
                        hint="end one generation before the next, or use a session for each",
                    )
                if i and self._n_past == self.options.n_ctx:
                    _LOG.warning("the context of %d tokens is full (see -c)", self.options.n_ctx)
                    return
                logits = self._feed_timed(fed, is_prompt=not i, is_shown=on_logits is not None)
                edits = self._edits
                if on_logits is None and n_predict > 0:  # logits are lent until the next call
                    token = sampler.choose(logits[-1], self._likeliest)
            if on_logits is not None:
                on_logits(logits)
                if n_predict > 0:
                    token = sampler.choose(logits[-1])
            if n_predict <= 0 or token in stop:
                return
            yield token
            fed = [token]

    def _feed_timed(self, tokens: Sequence[int], *, is_prompt: bool, is_shown: bool) -> np.ndarray:
        """Feed a prompt or a generated token; logits that are shown to somebody are copies."""
        began = time.perf_counter()
        if is_prompt:
            logits = self.feed(tokens, all_logits=is_shown)
            self.timing.prompt_tokens += len(tokens)
            self.timing.prompt_s += time.perf_counter() - began
        else:
            logits = self._feed(tokens, all_logits=False, copy=is_shown)
            self.timing.note_step(time.perf_counter() - began)
        return logits

    @guarded(is_open=True)
    def reset(self) -> None:
        """Forget the sequence.

        What it left in the cache is masked, so it need not be cleared; only numbers that are not
        finite would get through, because zero times infinity is not zero.
        """
        self._n_past = 0
        self._edits += 1
        if self._is_tainted:
            self.scheduler.clear_states()
            self._is_tainted = False

    def close(self) -> None:
        """Release everything; legal twice."""
        self.scheduler.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        close_after(error, self)

    def _let_pipeline_fit(self, chosen: Fit) -> None:
        """Run micro-batches one by one if there is no memory for those of a batch together."""
        if len(self.scheduler.topology.devices) > 1:
            need = self.memory_need(self.options.n_ctx, 1, all_logits=chosen.all_logits)
            if not chosen.has_room(need):
                self._micro_batches.mode = "off"

    def _run_batch(
        self, parts: Sequence[np.ndarray], all_logits: bool, is_last: bool, copy: bool
    ) -> list[np.ndarray]:
        """Run the micro-batches of a batch, together where that pays; return their logits."""
        if len(parts) == 1:
            return [self._run(parts[0], len(parts[0]) if all_logits else 1, copy)]
        past = [self._n_past + sum(map(len, parts[:k])) for k in range(len(parts))]
        n_out = [len(part) if all_logits else 1 for part in parts]
        each = [
            MicroBatch(self.graph(len(part), p, n), all_logits or (is_last and part is parts[-1]))
            for part, p, n in zip(parts, past, n_out, strict=True)
        ]
        known, began = self.scheduler.plan_cache.misses, time.perf_counter()
        pays = self._micro_batches.pays(each)
        if self.scheduler.plan_cache.misses != known:
            self.timing.planning_s += time.perf_counter() - began
        if not pays:
            return [self._run(part, n, copy) for part, n in zip(parts, n_out, strict=True)]
        window = self.model.hparams.window
        self.last_plan = self._micro_batches.plan(each)
        rows = self._micro_batches.run(
            each, lambda k: batch_inputs(each[k].graph, parts[k], past[k], n_out[k], window)
        )
        self._n_past += sum(map(len, parts))
        for logits in rows:
            self._note(logits)
        return rows

    def _run(self, tokens: np.ndarray, n_out: int, copy: bool) -> np.ndarray:
        n, past = len(tokens), self._n_past
        graph = self.graph(n, past, n_out)
        known = self.scheduler.plan_cache.misses
        began = time.perf_counter()
        self.last_plan = self.scheduler.plan(graph, self._constraints)
        if self.scheduler.plan_cache.misses != known:
            self.timing.planning_s += time.perf_counter() - began
        inputs = batch_inputs(graph, tokens, past, n_out, self.model.hparams.window)
        out = self.scheduler.run(graph, inputs, self._constraints, copy=copy)
        self._n_past += n
        logits = out[graph.outputs[0]]
        self._note(logits)
        return logits

    def _note(self, logits: np.ndarray) -> None:
        """Look at logits once: for numbers that are not finite, and for what a sampler asks."""
        self._likeliest = best = argmax(logits[-1])
        top = logits[-1, best] if len(logits) == 1 else logits.max()
        self._is_tainted |= not np.isfinite(top)

    def _check_tokens(self, tokens: Sequence[int]) -> None:
        if not len(tokens):
            raise UsageError("no tokens to feed", hint="a prompt needs at least one token")
        n_vocab = self.model.hparams.n_vocab
        wrong = next((t for t in tokens if not 0 <= t < n_vocab), None)
        if wrong is not None:
            raise UsageError(f"token {wrong} is not in the vocabulary", why=f"it has {n_vocab}")
        if self._n_past + len(tokens) > self.options.n_ctx:
            raise UsageError(
                f"{self._n_past} + {len(tokens)} tokens do not fit the context",
                why=f"it holds {self.options.n_ctx}",
                hint="use a larger -c, or a shorter prompt",
            )
