"""How fast a session reads prompts and generates, in the manner of llama-bench."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from ggsched_llm.session import Session

MAX_WARM_UPS: Final = 4


@dataclass(frozen=True, slots=True)
class SpeedTest:
    """What is measured: a prompt, then tokens behind it.

    Attributes:
        n_prompt: Tokens that are fed together.
        n_gen: Tokens that are fed one by one.
        depth: Tokens in the cache before.
        parallel: Sequences that are fed together, each as many tokens.
    """

    n_prompt: int
    n_gen: int
    depth: int = 0
    parallel: int = 1

    @property
    def n_tokens(self) -> int:
        """Tokens of one sequence that are timed."""
        return self.n_prompt + self.n_gen

    @property
    def name(self) -> str:
        """As in llama-bench's tables, e.g. ``pp512+tg32 @ d64``; ``tg32 x 4`` of four sequences."""
        parts = [f"pp{self.n_prompt}"] * (self.n_prompt > 0) + [f"tg{self.n_gen}"] * (
            self.n_gen > 0
        )
        several = f" x {self.parallel}" if self.parallel > 1 else ""
        return "+".join(parts) + several + (f" @ d{self.depth}" if self.depth else "")

    def batches(self, tokens: list[int]) -> Iterator[list[int]]:
        """Yield the tokens that are fed together, in their order."""
        if self.n_prompt:
            yield tokens[: self.n_prompt]
        for token in tokens[self.n_prompt :]:
            yield [token]


@dataclass(frozen=True, slots=True)
class Speed:
    """What was measured.

    Attributes:
        seconds: Of each repetition.
        drafted: Tokens that a draft model proposed meanwhile, and of them those that were accepted.
    """

    test: SpeedTest
    seconds: tuple[float, ...]
    drafted: tuple[int, int] = (0, 0)

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

    Each test is warmed up before it is measured. Tokens are random, the same in each repetition.
    """
    rng = np.random.default_rng(0)
    for test in tests:
        tokens = rng.integers(0, session.model.hparams.n_vocab, test.depth + test.n_tokens)
        _warm_up(session, test, tokens.tolist())
        timing = session.timing
        before = timing.drafted, timing.accepted
        found = [_timed(session, test, tokens.tolist()) for _ in range(repetitions)]
        drafted = timing.drafted - before[0], timing.accepted - before[1]
        yield Speed(test, tuple(found), drafted)


def _warm_up(session: "Session", test: SpeedTest, tokens: list[int]) -> None:
    """Run a test until it sets nothing up.

    That is its second time at least, in which plans are captured. A plan that follows itself may
    get its alternate there, which is captured in the third.
    """
    for _ in range(MAX_WARM_UPS):
        known = session.timing.setup_s
        _timed(session, test, tokens)
        if session.timing.setup_s == known:
            return


def _timed(session: "Session", test: SpeedTest, tokens: list[int]) -> float:
    session.reset()
    if test.parallel > 1:
        return _timed_together(session, test, tokens)
    if test.depth:
        session.feed(tokens[: test.depth])
    if session.draft is not None and test.n_gen:
        return _timed_text(session, test, tokens[test.depth :])
    began = time.perf_counter()
    for fed in test.batches(tokens[test.depth :]):
        session.feed(fed)
    return time.perf_counter() - began


def _timed_text(session: "Session", test: SpeedTest, tokens: list[int]) -> float:
    """Return the seconds of a prompt and the text that follows it: a draft predicts no others."""
    fed = tokens[: test.n_prompt or 1]
    began = time.perf_counter()
    for _ in session.generate(fed, test.n_gen + (test.n_prompt > 0)):
        pass
    return time.perf_counter() - began


def _timed_together(session: "Session", test: SpeedTest, tokens: list[int]) -> float:
    several = session.sequences
    active = [several.join() for _ in range(test.parallel)]
    try:
        if test.depth:
            several.step(dict.fromkeys(active, tokens[: test.depth]))
        began = time.perf_counter()
        for fed in test.batches(tokens[test.depth :]):
            several.step(dict.fromkeys(active, fed), copy=False)
        return time.perf_counter() - began
    finally:
        for sequence in active:
            several.leave(sequence)
