"""Speculative decoding: a draft proposes tokens, the model verifies them in one micro-batch.

A draft is another model, or the head of the model that predicts further tokens.

A round runs the last token and the proposal behind it, and returns what follows each of them. The
sampler chooses from the first; if it chooses what was proposed, it goes on with the second, which
is then what a step of its own would have returned. So the sampler sees the same logits in the same
order as without a draft, and the same seed leads to the same text, whatever was proposed. Rows of
the caches behind the last accepted token are masked, and written again.
"""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import takewhile
from math import exp, isfinite
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from ggsched.errors import (
    DeviceFault,
    GgschedError,
    ModelError,
    OutOfDeviceMemory,
    PlanError,
    SyncTimeout,
    UsageError,
)
from ggsched.scheduler import Scheduler
from ggsched_llm.batch_runner import BatchRunner
from ggsched_llm.draft_options import DraftOptions
from ggsched_llm.draft_pacing import Pacing
from ggsched_llm.memory_need import MemoryNeed
from ggsched_llm.sampling import Sampler
from ggsched_llm.session_options import SessionOptions
from ggsched_llm.timing import Timing

if TYPE_CHECKING:
    from ggsched.backend.protocols import Device
    from ggsched_llm.load import Model

_LOG: Final = logging.getLogger("ggsched")
_STEPS: Final = 2
"""Tokens behind a prompt by which memory is counted: later ones need little more."""

_MAX_PADDING: Final = 128
"""Rows by which vocabularies of models of one family differ: their matrices are padded."""


class DraftedSequence(Protocol):
    """What drafting needs of the sessions of both models; see ``Session``."""

    model: "Model"
    options: SessionOptions
    timing: Timing
    batches: BatchRunner
    draft: "Draft | HeadDraft | None"
    _tokens: list[int]

    scheduler: Scheduler

    def memory_need(self, n_prompt: int, n_predict: int) -> MemoryNeed:
        """See ``Session``."""

    def _check(self, tokens: Sequence[int]) -> None: ...

    def _take(self, tokens: Sequence[int]) -> None: ...

    def _cut(self, n_tokens: int) -> None: ...

    def _feed(self, tokens: Sequence[int], all_logits: bool, *, copy: bool) -> np.ndarray: ...

    def _choose_next(self, tokens: Sequence[int], *, goes_on: bool) -> int | np.ndarray: ...

    def _drop_draft(self) -> None: ...

    def close(self) -> None:
        """Release everything."""


def check_vocabularies(model: "Model", draft: "Model") -> None:
    """Refuse a draft whose tokens are others than the model's.

    Raises:
        UsageError: the vocabularies differ by more than padding at their ends.
    """
    sizes = model.hparams.n_vocab, draft.hparams.n_vocab
    why = f"the model has {sizes[0]} tokens, the draft {sizes[1]}"
    is_alike = abs(sizes[0] - sizes[1]) <= _MAX_PADDING
    if model.tokenizer.has_text and draft.tokenizer.has_text:
        pairs = zip(model.tokenizer.vocab.tokens, draft.tokenizer.vocab.tokens, strict=False)
        odd = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        if is_alike and odd is not None:
            is_alike, why = False, f"token {odd} is another text"
    else:
        is_alike = sizes[0] == sizes[1]
    if not is_alike:
        raise UsageError(
            "the draft model has another vocabulary",
            where=draft.file.path,
            why=why,
            hint="take a draft of the model's own family, or none",
        )


class Draft:
    """A draft model beside a session; made by ``Session.use_draft``.

    Attributes:
        session: The draft's; its sequence follows that of the model, or runs ahead of it.
        is_apart: Whether its devices are others than the model's, so that both can work at once.
    """

    def __init__(
        self,
        session: DraftedSequence,
        options: DraftOptions,
        devices: "Sequence[Device]",
        *,
        is_apart: bool,
    ) -> None:
        """Take what runs the draft model.

        Args:
            devices: Those that were opened for it alone.
        """
        self.session, self.options, self.is_apart = session, options, is_apart
        self._devices = devices
        self._agreed = 0  # tokens that both sequences are known to have in common
        self._next: int | None = None  # what follows all tokens of the draft's sequence

    def nbytes(self) -> dict[str, int]:
        """Return the bytes that the draft takes of its devices, by name."""
        inner = self.session
        n_prompt = min(inner.options.n_ctx, inner.options.step)
        need = inner.memory_need(n_prompt, min(_STEPS, inner.options.n_ctx - n_prompt))
        devices = inner.scheduler.topology.devices
        return {facts.name: need.least[d].total for d, facts in enumerate(devices)}

    def keep(self, n_tokens: int) -> None:
        """Take note that what the model has behind a number of tokens may be taken back."""
        self._agreed = min(self._agreed, n_tokens)

    def cut(self, n_tokens: int) -> None:
        """Forget all but the first tokens, as the model does."""
        self.keep(n_tokens)
        if n_tokens < len(self.session._tokens):
            self.session._cut(n_tokens)
            self._next = None

    def propose(
        self,
        known: Sequence[int],
        count: int,
        sampler: Sampler | None = None,
        *,
        until: Callable[[], bool] = lambda: False,
    ) -> list[int]:
        """Return up to ``count`` tokens that may follow.

        Args:
            known: The sequence; at least one token.
            sampler: Stands where the next token is drawn; the draft draws with the same random
                numbers from its own logits. None for the most probable tokens.
            until: Ends the proposal when it returns True.

        Raises:
            ModelError: the draft's logits are not finite, or a token is not in its vocabulary.
        """
        own, found = self.session._tokens, list[int]()
        sampler = sampler and sampler.copy()
        self._agree(known)
        if len(own) >= len(known) and self._next is not None:
            found = [*own[len(known) :], self._next]
        while len(found) < count and not until():
            is_last = len(found) + 1 == count and not self.is_apart
            pending = found[-1:] or known[len(own) :]
            self._next = self._guess(pending, sampler, goes_on=not is_last)
            if self._next is None:
                break
            found.append(self._next)
        return found[:count]

    def _agree(self, known: Sequence[int]) -> None:
        """Cut the draft's sequence where it leaves the model's, or where nothing is known of it."""
        own, at = self.session._tokens, self._agreed
        end = min(len(own), len(known))
        while at < end and own[at] == known[at]:
            at += 1
        if at < end:
            self.cut(at)
        elif len(own) >= len(known) and self._next is None:
            self.cut(len(known) - 1)
        self._agreed = at

    def _guess(
        self, tokens: Sequence[int], sampler: Sampler | None, *, goes_on: bool
    ) -> int | None:
        """Run tokens; return the one that follows, None if it is too improbable."""
        inner, n_vocab = self.session, self.session.model.hparams.n_vocab
        if max(tokens) >= n_vocab:
            what = f"has no token {max(tokens)}"
            raise ModelError(what, where=inner.model.file.path, why=f"its vocabulary has {n_vocab}")
        found = self._run(tokens, goes_on=goes_on)
        if isinstance(found, int):
            return found
        row, best = found[-1], inner.batches.top_token
        assert best is not None  # of logits that came to the host
        if not isfinite(row[best]):
            raise _not_finite(self.session)
        token = best if sampler is None else sampler.choose(row, best)
        p_min = self.options.draft_p_min
        if p_min and exp(row[token] - row[best]) < p_min * np.exp(row - row[best]).sum():
            return None
        return token

    def _run(self, tokens: Sequence[int], *, goes_on: bool) -> int | np.ndarray:
        """Run tokens, several padded to a power of two, so that few plans are made."""
        inner, count = self.session, len(tokens)
        past, size = len(inner._tokens), 1 << (count - 1).bit_length()
        if count == 1 and not self.options.draft_p_min:
            return inner._choose_next(tokens, goes_on=goes_on)
        if not 1 < size <= min(inner.batches.step, inner.options.n_ctx - past):
            return inner._feed(tokens, False, copy=False)
        inner._check(tokens)
        chooses = inner.batches.chooses and not self.options.draft_p_min
        rows = inner.batches.start_rows(tokens, past, [count - 1], size=size, chooses=chooses)
        found = next(iter(rows.tokens()), None) if chooses else rows.logits()
        inner._take(tokens)
        if found is None:
            raise _not_finite(self.session)
        return found

    def close(self) -> None:
        """Release the draft model and the devices that were opened for it."""
        with suppress(GgschedError):  # of a device that faulted
            self.session.close()
        for device in self._devices:
            with suppress(GgschedError):
                device.close()


def _not_finite(session: DraftedSequence) -> ModelError:
    return ModelError("computed logits that are not finite", where=session.model.file.path)


class HeadDraft:
    """Drafts of the model's own head that predicts further tokens (``prediction_head``).

    Each run of the model fills the head's caches, so there is nothing to follow or to take back.

    Attributes:
        session: The model's.
        is_apart: See ``Draft``.
        count: Tokens that are drafted at once: as many as are verified at once at most.
    """

    is_apart: Final = False

    def __init__(self, session: DraftedSequence, options: DraftOptions) -> None:
        """Take the session of a model that was loaded with its head."""
        self.session, self.options = session, options
        sizes = session.options
        self.count = min(options.draft_max, sizes.step - 1, sizes.n_ctx)

    def nbytes(self) -> dict[str, int]:
        """Return nothing: the head is part of the model."""
        return {}

    def keep(self, n_tokens: int) -> None:
        """See ``Draft``."""

    def cut(self, n_tokens: int) -> None:
        """See ``Draft``."""

    def propose(
        self,
        known: Sequence[int],
        count: int,
        sampler: Sampler | None = None,
        *,
        until: Callable[[], bool] = lambda: False,
    ) -> list[int]:
        """Return up to ``count`` tokens that may follow, the most probable ones; see ``Draft``.

        Raises:
            ModelError: the head's logits are not finite.
        """
        session, past, found = self.session, len(known) - 1, list[int]()
        if not past or past + self.count > session.options.n_ctx:
            return found
        for token, share in session.batches.draft(known[-1], past):
            if not isfinite(share):
                raise _not_finite(session)
            if share < self.options.draft_p_min:
                break
            found.append(token)
        return found[:count]

    def close(self) -> None:
        """Release nothing: the model has the head."""


class DraftedSteps:
    """The decoding steps of one generation: plain ones, and tokens of rounds with a draft.

    Attributes:
        pacing: Decides which.
        is_plain: Whether the last step was a plain one.
    """

    def __init__(self, session: DraftedSequence, sampler: Sampler, *, chooses: bool) -> None:
        """Begin.

        Args:
            sampler: What tokens are chosen with.
            chooses: Whether devices may choose the model's tokens.
        """
        self._session, self._chooses = session, chooses and session.batches.chooses
        self._sampler = None if sampler.is_greedy else sampler
        self.pacing, self.is_plain = Pacing(), True
        self._drafted: list[int] = []
        self._rows: Sequence[int] | np.ndarray = ()
        self._at = 0
        self._seconds: float | None = None
        self._is_warm = False

    def may_follow(self, plain_steps: int) -> bool:
        """Whether a draft may be made behind that many plain steps."""
        return self._session.draft is not None and self.pacing.wants_draft(plain_steps)

    def read_prompt(self) -> None:
        """Let the draft model read what the model has read."""
        self._drafting(lambda draft: draft.propose(self._session._tokens, 1))

    def feed(
        self,
        tokens: Sequence[int],
        plain: Callable[[Sequence[int]], int | np.ndarray],
        *,
        left: int,
    ) -> int | np.ndarray:
        """Append tokens; return the next one or its logits, as ``plain`` would.

        Args:
            plain: Runs a plain step.
            left: Tokens that are wanted after the next one.
        """
        session = self._session
        if self._drafted[self._at : self._at + 1] == tokens:
            session.timing.accepted += 1
            self._at += 1
            return self._row(tokens)
        if self._drafted:
            self.pacing.note_round(1 + self._at, self._seconds)
            self._drafted, self._at = [], 0
        self.is_plain = True
        if len(tokens) == 1 and session.draft is not None and self.may_follow(0):
            session._check(tokens)
            self.is_plain = not self._round(session.draft, tokens[0], left)
        return plain(tokens) if self.is_plain else self._row(tokens)

    def _row(self, tokens: Sequence[int]) -> int | np.ndarray:
        """Take an accepted token in; return what follows it."""
        self._session._take(tokens)
        if isinstance(self._rows, np.ndarray):
            self._session.batches.top_token = None
            return self._rows[self._at : self._at + 1]
        return self._rows[self._at]

    def _round(self, draft: Draft | HeadDraft, token: int, left: int) -> bool:
        """Draft and verify behind a token; return whether it is known what follows."""
        session, timing, known = self._session, self._session.timing, self._session._tokens
        past, most = len(known), min(draft.options.draft_max, session.batches.step - 1)
        count, least = min(most, left), max(1, draft.options.draft_min)
        if count < least or past + 1 + most > session.options.n_ctx:
            return False
        began, setup_s = time.perf_counter(), timing.setup_s
        known.append(token)
        try:
            drafted = self._drafting(lambda it: it.propose(known, count, self._sampler))
            self._rows = self._verified(drafted, past, most) if len(drafted) >= least else ()
        finally:
            del known[past:]
            draft.keep(past)
        is_warm, self._is_warm = self._is_warm, timing.setup_s == setup_s
        self._seconds = time.perf_counter() - began if is_warm and self._is_warm else None
        if not len(self._rows):
            self.pacing.note_round(0, self._seconds)
            return False
        self._drafted = drafted[: len(self._rows) - 1]
        timing.rounds += 1
        timing.drafted += len(self._drafted)
        return True

    def _verified(self, drafted: list[int], past: int, most: int) -> Sequence[int] | np.ndarray:
        """Return what follows the last token and each of a draft; the draft may run ahead."""
        session, draft, known = self._session, self._session.draft, self._session._tokens
        known += drafted
        assert draft is not None  # it has just made the proposal
        if draft.options.draft_p_min:
            most = min(most, 1 << (len(drafted) - 1).bit_length())
        rows = session.batches.start_rows(
            known[past:], past, range(1 + most), size=1 + most, chooses=self._chooses
        )
        if draft.is_apart and self._sampler is None:
            further = min(most + 1, session.options.n_ctx - len(known))
            self._drafting(lambda it: it.propose(known, further, until=lambda: rows.is_done))
        return rows.tokens() if self._chooses else rows.logits()

    def _drafting(self, propose: Callable[[Draft | HeadDraft], list[int]]) -> list[int]:
        """Return a proposal; none, and no more drafts from then on, if the draft model fails."""
        session, draft = self._session, self._session.draft
        if draft is None:
            return []
        own, setup_s = draft.session.timing, draft.session.timing.setup_s
        try:
            n_vocab = session.model.hparams.n_vocab
            return list(takewhile(lambda token: token < n_vocab, propose(draft)))
        except (DeviceFault, SyncTimeout, OutOfDeviceMemory, ModelError, PlanError) as error:
            _LOG.warning("%s; going on without the draft model", error.one_line())
            session._drop_draft()
            return []
        finally:
            if own is not session.timing:
                session.timing.setup_s += own.setup_s - setup_s
