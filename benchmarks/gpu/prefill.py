"""Prefill: products of many rows against a float64 reference, and where the time of a step goes.

Each part is guarded, so that a failure in one does not lose the others, and parts that would begin
after ``BUDGET_S`` are left out. The time of a kernel is taken in a real step: an event before each
launch, with the stream held while a stretch of them is enqueued, so that the host is not measured.
"""

import os
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.products import _Bench
from benchmarks.gpu.running import Running
from ggsched.backend.precision import VARIABLE
from ggsched.backend.precision import Activations as Mode
from ggsched.config import Settings
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import BF16, F16, F32, I32, MXFP4, Q4_0, Q4_K, Q5_1, Q6_K, Q8_0, DType
from ggsched.ir.graph import Graph
from ggsched.ir.tensor import Role
from ggsched.scheduler import Scheduler
from ggsched_cuda import driver, program
from ggsched_cuda.harness import KernelLatch
from ggsched_cuda_kernels import tiles
from ggsched_kernels import KernelCall
from ggsched_llm.load import load_model
from ggsched_llm.session import Session, SessionOptions
from ggsched_testing.allowance import is_within, rounding_allowances
from ggsched_testing.generators.values import LeafRule, leaf_values
from ggsched_testing.oracle.interpreter import run_oracle
from tests.support.shapes import (
    GPT_OSS_20B,
    LLAMA_8B,
    SMALL,
    SMALL_MOE,
    random_weights,
    spec_of,
)

BUDGET_S = 200
WITHIN = 2e-5  # of the norm of a result
DTYPES = (BF16, F16, Q8_0, Q4_0, MXFP4)
EXPERTS = ((20, 1, 4, 32), (256, 1, 4, 32), (256, 4, 4, 32), (37, 1, 3, 7), (700, 1, 8, 128))
"""Tokens, rows of x for each, chosen experts, experts."""
PAIRS = (64, 256, 512)  # tokens, of 4 experts of 32 each
TILE_CUTS = (
    tiles.Cut(2, 2), tiles.Cut(2, 3), tiles.Cut(4, 2), tiles.Cut(4, 3, resident=2),
    tiles.Cut(4, 2, tiles=1, resident=4), tiles.Cut(8, 2, resident=2),
)  # fmt: skip
ROWS = (9, 16, 32, 64, 128, 256, 512)
SHAPES = ((14336, 4096), (4096, 14336), (1024, 4096))
MODELS = {
    "llama-8b bf16": (LLAMA_8B, BF16, None),
    "llama-8b q8_0": (LLAMA_8B, Q8_0, None),
    "gpt-oss-20b mxfp4": (GPT_OSS_20B, BF16, MXFP4),
}
QUICK = {"small q8_0": (SMALL, Q8_0, None), "small moe mxfp4": (SMALL_MOE, BF16, MXFP4)}
TOKENS: Mapping[Mode, tuple[int, ...]] = {"auto": (256, 512), "f32": (512,)}
MODES: tuple[Mode, ...] = ("auto", "f32")
ALL_BY_TILES: Mapping[str, Any] = {
    "MAX_ROWS": {planes: dict.fromkeys(tiles.DTYPES, 1 << 30) for planes in (1, 2)},
    "MIN_SHARE": 0,
}
DATA = Path("tests/data/oracle")
LOGITS = {"llama-tiny-f16": 2e-3, "llama-tiny-q8_0": 3e-2, "gptoss-tiny-f32": 1e-4,
          "qwen3moe-tiny-f32": 1e-4}  # fmt: skip
STRETCH = 100  # launches that are enqueued while the stream is held
SHOWN = 12


def run(*, quick: bool) -> dict[str, Any]:
    """Check and measure; ok if all parts ran and agree."""
    models = QUICK if quick else MODELS
    parts: dict[str, Callable[[], Any]] = {
        "products auto": lambda: _agree(_product_cases(quick), "auto"),
        "products f32": lambda: _agree(_product_cases(quick), "f32"),
        "experts auto": lambda: _agree(_expert_cases(EXPERTS[::3]), "auto"),
        "experts f32": lambda: _agree(_expert_cases(EXPERTS[:2] if quick else EXPERTS), "f32"),
        "by tiles": _by_tiles,
        **{f"logits {mode}": lambda mode=mode: _logits(mode) for mode in MODES},
        "grouped": lambda: _grouped(quick),
        **{
            f"step {name} {mode}": lambda name=name, mode=mode: _steps(name, mode, *models[name])
            for mode in MODES
            for name in models
        },
        "curves": lambda: _curves(quick),
    }
    found = run_parts(parts, BUDGET_S)
    table = [f"{name}: {_short(found[name])}" for name in parts if name in found]
    sys.stdout.write("\n".join(["", "-- prefill", *table, *found["failed"], ""]))
    wrong = [case for part in found.values() for case in part.get("wrong", ())]
    return {"ok": not wrong and not found["failed"], **found}


def run_parts(parts: Mapping[str, Callable[[], Any]], budget_s: float) -> dict[str, Any]:
    """Return what parts find that begin within a time; ``failed`` says what others came to."""
    began = time.perf_counter()
    found: dict[str, Any] = {"failed": {}}
    for name, part in parts.items():
        if time.perf_counter() - began > budget_s:
            found["failed"][name] = "no time was left"
            continue
        try:
            found[name] = part()
        except Exception:
            found["failed"][name] = traceback.format_exc()
            sys.stdout.write(found["failed"][name])
        shown = _short(found.get(name, "FAILED"))
        sys.stdout.write(f"   [{time.perf_counter() - began:.0f} s] {name}: {shown}\n")
        sys.stdout.flush()
    return found


def _short(found: Any) -> str:
    if isinstance(found, dict):
        return ", ".join(f"{k} {_short(v)}" for k, v in found.items() if k != "kernels")
    return f"{found:.4g}" if isinstance(found, float) else str(found)


# --- against the reference --------------------------------------------------------------------


def _product_cases(quick: bool) -> Iterator[tuple[str, Graph]]:
    sizes = [(256, 1024, 2880), (33, 300, 96), (40, 257, 4096), (512, 2048, 512)]
    for dtype in DTYPES:
        for m, n, k in sizes[: 2 if quick else None]:
            g = GraphBuilder("products")
            x = g.input("x", (m, k))
            made = [g.mul_mat(g.weight(name, (n, k), dtype), x) for name in "ab"]
            yield f"{dtype} {m} rows, {n} x {k}", g.build(*made)
    for m, n, k in ((100, 77, 1003), (33, 5, 6)):  # rows that are not multiples of 8
        g = GraphBuilder("products")
        yield (
            f"f16 {m}, {n} x {k}",
            g.build(g.mul_mat(g.weight("w", (n, k), F16), g.input("x", (m, k)))),
        )


def _expert_cases(sizes: Iterable[tuple[int, ...]]) -> Iterator[tuple[str, Graph]]:
    for dtype in (MXFP4, Q8_0, BF16, F32, Q4_K, Q6_K, Q5_1):
        width, inner = (512, 256) if dtype.block > 32 else (160, 192)
        for tokens, own, used, experts in sizes:
            g = GraphBuilder("experts")
            x = g.input("x", (tokens, used if own > 1 else 1, width))
            ids = g.input("ids", (tokens, used), I32)
            up, gate = (
                g.mul_mat_id(g.weight(n, (experts, inner, width), dtype), x, ids)
                for n in ("up", "gate")
            )
            down = g.weight("down", (experts, 130, inner), dtype)
            yield (
                f"{dtype} {tokens} tokens, {used} of {experts}",
                g.build(up, g.mul_mat_id(down, g.swiglu(gate, up), ids)),
            )


@contextmanager
def _set_to(mode: Mode) -> Iterator[None]:
    """Let devices that are opened meanwhile take activations in one way."""
    kept = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = mode
    try:
        yield
    finally:
        os.environ[VARIABLE] = "" if kept is None else kept


@contextmanager
def _changed(**names: Any) -> Iterator[None]:
    """Let constants of ``tiles`` have other values for a while."""
    kept = {name: getattr(tiles, name) for name in names}
    try:
        for name, value in names.items():
            setattr(tiles, name, value)
        yield
    finally:
        for name, value in kept.items():
            setattr(tiles, name, value)


def _by_tiles() -> dict[str, Any]:
    """Return the same for products with one weight by tiles, of whatever size."""
    with _changed(**ALL_BY_TILES):
        return _agree(_product_cases(quick=True), "auto")


def _agree(cases: Iterable[tuple[str, Graph]], mode: Mode) -> dict[str, Any]:
    """Return the largest error of each type, of the norm of a result, and what is wrong.

    Exact ones are within ``WITHIN``; for others the allowance of LCH-3 holds for each element.
    """
    worst: dict[str, float] = defaultdict(float)
    wrong, count = [], 0
    for name, graph in cases:
        rng = np.random.default_rng(count)
        values = {
            t.name: leaf_values(t, _rule(t, graph), rng)
            for t in (*graph.roots(Role.INPUT), *graph.roots(Role.WEIGHT))
        }
        inputs = {t.name: values[t.name] for t in graph.roots(Role.INPUT)}
        wanted = run_oracle(graph, values)
        allowed = rounding_allowances(graph, values, wanted) if mode == "auto" else {}
        with _set_to(mode), Scheduler(["cuda:0"], weights=values) as s:
            got = [{k: v.copy() for k, v in s.run(graph, inputs).items()} for _ in range(3)]
        for tid, array in wanted.items():
            error = float(np.linalg.norm(got[-1][tid] - array) / np.linalg.norm(array))
            worst[name.split()[0]] = max(worst[name.split()[0]], error)
            same = all(np.array_equal(g[tid], got[0][tid]) for g in got)
            is_near = is_within(got[-1][tid], array, allowed[tid]) if allowed else error < WITHIN
            if not is_near or not same:
                wrong.append(f"{name}: {error:.2g}{'' if same else ', runs differ'}")
        count += 1
    return {"cases": count, "wrong": wrong, "worst": dict(worst)}


def _rule(t: Any, graph: Graph) -> LeafRule:
    if t.dtype is not I32:
        return LeafRule()
    return LeafRule("ids", bound=next(iter(graph.roots(Role.WEIGHT))).shape[0])


def _logits(mode: Mode) -> dict[str, Any]:
    """Compare logits of small models with llama.cpp's, in one batch of 33 tokens."""
    worst, wrong = {}, []
    for name, most in LOGITS.items():
        with np.load(DATA / f"{name}.npz") as arrays:
            tokens, wanted = arrays["tokens_33"].tolist(), arrays["logits_33"]
        is_f32 = name.endswith("f32")
        model = load_model(DATA / f"{name}.gguf", weights="expand" if is_f32 else "packed")
        options = SessionOptions(n_ctx=64, n_ubatch=64)
        with _set_to(mode), Session(model, ["cuda:0"], options) as session:
            found = session.feed(tokens, all_logits=True).astype(np.float64)
        rms = np.sqrt(((found - wanted) ** 2).mean(axis=-1)) / wanted.std(axis=-1)
        worst[name] = float(np.abs(found - wanted).max() if is_f32 else rms.max())
        if not worst[name] < most:
            wrong.append(name)
    return {"wrong": wrong, "worst": worst}


# --- a step -----------------------------------------------------------------------------------


def _steps(name: str, mode: Mode, hp: Any, dtype: DType, experts: DType | None) -> dict[str, Any]:
    spec, found = spec_of(hp, dtype, experts), {}
    settings = Settings.from_environment(capture=False)
    weights = random_weights(spec)
    with _set_to(mode), Scheduler(["cuda:0"], weights=weights, settings=settings) as scheduler:
        for tokens in TOKENS[mode]:
            running, lowered = _prepared(scheduler, spec, tokens)
            running.step()
            seconds = running.seconds(10)
            kernels = _kernel_times(running, lowered)
            found[tokens] = {
                "ms": 1e3 * seconds,
                "tokens_per_s": tokens / seconds,
                "kernels_ms": sum(us for _, us in kernels.values()) / 1e3,
                "kernels": kernels,
            }
            sys.stdout.write(f"   {name} {mode}, {tokens} tokens: {_short(found[tokens])}\n")
            for kernel, (count, us) in list(kernels.items())[:SHOWN]:
                sys.stdout.write(f"      {kernel}: {count} x {us / count:.1f} = {us:.0f} us\n")
            sys.stdout.flush()
            scheduler._store.drain()
    return found


def _prepared(scheduler: Scheduler, spec: Any, tokens: int) -> tuple[Running, list[list[Any]]]:
    """Return a model's graph, prepared, and the calls of each program that this compiled."""
    lowered: list[list[Any]] = []
    original = program.lower

    def lower(nodes: Any, profile: Any) -> Any:
        calls, memory = original(nodes, profile)
        lowered.append(calls)
        return calls, memory

    program.lower = lower  # type: ignore[assignment]
    try:
        return Running(scheduler, spec, tokens, n_kv=tokens), lowered
    finally:
        program.lower = original


def _kernel_times(running: Running, lowered: list[list[Any]]) -> Mapping[str, tuple[int, float]]:
    """Return how often each kind of call runs in a step, and its microseconds in all."""
    programs = [p for p in running.executor._resources.programs.values() if p.steps]
    marks: list[tuple[str, int, int]] = []
    for p in programs:
        calls = next(c for c in lowered if [x.label for x in c] == p.labels)
        p.steps, p.plain = _marked(p, calls, marks), p.steps
        p.labels, p.plain_labels = [p.labels[0]] * len(p.steps), p.labels
    try:
        running.step()
        running.step()
    finally:
        for p in programs:
            p.steps, p.labels = p.plain, p.plain_labels
    total: dict[str, tuple[int, float]] = defaultdict(lambda: (0, 0.0))
    for kind, earlier, later in marks:
        count, us = total[kind]
        total[kind] = count + 1, us + 1e6 * driver.seconds_between(earlier, later)
    return dict(sorted(total.items(), key=lambda item: -item[1][1]))


def _marked(p: Any, calls: list[Any], marks: list[tuple[str, int, int]]) -> list[Any]:
    """Return the steps of a program with events around each, and holds around stretches."""
    handle, steps, latches = p.stream.handle, [], []

    def hold() -> tuple[int]:
        latches.append(KernelLatch(p.stream))
        return (0,)

    def release() -> tuple[int]:
        latches.pop().release()
        return (0,)

    for at in range(0, len(calls), STRETCH):
        earlier = driver.make_timed_event()
        steps += [(hold, ()), (driver.record_event, (earlier, handle))]
        for call, step in zip(calls[at : at + STRETCH], p.steps[at : at + STRETCH], strict=True):
            later = driver.make_timed_event()
            steps += [step, (driver.record_event, (later, handle))]
            marks.append((_kind(call), earlier, later))
            earlier = later
        steps.append((release, ()))
    return steps


def _kind(call: Any) -> str:
    if not isinstance(call, KernelCall):
        m, n, k = call.size
        batches = f" of {call.batches[0]}" if call.batches[0] > 1 else ""
        return f"product {'f32' if call.kind == 0 else '16 bit'} {m} x {n} x {k}{batches}"
    types = [name[2:].lower() for name, _ in call.defines if name.startswith("W_")]
    return " ".join([call.kernel, *types])


# --- curves -----------------------------------------------------------------------------------


def _grouped(quick: bool) -> dict[str, Any]:
    """Return the microseconds of a product with experts' weights, its share of the route in it."""
    from ggsched_cuda import open_backend

    device: Any = open_backend().open_device(0)
    bench, found = _Bench(device), {}
    size = 256 if quick else 2880
    try:
        for dtype in (MXFP4, Q8_0, BF16):
            for mode in MODES:
                device.profile = replace(device.profile, activations=mode)
                key = f"{dtype} {mode} us by tokens"
                found[key] = {m: _grouped_us(bench, dtype, size, m) for m in PAIRS}
            device.profile = replace(device.profile, activations="auto")
            for cut in TILE_CUTS:
                with _changed(CUTS={**tiles.CUTS, dtype.name: cut}):
                    us = _grouped_us(bench, dtype, size, PAIRS[-1])
                    found[f"{dtype} auto {cut} us at {PAIRS[-1]} tokens"] = us
            for key in [key for key in found if key.startswith(str(dtype))]:
                sys.stdout.write(f"   {key}: {found[key]}\n")
            sys.stdout.flush()
    finally:
        device.close()
    return found


def _grouped_us(bench: Any, dtype: DType, size: int, tokens: int) -> float:
    g = GraphBuilder("grouped")
    x, ids = g.input("x", (tokens, 1, size)), g.input("ids", (tokens, 4), I32)
    weights = [g.weight(f"w{i}", (32, size, size), dtype) for i in range(4)]
    graph = g.build(*(g.mul_mat_id(w, x, ids) for w in weights))
    return round(1e6 * float(bench._run(graph, 4)[0]), 1)


def _curves(quick: bool) -> dict[str, Any]:
    """Return the microseconds of a product by rows: as chosen, and by tiles."""
    from ggsched_cuda import open_backend

    device: Any = open_backend().open_device(0)
    bench, found = _Bench(device), {}
    try:
        for n, k in ((1024, 1024),) if quick else SHAPES:
            for dtype in (BF16, Q8_0, MXFP4):
                for mode in MODES if (n, k) == SHAPES[0] else MODES[:1]:
                    device.profile = replace(device.profile, activations=mode)
                    us = {m: round(_product_us(bench, dtype, n, k, m), 1) for m in ROWS}
                    found[f"{dtype} {n} x {k} {mode} us by rows"] = us
                device.profile = replace(device.profile, activations="auto")
                with _changed(**ALL_BY_TILES):
                    us = {m: round(_product_us(bench, dtype, n, k, m), 1) for m in ROWS[:-2]}
                found[f"{dtype} {n} x {k} auto by tiles us by rows"] = us
    finally:
        device.close()
    return found


def _product_us(bench: Any, dtype: DType, n: int, k: int, m: int) -> float:
    g = GraphBuilder("products")
    made = [g.mul_mat(g.weight(f"w{i}", (n, k), dtype), g.input(f"x{i}", (m, k))) for i in range(4)]
    return 1e6 * float(bench._run(g.build(*made), 4)[0])
