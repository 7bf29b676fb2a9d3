"""Decoding and prefill beside llama.cpp (llama-cpp-python) on the same files and cores.

Both sides run in processes of their own, pinned to one core or to two, take turns round by round,
and are fed the same tokens. Their logits are compared: rms difference over standard deviation, the
worst position. Flash attention, which llama.cpp uses by default, rounds to f16 on the way, so the
speed is that of the default while the difference that may not be large is that to llama.cpp without
it. On two threads a busy neighbour costs both sides a multiple, since both wait for
their threads actively.
"""

import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from benchmarks.measure import best_ratio, spread
from benchmarks.peers.installed import reason_missing
from benchmarks.peers.model_sides import Name
from benchmarks.peers.random_gguf import SIZES, write_random_gguf
from benchmarks.peers.worker_process import WorkerProcess
from benchmarks.table import Row
from tests.support.model_mixes import ROOT

ROUNDS = 5
TIMEOUT_S = 180.0
WORKER = "benchmarks.peers.model_worker"
PEER: Final[Name] = "llama.cpp"
EXACT: Final[Name] = "llama.cpp, fa off"
THREADS = (1, 2)


class Case(NamedTuple):
    """A model and how much of it to run.

    Attributes:
        name: For the table.
        path: The GGUF file.
        n_vocab: Tokens are drawn below it.
        n_ctx: Rows of the cache.
        prompt: Tokens of the prompt.
        decode: Tokens decoded one by one.
        sides: Who runs it.
        tolerance: Largest rms difference of logits to those of llama.cpp without flash attention,
            over their standard deviation.
    """

    name: str
    path: Path
    n_vocab: int
    n_ctx: int
    prompt: int
    decode: int
    sides: tuple[Name, ...]
    tolerance: float


class Times(NamedTuple):
    """Seconds of each round."""

    prefill: list[float]
    decode: list[float]


def cases(folder: Path) -> list[Case]:
    """Return the models; the large one is written to a folder."""
    oracle = ROOT / "tests" / "data" / "oracle"
    both: tuple[Name, ...] = ("ggsched", PEER)
    # Where weights are f16 or q8_0 llama.cpp rounds activations too.
    found = [
        Case("demo model", ROOT / "ggsched/data/addition-moe.gguf", 16, 64, 24, 32, both, 2e-2),
        *(
            Case(f"{name}", oracle / f"{name}.gguf", 256, 256, 64, 64, both, tolerance)
            for name, tolerance in (
                ("llama-tiny-f32", 1e-5),
                ("llama-tiny-f16", 2e-3),
                ("llama-tiny-q8_0", 3e-2),
                ("qwen3moe-tiny-f32", 1e-5),
                ("gptoss-tiny-f32", 1e-5),
            )
        ),
    ]
    three: tuple[Name, ...] = ("ggsched", "ggsched packed", PEER)
    # Sums are 16 to 44 times as long as those of the tiny models, and taken in another order.
    for kind, sides, tolerance in (("f16", three, 1e-2), ("f32", both, 5e-5)):
        path = write_random_gguf(folder / f"{kind}.gguf", is_half=kind == "f16")
        name = f"{SIZES.name}-{kind}"
        found.append(Case(name, path, SIZES.n_vocab, 256, 128, 24, sides, tolerance))
    return found


def run() -> list[Row]:
    """Measure, or leave the rows out without the peer."""
    reason = reason_missing("llama_cpp")
    if reason:
        sys.stderr.write(f"models: llama-cpp-python is not measured: {reason}\n")
        return []
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for case in cases(folder):
            for threads in THREADS:
                rows += measure(case, threads, folder)
    return rows


def measure(case: Case, threads: int, folder: Path, rounds: int = ROUNDS) -> list[Row]:
    """Run the sides of a case in turn on a number of cores.

    Raises:
        WorkerError: a side ended, or did not answer in time.
        ValueError: the logits of two sides are not those of the same model.
    """
    sizes = zip(
        ("threads", "ctx", "vocab", "prompt", "decode"),
        (threads, case.n_ctx, case.n_vocab, case.prompt, case.decode),
        strict=True,
    )
    flags = [part for name, size in sizes for part in (f"--{name}", str(size))]
    with ExitStack() as stack:
        workers: dict[str, WorkerProcess] = {}
        logits: dict[str, np.ndarray] = {}
        for side in (EXACT, *case.sides):  # one after another, so that loading disturbs nobody
            arguments = [side, str(case.path), *flags]
            worker = WorkerProcess(WORKER, arguments, threads, TIMEOUT_S)
            workers[side] = stack.enter_context(worker)
            worker.answer()
            file = folder / "logits.npy"
            worker.ask(f"logits {file}")  # the first round, which also makes the plans
            logits[side] = np.load(file)
            if side == EXACT:
                worker.close()
        took: dict[str, Times] = {side: Times([], []) for side in case.sides}
        for _ in range(rounds):
            for side in case.sides:
                seconds = workers[side].ask("round")
                took[side].prefill.append(seconds["prefill_s"])
                took[side].decode.append(seconds["decode_s"])
    return rows_of(case, threads, took, logits)


def rows_of(
    case: Case,
    threads: int,
    took: Mapping[str, Times],
    logits: Mapping[str, np.ndarray],
) -> list[Row]:
    """Return speeds, ratios to the peer's (above 1 is faster), and differences of logits.

    Raises:
        ValueError: a difference above the case's tolerance.
    """
    rows = []
    for kind, tokens in (("prefill", case.prompt), ("decode", case.decode)):
        for side, times in took.items():
            seconds: list[float] = getattr(times, kind)
            what = f"{case.name}, {threads}T {kind}: {side}"
            rows.append(Row("models", what, *spread(tokens / s for s in seconds), "t/s"))
            if side != PEER:
                theirs: list[float] = getattr(took[PEER], kind)
                what = f"  {side} / {PEER}, speed"
                rows.append(Row("models", what, *best_ratio(theirs, seconds)))
    for side, found in logits.items():
        if side not in took or side == PEER:
            continue
        for peer in (EXACT, PEER):
            apart = differences(found, logits[peer])
            if peer == EXACT and max(apart) > case.tolerance:
                raise ValueError(f"{case.name}, {side}: logits differ by {max(apart):.3g}")
            what = f"  logits of {side}, off those of {peer}"
            rows.append(Row("models", what, max(apart), min(apart), max(apart), ""))
    return rows


def differences(found: np.ndarray, wanted: np.ndarray) -> Sequence[float]:
    """Return for each position the rms difference over the standard deviation of what is wanted."""
    apart = found.astype(np.float64) - wanted
    rms = np.sqrt((apart**2).mean(axis=-1))
    return [float(x) for x in rms / wanted.astype(np.float64).std(axis=-1)]
