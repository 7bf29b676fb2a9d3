"""Choosing the next token from logits."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite
from sys import maxsize
from typing import Final

import numpy as np

from ggsched.errors import ModelError, UsageError

_LARGEST: Final = 1e38


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen. Filters apply in this order, then the temperature, as in llama.cpp.

    Attributes:
        temperature: 0 takes the most probable token (of equals the first); above 0 divides the
            logits before the softmax that is drawn from.
        seed: Of the random numbers; the same seed gives the same tokens.
        repeat_penalty: Divides positive logits of recent tokens and multiplies negative ones.
        repeat_last_n: How many tokens are recent, those of the prompt too.
        top_k: Draw from the k most probable tokens; 0 for all.
        top_p: Draw from the most probable tokens that have this probability together.
        min_p: Draw from tokens that have this share of the highest probability.
        banned: Tokens that are never chosen.
    """

    temperature: float = 0.0
    seed: int = 0
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    banned: frozenset[int] = frozenset()

    def check(self) -> None:
        """Refuse values that make no sense.

        Raises:
            UsageError: a value is out of range.
        """
        for name, is_right, wanted in (
            ("temperature", self.temperature >= 0, "0 or more"),
            ("repeat_penalty", 0 < self.repeat_penalty < float("inf"), "above 0"),
            ("repeat_last_n", self.repeat_last_n >= 0, "0 or more"),
            ("top_k", self.top_k >= 0, "0 or more"),
            ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("min_p", 0 <= self.min_p <= 1, "from 0 to 1"),
        ):
            if not is_right:
                why = f"it must be {wanted}"
                raise UsageError(f"{name} is {getattr(self, name)}", where="Sampling", why=why)

    @property
    def is_greedy(self) -> bool:
        """Whether the first of the largest logits is taken, whatever came before."""
        return self.temperature <= 0 and self.repeat_penalty == 1.0 and not self.banned

    @property
    def has_filters(self) -> bool:
        """Whether some tokens are never drawn."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0


def argmax(logits: np.ndarray) -> int:
    """Return the first of the largest numbers, or the first that is NaN, if there is one."""
    return int(logits.argmax())


class Sampler:
    """Draws tokens; remembers recent ones and the state of its random numbers."""

    def __init__(self, sampling: Sampling, prompt: Iterable[int] = ()) -> None:
        """Start behind a prompt.

        Raises:
            UsageError: a value of ``sampling`` is out of range.
        """
        sampling.check()
        self._sampling = sampling
        self._recent = deque(prompt, maxlen=min(sampling.repeat_last_n, maxsize))
        self._random = np.random.default_rng(sampling.seed)

    def choose(self, logits: np.ndarray, best: int | None = None) -> int:
        """Return a token for logits of shape (vocabulary,).

        Args:
            logits: float32.
            best: What ``argmax`` says of them, if that is known.

        Raises:
            ModelError: NaN is among them, so none is the largest.
        """
        if self._sampling.repeat_penalty != 1.0 and self._recent:
            logits, best = self._penalised(logits), None
        if self._sampling.banned:
            logits, best = logits.copy(), None
            logits[[t for t in self._sampling.banned if t < len(logits)]] = -np.inf
        token = self._choose(logits, argmax(logits) if best is None else best)
        self._recent.append(token)
        return token

    def _choose(self, logits: np.ndarray, best: int) -> int:
        largest = logits[best]
        if not isfinite(largest):
            raise ModelError(
                f"computed {largest} as its largest logit",
                where="model",
                hint="a weight of the file may be damaged, or an op of a device wrong",
            )
        if self._sampling.temperature <= 0.0:
            return best
        with np.errstate(over="ignore"):  # what is far below, or near a temperature of 0, vanishes
            tokens = self._candidates(logits - largest) if self._sampling.has_filters else None
            kept = logits if tokens is None else logits[tokens]
            scaled = (kept.astype(np.float64) - largest) / self._sampling.temperature
        weights = np.exp(scaled)
        drawn = int(self._random.choice(len(weights), p=weights / weights.sum()))
        return drawn if tokens is None else int(tokens[drawn])

    def _candidates(self, logits: np.ndarray) -> np.ndarray:
        """Return the tokens that may be drawn, most probable first; the largest logit is 0."""
        sampling = self._sampling
        order = np.argsort(-logits, kind="stable")[: sampling.top_k or None]
        weights = np.exp(logits[order].astype(np.float64))
        if sampling.top_p < 1:
            before = np.cumsum(weights) - weights
            count = int(np.count_nonzero(before < sampling.top_p * weights.sum()))
            order, weights = order[:count], weights[:count]
        kept: np.ndarray = order[weights >= sampling.min_p]
        return kept

    def _penalised(self, logits: np.ndarray) -> np.ndarray:
        """Return logits with those of recent tokens lowered."""
        recent = [t for t in set(self._recent) if t < len(logits)]
        lowered, penalty = logits.copy(), self._sampling.repeat_penalty
        values = lowered[recent].astype(np.float64)
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            changed = np.where(values > 0, values / penalty, values * penalty)
        # Penalties have no bounds; logits that were finite stay so, and their differences too.
        bounded = changed.clip(-_LARGEST, _LARGEST)
        lowered[recent] = np.where(np.isfinite(values), bounded, values)
        return lowered
