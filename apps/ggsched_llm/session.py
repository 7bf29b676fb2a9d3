"""A session: one sequence of tokens, its KV cache, and the scheduler that runs the model on it."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ggsched.backend.protocols import Device
from ggsched.backend.registry import open_devices
from ggsched.calibrate.cache import load_rates
from ggsched.config import Settings
from ggsched.errors import GgschedError, UsageError
from ggsched.ir.dtype import DType
from ggsched.ir.graph import Graph
from ggsched.passes.place import Constraints
from ggsched.plan.bundle import Plan
from ggsched.run.call_guard import CallGuard, guarded
from ggsched.run.release import close_after
from ggsched.run.store import Progress
from ggsched.scheduler import Scheduler
from ggsched.topology.cost import MachineRates
from ggsched.trace.recorder import Recorder
from ggsched_llm.batch_runner import BatchRunner
from ggsched_llm.choice_apart import devices_by_default
from ggsched_llm.default_devices import DefaultDevices
from ggsched_llm.draft import Draft, HeadDraft, check_vocabularies
from ggsched_llm.draft_options import DraftOptions
from ggsched_llm.fit import Fit
from ggsched_llm.fit_sharing import fit_in_shares
from ggsched_llm.generation import generate
from ggsched_llm.homes import ChosenHomes, choose_homes
from ggsched_llm.load import Model, weight_array
from ggsched_llm.memory_need import MemoryNeed
from ggsched_llm.micro_batch_size import larger_steps
from ggsched_llm.offload import EMBEDDING, Homes, source_name
from ggsched_llm.quick_rates import WORTH_NBYTES, with_links, with_products
from ggsched_llm.sampling import Sampling
from ggsched_llm.sequences import Sequences, refuse_to_cut
from ggsched_llm.session_options import SessionOptions
from ggsched_llm.sharing import Sharing, check_sharing, placement_of, sharing_options
from ggsched_llm.spec import ModelSpec, cache_dtype
from ggsched_llm.timing import Timing

__all__ = ["Session", "SessionOptions"]


class Session:
    """A model on devices, with one sequence; close it, or use ``with``.

    One call at a time, as for ``Scheduler``, whose guard it shares: a call during a call of another
    thread, of the session or its scheduler, raises ``UsageError`` and changes nothing. Different
    threads may make calls one after another, also with a generator of ``generate``. ``n_past``,
    ``constraints``, ``timing`` and ``last_plan`` may be read at any time.

    Examples:
        >>> from importlib.resources import files
        >>> from ggsched_llm.load import load_model
        >>> from ggsched_llm.session import Session
        >>> model = load_model(str(files("ggsched.data") / "addition-moe.gguf"))
        >>> tokens = model.tokenizer.encode("12+34=")
        >>> with Session(model, ["cpu:0"]) as session:
        ...     model.tokenizer.decode(list(session.generate(tokens, 2)))
        '46'
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
        draft: tuple[Model, DraftOptions] | None = None,
    ) -> None:
        """Open devices and decide where the model's tensors live; nothing is loaded yet.

        Without devices, and if the options do not divide the model over several, the devices are
        those that are predicted to be fastest (``ggsched_llm.default_devices``). With a draft,
        ``--fit`` leaves its memory, and ``use_draft`` is called in the end.

        Raises:
            UsageError: invalid sizes, a rule for a device that is not among them, or a draft that
                ``use_draft`` refuses.
            BackendUnavailable: a device that does not exist.
        """
        self.model = model
        self.options = options or SessionOptions()
        self.options.check()
        dtype = cache_dtype(model.spec, self.options.cache_type)
        self.spec: ModelSpec = replace(
            model.spec, cache_dtype=dtype, n_slots=self.options.n_parallel
        )
        self.sharing: Sharing | None = None
        is_shared = self.options.split_mode == "tensor"
        if is_shared:
            check_sharing(self.options, model.hparams)
        self.default_devices: DefaultDevices | None = None
        if devices is None and self.options.leaves_devices_open:
            known = settings or Settings.from_environment()
            self.default_devices = devices_by_default(
                self.spec, self.options.n_ctx, known, self.options.expected
            )
            devices = self.default_devices.names
        self.scheduler = Scheduler(
            devices,
            weights=self._weight,
            settings=settings,
            placement=placement_of(self.options) if is_shared else self.options.placement,
            plan_limit=self.options.plans_kept,
            progress=progress,
            recorder=recorder,
        )
        self.timing = Timing()
        self.draft: Draft | HeadDraft | None = None
        self._is_closed = False
        self._tokens: list[int] = []
        self._edits = 0  # of the sequence; what is being generated belongs to one of them
        try:
            if draft is not None:
                self._leave_room_for(*draft)
            self._asked = self.spec, self.options
            self._settle()
            if draft is not None:
                self.use_draft(*draft)
        except BaseException:
            self.scheduler.close()
            raise

    def _settle(self) -> None:
        """Decide where the model's tensors live on the devices that there are."""
        self.spec, self.options = self._asked
        topology = self.scheduler.topology
        is_shared = self.options.split_mode == "tensor"
        self.rates: MachineRates = load_rates(topology, self.scheduler.settings.rates)
        if is_shared:
            self.sharing = Sharing.of(self.spec, topology.devices, self.options, self.rates)
        found = self._choose_homes()
        self.spec, self.options = found.spec, found.options
        self.homes: Homes = found.homes
        self.fit: Fit | None = found.fit
        self.rates = self._measured_rates()
        lanes = self.sharing.lanes if self.sharing is not None else 1
        self.batches = BatchRunner(
            self.spec,
            self.scheduler,
            replace(self.homes.constraints(self.rates), reads_peers=is_shared),
            self.rates,
            self.options,
            self.timing,
            rewrite=self.sharing.graph if self.sharing is not None else None,
            lanes=lanes,
            larger=larger_steps(self.options, topology.devices, self.homes, lanes),
            free=self.scheduler.free_nbytes(),
            nbytes_beside=lambda: _nbytes_of(self.draft),
        )
        if self.fit is not None and self.options.pipelining == "auto":
            self._let_pipeline_fit(self.fit)

    def _restart(self) -> None:
        """Begin anew after a fault, on the devices that there are now, with an empty sequence."""
        self._drop_draft()  # its devices may be those that are opened again
        self.scheduler.reset()
        self._settle()
        self._cut(0)

    @property
    def guard(self) -> CallGuard:
        """Admits one call at a time; the scheduler's."""
        return self.scheduler.guard

    @property
    def constraints(self) -> Constraints:
        """What all plans of the session are made with."""
        return self.batches.constraints

    @property
    def last_plan(self) -> Plan | None:
        """The plan that ran last."""
        return self.batches.last_plan

    @property
    def n_past(self) -> int:
        """Tokens in the sequence so far."""
        return len(self._tokens)

    @guarded(is_open=True, may_nest=True)
    def graph(self, n_tokens: int, n_past: int, n_out: int) -> Graph:
        """Return the graph of a micro-batch that follows ``n_past`` tokens.

        Args:
            n_tokens: Tokens of the micro-batch.
            n_past: Tokens that are in the cache.
            n_out: Of how many, the last ones, logits are returned.

        Examples:
            >>> with Session(model, ["cpu:0"]) as session:
            ...     len(session.graph(1, 0, 1).outputs)
            1
        """
        return self.batches.graph(n_tokens, n_past, n_out)

    @guarded(is_open=True, may_nest=True)
    def step_graph(self, n_past: int) -> Graph:
        """Return the graph of a token that follows ``n_past`` others, as ``generate`` runs it.

        Where the logits are not in host memory a greedy generation has the next token chosen there,
        and this graph returns its index and its logit. Where no device computes in host memory, it
        takes its token from the step before. Elsewhere, and in models with recurrent blocks, it
        returns logits.

        Args:
            n_past: Tokens that are in the cache.

        Examples:
            >>> with Session(model, ["cpu:0"]) as session:
            ...     session.step_graph(8).outputs == session.graph(1, 8, 1).outputs
            True
        """
        return self.batches.graph(1, n_past, 1, chooses=self.batches.chooses)

    def plan(self, n_tokens: int, n_past: int = 0, n_out: int = 1) -> Plan:
        """Return the plan of a micro-batch, without running it.

        Args:
            n_tokens: Tokens of the micro-batch.
            n_past: Tokens that are in the cache.
            n_out: Of how many, the last ones, logits are returned.

        Raises:
            PlanError: it cannot be placed on the devices.

        Examples:
            >>> with Session(model, ["cpu:0"]) as session:
            ...     [device.name for device in session.plan(1).devices]
            ['cpu:0']
        """
        return self.plan_of(self.graph(n_tokens, n_past, n_out))

    def plan_of(self, graph: Graph) -> Plan:
        """Return the plan of a graph of the model, with the session's homes and rates.

        Args:
            graph: Of a micro-batch.

        Raises:
            PlanError: it cannot be placed on the devices.

        Examples:
            >>> with Session(model, ["cpu:0"]) as session:
            ...     len(session.plan_of(session.graph(1, 0, 1)).devices)
            1
        """
        return self.scheduler.plan(graph, self.constraints)

    @guarded(is_open=True, may_nest=True)
    def memory_need(
        self,
        n_prompt: int,
        n_predict: int,
        *,
        all_logits: bool = False,
        sampling: Sampling | None = None,
    ) -> MemoryNeed:
        """Return what a run takes, to the byte, without loading anything.

        Args:
            n_prompt: Tokens of the prompt.
            n_predict: Tokens to generate.
            all_logits: Whether each token gets logits that are shown to somebody.
            sampling: Greedy where not given.

        Raises:
            UsageError: a prompt that the context does not hold.

        Examples:
            >>> with Session(model, ["cpu:0"]) as session:
            ...     session.memory_need(8, 4).peak[0].total > 0
            True
        """
        is_greedy = sampling is None or sampling.is_greedy
        chooses = self.batches.chooses and is_greedy and not all_logits
        return self.batches.memory_need(n_prompt, n_predict, all_logits=all_logits, chooses=chooses)

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

        Examples:
            >>> with Session(model, ["cpu:0"]) as session:
            ...     logits = session.feed(tokens)
            ...     session.n_past == len(tokens), logits.shape[0]
            (True, 1)
        """
        return self._feed(tokens, all_logits, copy=True)

    def _feed(self, tokens: Sequence[int], all_logits: bool, *, copy: bool) -> np.ndarray:
        """Append tokens. Without copy, logits are to be read before anything else is fed."""
        self._check(tokens)
        if not self._tokens:
            self._clear_nonfinite()
        whole = np.asarray(tokens, np.int32)
        logits = self.batches.run(whole, self.n_past, all_logits=all_logits, copy=copy)
        self._take(tokens)
        return logits

    def _take(self, tokens: Sequence[int]) -> None:
        """Take note that tokens have been run."""
        self._tokens.extend(tokens)
        self._edits += 1

    def _cut(self, n_tokens: int) -> None:
        """Forget all but the first tokens."""
        del self._tokens[n_tokens:]
        self._edits += 1
        if self.draft is not None:
            self.draft.cut(n_tokens)

    def _choose_next(self, tokens: Sequence[int], *, goes_on: bool) -> int | np.ndarray:
        """Append tokens; return the next one if it was chosen on a device, else logits.

        If generation goes on, the step of the next token may be started ahead.
        """
        if len(tokens) == 1 and self.batches.chooses:
            self._check(tokens)
            past, goes_on = self.n_past, goes_on and self.n_past + 1 < self.options.n_ctx
            token = self.batches.run_and_choose(int(tokens[0]), past, goes_on=goes_on)
            if token is not None:
                self._take(tokens)
                return token
        return self._feed(tokens, False, copy=False)

    def generate(
        self,
        prompt: Sequence[int],
        n_predict: int,
        sampling: Sampling | None = None,
        *,
        stop: frozenset[int] = frozenset(),
        on_logits: Callable[[np.ndarray], None] | None = None,
        keep: int | None = None,
        retries: int = 0,
    ) -> Iterator[int]:
        """Feed a prompt, then yield up to ``n_predict`` tokens, without the stop token.

        Calls that do not change the sequence are allowed between two tokens. After one that changes
        it (``feed``, ``reset``, another ``generate``) the generator raises ``UsageError``.

        Args:
            prompt: Ids; at least one.
            n_predict: Tokens at most.
            sampling: Greedy where not given.
            stop: Ids that end the generation. It ends early, with a warning, when the context is
                full, unless ``keep`` is given.
            on_logits: Called with the logits (rows, vocabulary): those of every prompt token, then
                those of each generated token but the last. It may use the session, as between
                two tokens.
            keep: Continue when the context is full: the first ``keep`` tokens and the later half
                of the others are fed again as a new sequence; -1 keeps the prompt. The sequence
                has to begin with this prompt.
            retries: How many times to continue after a fault of a device or the loss of a machine:
                open the devices that are left, feed the tokens so far again, and go on. The
                sequence has to begin with this prompt.

        Raises:
            UsageError: as ``feed``, the sequence was changed since the last token, or ``keep``
                leaves nothing to forget.

        Examples:
            >>> with Session(model, ["cpu:0"]) as session:
            ...     len(list(session.generate(tokens, 2)))
            2
        """
        return generate(
            self,
            prompt,
            n_predict,
            sampling or Sampling(),
            stop=stop,
            on_logits=on_logits,
            keep=keep,
            retries=retries,
        )

    @cached_property
    def sequences(self) -> Sequences:
        """Several sequences in parts of the cache, ``SessionOptions.n_parallel`` at most."""
        return Sequences(self)

    @guarded(is_open=True)
    def reset(self) -> None:
        """Forget the sequence; after the loss of a machine, also start on those that are left.

        What it left in the cache is masked, so it need not be cleared; only numbers that are not
        finite would get through, because zero times infinity is not zero. They are cleared, at once
        or when no other sequences are in the cache.

        Examples:
            >>> with Session(model, ["cpu:0"]) as session:
            ...     logits = session.feed(tokens)
            ...     session.reset()
            ...     session.n_past
            0
        """
        if self.scheduler.is_lost:
            self._restart()
        else:
            self._reset()

    def _reset(self) -> None:
        self._cut(0)
        self._clear_nonfinite()

    def _clear_nonfinite(self) -> None:
        """Clear the cache if numbers in it may not be finite, unless sequences are in it."""
        if self.batches.has_nonfinite and not self._active:
            self.scheduler.clear_states()
            self.batches.has_nonfinite = False

    @property
    def _active(self) -> tuple[int, ...]:
        """Numbers of the sequences that share the cache."""
        return self.sequences.active if "sequences" in vars(self) else ()

    @guarded(is_open=True)
    def truncate(self, n_tokens: int) -> None:
        """Forget all but the first tokens of the sequence, as when a draft was refused.

        Args:
            n_tokens: How many stay.

        Raises:
            UsageError: the sequence is shorter, the number is negative, blocks of the model keep
                states that cannot be rolled back, or numbers that are not finite may be in the
                cache (then only ``reset`` clears them).

        Examples:
            >>> with Session(model, ["cpu:0"]) as session:
            ...     logits = session.feed(tokens)
            ...     session.truncate(2)
            ...     session.n_past
            2
        """
        if not 0 <= n_tokens <= self.n_past:
            what = f"the sequence cannot be cut to {n_tokens} tokens"
            raise UsageError(what, why=f"it has {self.n_past}")
        if not n_tokens:
            self.reset()
            return
        if n_tokens < self.n_past:
            hint = "call reset() and feed the tokens again, or copy() one of session.sequences"
            refuse_to_cut(self.spec, "the sequence", hint)
        if self.batches.has_nonfinite:
            raise UsageError(
                "the sequence cannot be cut",
                why="logits were not finite, so the KV cache may hold such numbers",
                hint="call reset(), then feed the tokens again",
            )
        self._cut(n_tokens)

    @guarded()
    def use_draft(self, model: Model, options: DraftOptions | None = None) -> None:
        """Let ``generate`` verify what a draft model proposes (``ggsched_llm.draft``).

        The tokens are those of the model alone, up to rounding: a micro-batch of several tokens may
        be computed by other kernels than one token. While drafts gain no time, none are made. The
        draft is closed with the session, or when another one takes its place.

        Args:
            model: The draft, small, with the same vocabulary; or the session's own model, which
                proposes with its head if it was loaded with that.
            options: Its devices, and how many tokens it proposes.

        Raises:
            UsageError: another vocabulary, one of the models keeps states that cannot be rolled
                back, micro-batches have no room for a draft, or the session is closed.
            BackendUnavailable: a device of the draft that does not exist.

        Examples:
            >>> with Session(model, ["cpu:0"]) as session:
            ...     session.use_draft(model)
            ...     model.tokenizer.decode(list(session.generate(tokens, 2)))
            '46'
        """
        options = options or DraftOptions()
        options.check()
        if self._is_closed:
            raise UsageError("the session is closed", hint="use a draft before it is closed")
        needed = 1 + max(1, options.draft_min)
        if self.options.step < needed:
            raise UsageError(
                f"a draft needs micro-batches of {needed} tokens",
                why=f"they have {self.options.step} (-ub, -b), and one verifies a whole draft",
                hint=f"use -ub and -b of at least {needed}, or no draft model",
            )
        for spec in (self.spec, model.spec):
            refuse_to_cut(spec, "a draft", "generate without a draft model")
        check_vocabularies(self.model, model)
        made = self._draft_of(model, options)
        self._drop_draft()
        self.draft = made
        self.batches.n_draft = made.count if isinstance(made, HeadDraft) else 0

    def _draft_of(self, model: Model, options: DraftOptions) -> Draft | HeadDraft:
        """Open a draft model beside this one, or take this one's own head.

        Raises:
            UsageError: a device of another machine.
            BackendUnavailable: a device that does not exist.
        """
        if model is self.model and model.hparams.predicts:
            if options.draft_devices:
                why = "the model's own head drafts, where its output layer is"
                raise UsageError("--draft-devices without a draft model", why=why)
            return HeadDraft(self, options)
        ours = {device.facts.name: device for device in self.scheduler.devices}
        names = options.draft_devices or tuple(ours)[:1]
        if away := [name for name in names if "://" in name]:
            raise UsageError(
                f"the draft model cannot be on {away[0]}",
                why="models of one machine keep their tensors apart, those of several do not",
                hint="name devices of this machine with --draft-devices",
            )
        own, devices, settings = list[Device](), dict[str, Device](), self.scheduler.settings
        try:
            for name in names:
                made = [] if name in ours else open_devices([name], allow=settings.backends)
                own += made
                for device in made or [ours[name]]:  # "cuda" may stand for one that is open
                    devices[device.facts.name] = ours.get(device.facts.name, device)
            sizes = SessionOptions(
                n_ctx=self.options.n_ctx,
                n_batch=self.options.n_batch,
                n_ubatch=self.options.step,  # only the model takes memory for more
            )
            inner = Session(model, [*devices.values()], sizes, settings=settings)
        except BaseException:
            for device in own:
                device.close()
            raise
        return Draft(inner, options, own, is_apart=not ours.keys() & devices.keys())

    def _leave_room_for(self, model: Model, options: DraftOptions) -> None:
        """Let ``--fit`` leave what a draft model takes."""
        if self.options.fit is None:
            return
        draft = self._draft_of(model, options)
        try:
            n_draft = draft.count if isinstance(draft, HeadDraft) else 0
            fit = replace(self.options.fit, beside=_nbytes_of(draft), n_draft=n_draft)
        finally:
            draft.close()
        self.options = replace(self.options, fit=fit)

    def _drop_draft(self) -> None:
        draft, self.draft = self.draft, None
        if draft is not None:
            draft.close()

    def close(self) -> None:
        """Release everything; legal twice.

        Examples:
            >>> session = Session(model, ["cpu:0"])
            >>> session.close()
        """
        if self.draft is not None and os.getpid() == self.guard.process:
            with self.guard.hold("Session.close"):
                self._drop_draft()
        self.scheduler.close()
        self._is_closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        close_after(error, self)

    def _weight(self, name: str) -> NDArray[Any]:
        """Return the bytes of a weight, or of a part of one, for the graphs of the session."""
        if self.sharing is not None:
            return self.sharing.array(self.model, name)
        return weight_array(self.model, source_name(self.spec, name))

    def _choose_homes(self) -> ChosenHomes:
        """Return where weights and caches live, by layers, by cost or in shares."""
        shared = self.sharing
        if shared is None:
            return choose_homes(self.spec, self.scheduler, self.rates, self.options)
        options, chosen = self.options, None
        if options.fit is not None:
            options, chosen, shared = fit_in_shares(self.spec, self.scheduler, self.rates, options)
            self.sharing = shared
        options = sharing_options(options, shared)
        return ChosenHomes(shared.spec, options, shared.homes, chosen)

    def _measured_rates(self) -> MachineRates:
        """Return the rates, with what decides where weights of a CPU are used measured if guessed.

        That is done only where there is something to decide: an accelerator beside a CPU with
        weights, which either could compute with.
        """
        topology, rates, homes = self.scheduler.topology, self.rates, self.homes.devices
        kinds = [facts.kind for facts in topology.devices]
        is_settled = self.sharing is not None or self.options.offload.experts.offload != "auto"
        if is_settled or not {"cpu"} < set(kinds):
            return rates
        dtypes: dict[int, set[DType]] = {}
        nbytes = 0
        for name, weight in self.spec.weights.items():
            here = homes[name]
            if kinds[here] == "cpu" and len(weight.shape) > 1 and name != EMBEDDING:
                dtypes.setdefault(here, set()).add(weight.dtype)
                nbytes += weight.nbytes
        if nbytes < WORTH_NBYTES:
            return rates
        devices = self.scheduler.devices
        rates = with_products(rates, devices, dtypes)
        for src in dtypes:
            rates = with_links(rates, topology, devices, src)
        return rates

    def _let_pipeline_fit(self, chosen: Fit) -> None:
        """Run micro-batches one by one if there is no memory for those of a batch together."""
        if len(self.scheduler.topology.devices) > 1:
            need = self.memory_need(self.options.n_ctx, 1, all_logits=chosen.all_logits)
            if not chosen.has_room(need):
                self.batches.micro_batches.mode = "off"

    def check_tokens(self, tokens: Sequence[int]) -> None:
        """Refuse what is not a sequence of token ids.

        Args:
            tokens: What would be fed.

        Raises:
            UsageError: no tokens, or an id that is not an integer or not in the vocabulary.

        Examples:
            >>> with Session(model, ["cpu:0"]) as session:
            ...     session.check_tokens(tokens)
        """
        n_vocab = self.model.hparams.n_vocab
        if len(tokens) == 1 and type(tokens[0]) is int and 0 <= tokens[0] < n_vocab:
            return  # as while decoding
        if not len(tokens):
            raise UsageError("no tokens to feed", hint="a prompt needs at least one token")
        for odd in (t for t in tokens if not _is_id(t)):
            raise UsageError(f"{odd!r} is not a token id", why="ids are whole numbers, one by one")
        wrong = next((t for t in tokens if not 0 <= t < n_vocab), None)
        if wrong is not None:
            raise UsageError(f"token {wrong} is not in the vocabulary", why=f"it has {n_vocab}")

    def _check(self, tokens: Sequence[int]) -> None:
        """Refuse tokens that the session's own sequence cannot take."""
        self.check_tokens(tokens)
        if self._active:
            raise UsageError(
                "the session's cache is in use by several sequences",
                why=f"active: {', '.join(map(str, self._active))}",
                hint="use session.sequences, or let them leave() first",
            )
        if self.n_past + len(tokens) > self.options.n_ctx:
            raise UsageError(
                f"{self.n_past} + {len(tokens)} tokens do not fit the context",
                why=f"it holds {self.options.n_ctx}",
                hint="use a larger -c, or a shorter prompt",
            )


def _nbytes_of(draft: Draft | HeadDraft | None) -> dict[str, int]:
    """Return what a draft takes of devices; nothing where its plans cannot be made, as it says."""
    with suppress(GgschedError):
        return {} if draft is None else draft.nbytes()
    return {}


def _is_id(token: object) -> bool:
    return isinstance(token, int | np.integer) and not isinstance(token, bool)
