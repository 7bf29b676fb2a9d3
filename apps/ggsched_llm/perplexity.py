"""Perplexity of a text, in the manner of llama.cpp's tool of that name.

The text is cut into parts as long as the context. Of each part the tokens of its second half but
the first of them are predicted from all tokens before them in the part, so that every prediction
has a context of more than half the length. Perplexity is the exponential of the mean negative
log-likelihood.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import exp, inf, sqrt
from typing import TYPE_CHECKING, Final

import numpy as np

from ggsched.errors import ModelError, UsageError

if TYPE_CHECKING:
    from ggsched_llm.session import Session

_SHORTEST: Final = 4
_MAX_MEAN: Final = 709.0
_ROWS: Final = 128
"""Tokens whose logits are looked at together; a row of a large vocabulary is half a megabyte."""


@dataclass(frozen=True, slots=True)
class Perplexity:
    """What is known after some parts of a text.

    Attributes:
        parts: Parts so far.
        n_tokens: Tokens predicted in them.
        mean: Mean negative log-likelihood of a token, in nats.
        deviation: Its standard error.
    """

    parts: int
    n_tokens: int
    mean: float
    deviation: float

    @property
    def value(self) -> float:
        """The perplexity; infinity where no float holds it."""
        return exp(self.mean) if self.mean < _MAX_MEAN else inf

    @property
    def error(self) -> float:
        """Standard error of the perplexity, to first order."""
        return self.value * self.deviation


def perplexity(
    session: "Session", tokens: Sequence[int], *, first: int | None = None
) -> Iterator[Perplexity]:
    """Yield the perplexity of a text after each of its parts; the sequence is lost.

    Args:
        session: Its context is the length of a part, in tokens; at least 4.
        tokens: The text; what remains behind the last whole part is left out.
        first: Takes the place of the first token of each part, as the begin of a text.

    Raises:
        ModelError: logits are not finite.
        UsageError: the text has no whole part, the context holds less than 4 tokens, or a token
            is not in the vocabulary.
    """
    length = session.options.n_ctx
    count = len(tokens) // length
    if length < _SHORTEST or not count:
        raise UsageError(
            f"{len(tokens)} tokens have no part of {length}",
            why=f"a part is as long as the context, and at least {_SHORTEST} tokens long",
            hint="use a longer text, or a smaller -c",
        )
    total, squares, done = 0.0, 0.0, 0
    for number in range(count):
        part = list(tokens[number * length : (number + 1) * length])
        if first is not None:
            part[0] = first
        for found in _negative_log_likelihoods(session, part):
            total += float(found.sum())
            squares += float((found * found).sum())
            done += len(found)
        mean = total / done
        variance = max(0.0, squares / done - mean * mean)
        yield Perplexity(number + 1, done, mean, sqrt(variance / max(1, done - 1)))


def _negative_log_likelihoods(session: "Session", part: Sequence[int]) -> Iterator[np.ndarray]:
    """Yield -log p of the predicted tokens of a part, float64, some at a time."""
    session.reset()
    at = len(part) // 2
    session.feed(part[:at])
    while at < len(part) - 1:
        end = min(at + _ROWS, len(part) - 1)
        logits = session.feed(part[at:end], all_logits=True).astype(np.float64)
        largest = logits.max(axis=1, keepdims=True)
        if not np.isfinite(largest).all():
            raise ModelError(
                "computed logits that are not finite",
                where="model",
                hint="a weight of the file may be damaged, or an op of a device wrong",
            )
        logits -= largest
        wanted = logits[np.arange(end - at), part[at + 1 : end + 1]]
        yield np.log(np.exp(logits).sum(axis=1)) - wanted
        at = end
