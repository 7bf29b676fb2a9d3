"""Generation: a prompt, then tokens one by one, with the time that they take."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from ggsched.errors import UsageError
from ggsched.models.sampling import Sampler, Sampling

if TYPE_CHECKING:
    from ggsched.models.session import Session

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


def generate(
    session: "Session",
    prompt: Sequence[int],
    n_predict: int,
    sampling: Sampling,
    *,
    stop: frozenset[int],
    on_logits: Callable[[np.ndarray], None] | None,
) -> Iterator[int]:
    """Yield the tokens that follow a prompt; see ``Session.generate``."""
    sampler = Sampler(sampling)
    fed, edits, token = prompt, 0, -1
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
                _LOG.warning("the context of %d tokens is full (see -c)", session.options.n_ctx)
                return
            logits = _feed_timed(session, fed, is_prompt=not i, is_shown=on_logits is not None)
            edits = session._edits
            if on_logits is None and n_predict > 0:  # logits are lent until the next call
                token = sampler.choose(logits[-1], session.batches.likeliest)
        if on_logits is not None:
            on_logits(logits)
            if n_predict > 0:
                token = sampler.choose(logits[-1])
        if n_predict <= 0 or token in stop:
            return
        yield token
        fed = [token]


def _feed_timed(
    session: "Session", tokens: Sequence[int], *, is_prompt: bool, is_shown: bool
) -> np.ndarray:
    """Feed a prompt or a generated token; logits that are shown to somebody are copies."""
    began = time.perf_counter()
    if is_prompt:
        logits = session.feed(tokens, all_logits=is_shown)
        session.timing.prompt_tokens += len(tokens)
        session.timing.prompt_s += time.perf_counter() - began
    else:
        logits = session._feed(tokens, all_logits=False, copy=is_shown)
        session.timing.note_step(time.perf_counter() - began)
    return logits
