"""Choosing the next token from logits."""

from collections import deque
from collections.abc import Callable, Iterable
from copy import copy, deepcopy
from dataclasses import dataclass
from math import isfinite
from secrets import randbits
from sys import maxsize
from typing import Final

import numpy as np

from ggsched.errors import ModelError, UsageError
from ggsched.flags import flag, number

_LARGEST: Final = 1e38


def _whole(text: str, otherwise: Callable[[], int]) -> int:
    """Read a whole number of 0 or more; -1 stands for something else."""
    if text == "-1":
        return otherwise()
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{text!r} is neither a number of 0 or more nor -1")
    return int(text)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen. Filters apply in this order, then the temperature, as in llama.cpp.

    Attributes:
        temperature: 0 takes the most probable token (of equals the first); above 0 divides the
            logits before the softmax that is drawn from.
        repeat_penalty: Divides positive logits of recent tokens and multiplies negative ones.
        repeat_last_n: How many tokens are recent, those of the prompt too.
        banned: Tokens that are never chosen.
    """

    temperature: float = flag(
        0.0, "--temp --temperature", number, "Temperature; 0 takes the most probable token.",
        heading="Sampling", metavar="T",
    )  # fmt: skip
    seed: int = flag(
        0, "-s --seed", lambda text: _whole(text, lambda: randbits(32)),
        "Where the random numbers begin: the same text for the same seed; -1 draws one.",
        heading="Sampling", metavar="N",
    )  # fmt: skip
    top_k: int = flag(
        0, "--top-k", 0, "Draw from the K most probable tokens; 0 for all.", heading="Sampling",
        metavar="K",
    )  # fmt: skip
    top_p: float = flag(
        1.0, "--top-p", number,
        "Draw from the most probable tokens that have probability P together.",
        heading="Sampling", metavar="P",
    )  # fmt: skip
    min_p: float = flag(
        0.0, "--min-p", number,
        "Draw from tokens with at least the share P of the highest probability.",
        heading="Sampling", metavar="P",
    )  # fmt: skip
    repeat_penalty: float = flag(
        1.0, "--repeat-penalty", number, "Lower the logits of recent tokens by this factor.",
        heading="Sampling", metavar="X",
    )  # fmt: skip
    repeat_last_n: int = flag(
        64, "--repeat-last-n", lambda text: _whole(text, lambda: maxsize),
        "Tokens that count as recent; -1 for all.",
        heading="Sampling", metavar="N",
    )  # fmt: skip
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

    @property
    def is_greedy(self) -> bool:
        """Whether the first of the largest logits is taken, whatever came before."""
        return self._sampling.is_greedy

    def copy(self) -> "Sampler":
        """Return one that draws the same tokens from the same logits."""
        twin = copy(self)
        twin._recent, twin._random = self._recent.copy(), deepcopy(self._random)
        return twin

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
