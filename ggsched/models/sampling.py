"""Choosing the next token from logits."""

from dataclasses import dataclass

import numpy as np

from ggsched.errors import ModelError


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen.

    Attributes:
        temperature: 0 takes the likeliest token (of equals the first); above 0 divides the
            logits before the softmax that is drawn from.
        seed: Of the random numbers; the same seed gives the same tokens.
    """

    temperature: float = 0.0
    seed: int = 0


def argmax(logits: np.ndarray) -> int:
    """Return the first of the largest numbers, or the first that is NaN, if there is one."""
    return int(logits.argmax())


class Sampler:
    """Draws tokens; remembers nothing but the state of its random numbers."""

    def __init__(self, sampling: Sampling) -> None:
        self._temperature = sampling.temperature
        self._random = np.random.default_rng(sampling.seed)

    def choose(self, logits: np.ndarray, best: int | None = None) -> int:
        """Return a token for logits of shape (vocabulary,).

        Args:
            logits: float32.
            best: What ``argmax`` says of them, if that is known.

        Raises:
            ModelError: there is no largest number among them.
        """
        if best is None:
            best = argmax(logits)
        largest = logits[best]
        if not np.isfinite(largest):
            raise ModelError(
                f"computed {largest} as its largest logit",
                where="model",
                hint="a weight of the file may be damaged, or an op of a device wrong",
            )
        if self._temperature <= 0.0:
            return best
        with np.errstate(over="ignore"):  # at a temperature near 0 the others vanish
            scaled = (logits.astype(np.float64) - largest) / self._temperature
        weights = np.exp(scaled)
        return int(self._random.choice(len(weights), p=weights / weights.sum()))
