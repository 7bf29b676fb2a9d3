"""Decoding a llama of 103 million f32 weights, against numpy streaming the same matrices.

The limit is what numpy alone needs to multiply every weight matrix by one vector. PoCL is measured
against ``cpu`` in the same rounds; it uses both cores, numpy one.
"""

from collections.abc import Callable

import numpy as np

from benchmarks.measure import interleaved, ratio, spread
from benchmarks.table import Row
from ggsched.config import Settings
from ggsched.errors import GgschedError
from ggsched.ir.dtype import F32
from ggsched.scheduler import Scheduler
from ggsched_llm.batches import batch_inputs
from ggsched_llm.graph import build_model_graph, model_needs
from ggsched_llm.hparams import HParams, RopeParams
from ggsched_llm.spec import ModelSpec, WeightSpec

N_PAST = 64
N_KV = 128
ROUNDS = 15


def dense_110m() -> HParams:
    """Return the dense model of the baseline document."""
    return HParams(
        arch="llama",
        name="dense-110M",
        n_ctx_train=512,
        n_vocab=4096,
        n_embd=1024,
        n_layer=8,
        n_head=16,
        n_head_kv=16,
        head_dim=64,
        n_ff=2816,
        norm_eps=1e-5,
        attn_scale=0.125,
        rope=RopeParams(64, "adjacent", 10000.0),
    )


def random_model(hp: HParams) -> tuple[ModelSpec, dict[str, np.ndarray]]:
    """Return a model with random weights in memory."""
    rng = np.random.default_rng(1)
    specs, arrays = {}, {}
    for need in model_needs(hp):
        if need.optional and need.name != "output.weight":
            continue
        specs[need.name] = WeightSpec(need.shape, F32)
        values = rng.standard_normal(need.shape, dtype=np.float32)
        arrays[need.name] = values * np.float32(0.02) if need.matrix else abs(values)
    return ModelSpec(hp, specs), arrays


def streaming(arrays: dict[str, np.ndarray]) -> Callable[[], None]:
    """Return a function that multiplies every matrix but the embedding by a vector."""
    calls = []
    for name, w in arrays.items():
        if w.ndim == 2 and name != "token_embd.weight":
            calls.append((w, np.ones(w.shape[1], np.float32), np.empty(w.shape[0], np.float32)))

    def stream() -> None:
        for w, x, y in calls:
            np.dot(w, x, y)

    return stream


def decoding(scheduler: Scheduler, spec: ModelSpec) -> Callable[[], None]:
    """Return a function that decodes one token."""
    graph = build_model_graph(spec, n_tokens=1, n_kv=N_KV, n_out=1, n_ctx=512)
    token = np.array([7], np.int32)

    def decode() -> None:
        scheduler.run(graph, batch_inputs(graph, token, N_PAST, 1, 0))

    return decode


def run() -> list[Row]:
    """Measure."""
    spec, arrays = random_model(dense_110m())
    settings = Settings(timeout_s=120)
    schedulers = {"cpu": Scheduler(["cpu:0"], weights=arrays, settings=settings)}
    try:
        schedulers["opencl"] = Scheduler(["opencl:0"], weights=arrays, settings=settings)
    except GgschedError as error:
        print(f"  opencl is not measured: {error}")
    try:
        sides = {"numpy": streaming(arrays)}
        sides |= {name: decoding(s, spec) for name, s in schedulers.items()}
        took = interleaved(sides, ROUNDS)
    finally:
        for scheduler in schedulers.values():
            scheduler.close()
    nbytes = sum(w.nbytes for n, w in arrays.items() if w.ndim == 2 and n != "token_embd.weight")
    rows = [
        Row(
            "decode",
            "110M f32: cpu tokens/s / numpy streaming the same matrices",
            *ratio(took["numpy"], took["cpu"]),
            bound=">= 0.9",
        ),
        _rate("numpy streaming, GB/s", nbytes / 1e9, took["numpy"], "GB/s"),
        _rate("cpu, tokens/s", 1.0, took["cpu"], "t/s"),
    ]
    if "opencl" in took:
        what = "110M f32: PoCL tokens/s / cpu tokens/s"
        rows.append(Row("decode", what, *ratio(took["cpu"], took["opencl"]), bound=">= 0.5"))
        rows.append(_rate("PoCL, tokens/s", 1.0, took["opencl"], "t/s"))
    return rows


def _rate(what: str, amount: float, seconds: list[float], unit: str) -> Row:
    return Row("decode", what, *spread(amount / s for s in seconds), unit)
