"""Several sequences of one model: each has its own rows of the cache, and all share the weights.

    with Session(model, devices, SessionOptions(n_ctx=4096, n_parallel=4)) as session:
        several = session.sequences
        a, b = several.join(), several.join()
        logits = several.step({a: prompt, b: other_prompt})
        logits = several.step({a: [3], b: [7]})  # one token of each, in one micro-batch
        c = several.copy(a)  # goes on from the same tokens
        several.leave(b)

The cache is divided into as many equal parts as there may be sequences. Which rows a token sees is
an input of the graph, so tokens of different sequences, of prompts and of decoding alike, are rows
of the same micro-batch, and sequences join and leave without a new plan.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ggsched.errors import UsageError
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import I32
from ggsched.ir.graph import Graph
from ggsched.ir.tensor import Role
from ggsched.run.call_guard import CallGuard, guarded
from ggsched_llm.batches import Span, kv_bucket
from ggsched_shard.names import part_of

if TYPE_CHECKING:
    from ggsched.scheduler import Scheduler
    from ggsched_llm.batch_runner import BatchRunner
    from ggsched_llm.session_options import SessionOptions
    from ggsched_llm.spec import ModelSpec


def refuse_to_cut(spec: "ModelSpec", what: str, hint: str) -> None:
    """Refuse to forget the end of a sequence where a block keeps one state for all of it.

    Raises:
        UsageError: there is such a block.
    """
    if spec.hparams.recurrent is not None:
        why = f"blocks of {spec.hparams.arch} keep a state that cannot be rolled back"
        raise UsageError(f"{what} cannot be cut", why=why, hint=hint)


class _Owner(Protocol):
    """What sequences use of their session."""

    options: "SessionOptions"
    spec: "ModelSpec"
    batches: "BatchRunner"
    scheduler: "Scheduler"

    @property
    def guard(self) -> CallGuard:
        """Admits one call at a time."""

    @property
    def n_past(self) -> int:
        """Tokens of the session's own sequence."""

    def check_tokens(self, tokens: Sequence[int]) -> None:
        """Refuse what is not a token."""


@dataclass(slots=True)
class _Slot:
    """A part of the cache.

    Attributes:
        first_row: Where it begins.
        n_past: Tokens of the sequence in it; None while nobody uses it.
    """

    first_row: int
    n_past: int | None = None


class Sequences:
    """The sequences of a session, by number; made by ``Session.sequences``.

    The guard of the session admits one call at a time. The session's own sequence (``feed``,
    ``generate``) and these exclude each other, since both use the whole cache.
    """

    def __init__(self, session: _Owner) -> None:
        self._session = session
        options = session.options
        self.n_rows: int = options.n_ctx // options.n_parallel
        self._slots = [_Slot(i * self.n_rows) for i in range(options.n_parallel)]
        self._copies: dict[int, Graph] = {}

    @property
    def guard(self) -> CallGuard:
        """The session's guard."""
        return self._session.guard

    @property
    def active(self) -> tuple[int, ...]:
        """Numbers of the sequences that have joined."""
        return tuple(i for i, slot in enumerate(self._slots) if slot.n_past is not None)

    def length(self, sequence: int) -> int:
        """Return how many tokens a sequence has.

        Raises:
            UsageError: it has not joined.
        """
        return self._past(sequence)

    @guarded()
    def join(self) -> int:
        """Begin a sequence and return its number.

        Raises:
            UsageError: all parts of the cache are in use, or the session's own sequence has tokens.
        """
        if self._session.n_past:
            raise UsageError(
                f"the session has a sequence of {self._session.n_past} tokens of its own",
                hint="call reset() of the session first",
            )
        free = self._free()
        if not self.active and self._session.batches.has_nonfinite:
            self._session.scheduler.clear_states()
            self._session.batches.has_nonfinite = False
        self._slots[free].n_past = 0
        return free

    @guarded()
    def leave(self, sequence: int) -> None:
        """End a sequence; its part of the cache is free.

        Raises:
            UsageError: it has not joined.
        """
        self._past(sequence)
        self._slots[sequence].n_past = None

    @guarded()
    def truncate(self, sequence: int, n_tokens: int) -> None:
        """Forget all but the first tokens of a sequence.

        Raises:
            UsageError: it has not joined, or is shorter.
        """
        past = self._past(sequence)
        if not 0 <= n_tokens <= past:
            what = f"sequence {sequence} cannot be cut to {n_tokens} tokens"
            raise UsageError(what, why=f"it has {past}")
        if n_tokens not in (0, past):
            refuse_to_cut(self._session.spec, f"sequence {sequence}", "copy() it before the draft")
        self._slots[sequence].n_past = n_tokens

    @guarded(is_open=True)
    def copy(self, sequence: int) -> int:
        """Begin a sequence with the tokens of another; the rows of the cache are copied on devices.

        Raises:
            UsageError: as ``join``, or it has not joined.
        """
        past, made = self._past(sequence), self._free()
        if past:
            count = kv_bucket(past, self.n_rows)
            graph = self._copies.get(count)
            if graph is None:
                graph = self._copies[count] = self._copy_graph(count)
            rows = np.arange(count, dtype=np.int32)
            source, target = self._slots[sequence].first_row, self._slots[made].first_row
            given = {"source": source + rows, "target": target + rows}
            slots = {"source_slot": sequence, "target_slot": made}
            given |= {name: np.array([slot], np.int32) for name, slot in slots.items()}
            given = {name: array for name, array in given.items() if name in graph}
            self._session.scheduler.run(graph, given, self._session.batches.constraints)
        self._slots[made].n_past = past
        return made

    @guarded(is_open=True)
    def step(
        self, tokens: Mapping[int, Sequence[int]], *, copy: bool = True
    ) -> dict[int, np.ndarray]:
        """Append tokens to sequences, all in the same micro-batches; all of them or none.

        Args:
            tokens: Ids by sequence, at least one for each sequence.
            copy: False for logits that may be views of memory that the next call of the session
                overwrites. Logits of many sequences have many megabytes.

        Returns:
            float32 (vocabulary,) for the last token of each sequence.

        Raises:
            UsageError: no sequence, one that has not joined, an id outside the vocabulary, a full
                part of the cache, or another thread is in a call.
        """
        if not tokens:
            raise UsageError("no sequences to feed", hint="name at least one, with its tokens")
        batches = self._session.batches
        numbers = self._one_each(tokens) if len(tokens) <= batches.step else None
        if numbers is not None:
            logits = batches.run_tokens(np.array(numbers, np.int32).T, copy=copy)
        else:
            spans = [
                Span(np.asarray(ids, np.int32), self._room(i, ids), self._slots[i].first_row, i)
                for i, ids in tokens.items()
            ]
            logits = batches.run_spans(spans, copy=copy)
        for sequence, ids in tokens.items():
            self._slots[sequence].n_past = self._past(sequence) + len(ids)
        return dict(zip(tokens, logits, strict=True))

    def _one_each(
        self, tokens: Mapping[int, Sequence[int]]
    ) -> list[tuple[int, int, int, int]] | None:
        """Return token, tokens before it, first row and slot of each; None if anything is odd."""
        found, n_vocab = [], self._session.spec.hparams.n_vocab
        for i, ids in tokens.items():
            token = ids[0] if len(ids) == 1 else None
            slot = self._slots[i] if 0 <= i < len(self._slots) else None
            if slot is None or slot.n_past is None or slot.n_past >= self.n_rows:
                return None
            if type(token) is not int or not 0 <= token < n_vocab:
                return None
            found.append((token, slot.n_past, slot.first_row, i))
        return found

    def _room(self, sequence: int, ids: Sequence[int]) -> int:
        """Return the tokens of a sequence; refuse more that are none, or that do not fit."""
        past = self._past(sequence)
        self._session.check_tokens(ids)
        if past + len(ids) > self.n_rows:
            raise UsageError(
                f"{past} + {len(ids)} tokens do not fit sequence {sequence}",
                why=f"it holds {self.n_rows}, which is n_ctx by n_parallel",
                hint="use a larger context, or fewer sequences",
            )
        return past

    def _free(self) -> int:
        for i, slot in enumerate(self._slots):
            if slot.n_past is None:
                return i
        raise UsageError(
            f"all {len(self._slots)} sequences are in use",
            hint="let one leave(), or open the session with a larger n_parallel",
        )

    def _past(self, sequence: int) -> int:
        if not 0 <= sequence < len(self._slots) or self._slots[sequence].n_past is None:
            active = ", ".join(map(str, self.active)) or "none"
            raise UsageError(f"sequence {sequence} has not joined", why=f"active: {active}")
        past = self._slots[sequence].n_past
        assert past is not None
        return past

    def _copy_graph(self, count: int) -> Graph:
        """Return the graph that copies rows of all caches."""
        model = self._session.batches.graph(1, 0, 1)
        g = GraphBuilder(f"copy {count} rows of the cache")
        source, target = g.input("source", (count,), I32), g.input("target", (count,), I32)
        slots = g.input("source_slot", (1,), I32), g.input("target_slot", (1,), I32)
        outputs = []
        for t in model.tensors:
            if t.role is Role.STATE and not t.is_view:
                cache = g.state(t.name, t.shape, t.dtype)
                of, to = slots if part_of(t.name)[0].endswith("_state") else (source, target)
                written = g.set_rows(cache, g.get_rows(cache, of), to, name=t.name)
                outputs.append(g.cont(g.rows(written, 0, 1), "f32"))
        return g.build(*outputs)
