"""How fast a session reads prompts and generates, in the manner of llama-bench."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

if TYPE_CHECKING:
    from ggsched_llm.session import Session

WARM_UP: Final = 1


@dataclass(frozen=True, slots=True)
class SpeedTest:
    """What is measured.

    Attributes:
        kind: ``pp``: tokens of a prompt, fed together; ``tg``: tokens fed one by one.
        n_tokens: How many.
        depth: Tokens in the cache before.
        parallel: Sequences that are fed together, each as many tokens.
    """

    kind: Literal["pp", "tg"]
    n_tokens: int
    depth: int = 0
    parallel: int = 1

    @property
    def name(self) -> str:
        """As in llama-bench's tables, e.g. ``pp512 @ d1024``; ``tg32 x 4`` of four sequences."""
        several = f" x {self.parallel}" if self.parallel > 1 else ""
        return f"{self.kind}{self.n_tokens}{several}" + (f" @ d{self.depth}" if self.depth else "")


@dataclass(frozen=True, slots=True)
class Speed:
    """What was measured.

    Attributes:
        test: Of what.
        seconds: Of each repetition.
    """

    test: SpeedTest
    seconds: tuple[float, ...]

    @property
    def rates(self) -> tuple[float, ...]:
        """Tokens per second of each repetition, of all sequences together."""
        return tuple(self.test.parallel * self.test.n_tokens / s for s in self.seconds)

    @property
    def mean(self) -> float:
        """Mean of the rates."""
        return fmean(self.rates)

    @property
    def deviation(self) -> float:
        """Standard deviation of the rates; 0 for one repetition."""
        return stdev(self.rates) if len(self.seconds) > 1 else 0.0


def measure(session: "Session", tests: Sequence[SpeedTest], repetitions: int) -> Iterator[Speed]:
    """Yield the speed of each test; the sequence is lost.

    Each test runs once before it is measured, so that weights are loaded and plans are made. Tokens
    are random, the same in each repetition.
    """
    rng = np.random.default_rng(0)
    for test in tests:
        tokens = rng.integers(0, session.model.hparams.n_vocab, test.depth + test.n_tokens)
        found = [_timed(session, test, tokens.tolist()) for _ in range(WARM_UP + repetitions)]
        yield Speed(test, tuple(found[WARM_UP:]))


def _timed(session: "Session", test: SpeedTest, tokens: list[int]) -> float:
    session.reset()
    if test.parallel > 1:
        return _timed_together(session, test, tokens)
    if test.depth:
        session.feed(tokens[: test.depth])
    rest = tokens[test.depth :]
    began = time.perf_counter()
    if test.kind == "pp":
        session.feed(rest)
    else:
        for token in rest:
            session.feed([token])
    return time.perf_counter() - began


def _timed_together(session: "Session", test: SpeedTest, tokens: list[int]) -> float:
    several = session.sequences
    active = [several.join() for _ in range(test.parallel)]
    try:
        if test.depth:
            several.step(dict.fromkeys(active, tokens[: test.depth]))
        rest = tokens[test.depth :]
        began = time.perf_counter()
        for fed in [rest] if test.kind == "pp" else [[token] for token in rest]:
            several.step(dict.fromkeys(active, fed), copy=False)
        return time.perf_counter() - began
    finally:
        for sequence in active:
            several.leave(sequence)
