"""Generation: a prompt, then tokens one by one, with the time that they take."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from sys import maxsize
from typing import Final, Protocol

import numpy as np

from ggsched.errors import DeviceFault, SyncTimeout, UsageError
from ggsched.run.call_guard import CallGuard
from ggsched_llm.draft import DraftedSequence, DraftedSteps
from ggsched_llm.draft_pacing import MEASURED
from ggsched_llm.sampling import Sampler, Sampling

_LOG: Final = logging.getLogger("ggsched")

Feed = Callable[[Sequence[int]], int | np.ndarray]
"""Feeds tokens; returns the next one where a device chose it, else logits."""


class FedSequence(DraftedSequence, Protocol):
    """What generation needs of a session; see ``Session``."""

    _edits: int

    @property
    def guard(self) -> CallGuard:
        """Refuses calls of several threads at once."""

    @property
    def n_past(self) -> int:
        """Tokens in the cache."""

    def feed(self, tokens: Sequence[int], *, all_logits: bool = False) -> np.ndarray:
        """Feed tokens; return logits that belong to the caller."""

    def _restart(self) -> None: ...

    def _reset(self) -> None: ...


def tokens_at_most(n_predict: int, n_fed: int, n_ctx: int) -> int:
    """Return how many tokens may be generated.

    Args:
        n_predict: As many; -1 for no limit, -2 for those that fill the context.
        n_fed: Tokens of the prompt, and before it.
        n_ctx: Tokens that the context holds; the last that is generated is not fed.
    """
    if n_predict == -2:
        return max(0, n_ctx - n_fed) + 1
    return maxsize if n_predict == -1 else n_predict


def generate(
    session: FedSequence,
    prompt: Sequence[int],
    n_predict: int,
    sampling: Sampling,
    *,
    stop: frozenset[int],
    on_logits: Callable[[np.ndarray], None] | None,
    keep: int | None = None,
    retries: int = 0,
) -> Iterator[int]:
    """Yield the tokens that follow a prompt; see ``Session.generate``."""
    left = _checked_retries(session, retries)
    sampler = Sampler(sampling, prompt)
    fed, edits, token = prompt, 0, -1
    known = list(prompt)
    if keep is not None:
        keep = _checked_keep(session, keep, len(prompt))
    is_shown = on_logits is not None  # to somebody who may keep them
    first = partial(session.feed, all_logits=is_shown)
    chooses = sampling.is_greedy and not is_shown
    may_draft = session.draft is not None and n_predict > MEASURED + 1
    drafted = DraftedSteps(session, sampler, chooses=chooses) if may_draft else None
    for i in range(max(1, n_predict)):
        with session.guard.hold("Session.generate", is_open=True):
            if i and session._edits != edits:
                raise UsageError(
                    f"the sequence was changed after {i} generated tokens",
                    where="Session.generate",
                    why="feed, reset or another generate ran between two tokens",
                    hint="end one generation before the next, or use a session for each",
                )
            if i and session.n_past == session.options.n_ctx:
                if keep is None:
                    _LOG.warning("the context of %d tokens is full (see -c)", session.options.n_ctx)
                    return
                del known[keep : keep + (len(known) - keep) // 2]
                session._reset()
                fed = known
            step = _step(session, drafted, n_predict - i - 1, chooses, is_shown)
            feed = partial(_feed_timed, session, step if i else first, drafted, is_prompt=not i)
            found, left = _fed(session, feed, fed, known, left)
            edits = session._edits
            if isinstance(found, int):
                token = found
            elif on_logits is None and n_predict > 0:  # logits are lent until the next call
                token = sampler.choose(found[-1], session.batches.top_token)
        if on_logits is not None:
            assert not isinstance(found, int)  # they are to be shown
            on_logits(found)
            if n_predict > 0:
                token = sampler.choose(found[-1])
        if n_predict <= 0 or token in stop:
            return
        yield token
        known.append(token)
        fed = [token]


def _step(
    session: FedSequence, drafted: DraftedSteps | None, left: int, chooses: bool, is_shown: bool
) -> Feed:
    """Return what feeds a generated token and yields the next, behind which ``left`` are wanted."""
    plain: Feed = partial(session._feed, all_logits=False, copy=is_shown)
    if chooses:
        goes_on = left > 0 and not (drafted and drafted.may_follow(1))
        plain = partial(session._choose_next, goes_on=goes_on)
    return partial(drafted.feed, plain=plain, left=left) if drafted else plain


def _fed(
    session: FedSequence,
    feed: Feed,
    tokens: Sequence[int],
    known: Sequence[int],
    retries: int,
) -> tuple[int | np.ndarray, int]:
    """Feed tokens, after a fault all that are known, in a session that was restarted.

    Returns:
        The next token or the logits, and how many faults may still come.
    """
    has_failed = False
    while True:
        try:
            if has_failed:  # what is set up anew may fail likewise
                session._restart()
            return feed(known if has_failed else tokens), retries
        except (DeviceFault, SyncTimeout) as error:
            if not retries:
                raise
            _LOG.warning("%s; going on from %d tokens", error.one_line(), len(known))
        has_failed, retries = True, retries - 1


def _checked_retries(session: FedSequence, retries: int) -> int:
    """Return how often generation may be restarted.

    Raises:
        UsageError: the number is negative, or there are tokens that are not known here.
    """
    if retries < 0:
        raise UsageError(f"{retries} retries", why="it must be 0 or more")
    if retries and session.n_past:
        why = f"it has {session.n_past} tokens, which generation has not seen"
        hint = "call reset() first, and give them all as the prompt"
        raise UsageError("the sequence cannot be restarted after a fault", why=why, hint=hint)
    return retries


def _checked_keep(session: FedSequence, keep: int, n_prompt: int) -> int:
    """Return how many tokens stay when the context is full; -1 stands for the prompt.

    Raises:
        UsageError: no token could be forgotten, or there are tokens that are not known here.
    """
    n_ctx, asked = session.options.n_ctx, n_prompt if keep == -1 else keep
    if session.n_past:
        why = f"it has {session.n_past} tokens, which generation has not seen"
        hint = "call reset() first, and give them all as the prompt"
        raise UsageError("the sequence cannot be shifted", why=why, hint=hint)
    if not 0 <= asked <= n_ctx - 2:
        why = f"a context of {n_ctx} tokens can be shifted if 0 to {n_ctx - 2} stay"
        raise UsageError(f"cannot keep {asked} tokens", why=why, hint="use a larger -c")
    return asked


def _feed_timed(
    session: FedSequence,
    feed: Feed,
    drafted: DraftedSteps | None,
    tokens: Sequence[int],
    *,
    is_prompt: bool,
) -> int | np.ndarray:
    """Feed a prompt or a generated token; setting up does not count."""
    timing = session.timing
    began, setup_s = time.perf_counter(), timing.setup_s
    found = feed(tokens)
    if is_prompt and drafted is not None:
        drafted.read_prompt()
    seconds = time.perf_counter() - began - (timing.setup_s - setup_s)
    if is_prompt:
        timing.prompt_tokens += len(tokens)
        timing.prompt_s += seconds
    elif drafted is not None and not drafted.is_plain:
        timing.decode_tokens += 1
        timing.decode_s += seconds
    else:
        seconds = session.batches.step_s if isinstance(found, int) else seconds
        timing.note_step(seconds)
        if drafted is not None:
            drafted.pacing.note_plain(seconds)
    return found
