"""Attention of many tokens on tensor cores: against float64, its rate, and steps at depth.

Each part is guarded, so that a failure in one does not lose the others. Rates are those of the
products that are seen, ``2 T N_seen H (D + E)``, next to a product of 8192 x 8192 x 8192.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.gpu.attention import filled
from benchmarks.gpu.prefill import _set_to, run_parts
from benchmarks.gpu.products import _Bench as Products
from benchmarks.gpu.running import Running
from ggsched.backend.precision import Activations
from ggsched.config import Settings
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import BF16, F16, F32, I32, DType
from ggsched.ir.graph import Graph
from ggsched.ir.tensor import Role
from ggsched.scheduler import Scheduler
from ggsched_cuda import open_backend
from ggsched_cuda_kernels import flash_attention as flash
from ggsched_cuda_kernels.decode import attention as few
from ggsched_testing.allowance import is_within, rounding_allowances
from ggsched_testing.generators.values import LeafRule, leaf_values
from ggsched_testing.oracle.interpreter import run_oracle
from tests.support.shapes import LLAMA_8B, SMALL, random_weights, spec_of

BUDGET_S = 300
SIDE = 8192
MODES: tuple[Activations, ...] = ("auto", "f32")


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes; ``share`` query heads for each of ``groups`` key heads, ``seen``: see ``_bounds``."""

    tokens: int
    groups: int
    share: int
    n: int
    width: int
    across: int
    dtype: DType
    seen: str = "prefix"
    sinks: bool = False
    soft_cap: float = 0.0


CASES = (
    Shape(512, 2, 4, 512, 128, 128, BF16),
    Shape(100, 2, 4, 700, 64, 64, F16, "window", sinks=True),
    Shape(33, 1, 8, 300, 80, 80, BF16, "random"),
    Shape(9, 3, 1, 4096, 96, 96, F16, "prefix", sinks=True),
    Shape(64, 2, 2, 257, 192, 128, F16, "random", soft_cap=20.0),
    Shape(40, 1, 3, 129, 256, 256, BF16, "all"),
    Shape(300, 1, 5, 1000, 128, 128, F16, "mask", sinks=True),
    Shape(1, 8, 4, 4096, 128, 128, BF16),
    Shape(1, 8, 8, 4096, 64, 64, F16, "window", sinks=True),
    Shape(3, 2, 4, 1000, 128, 128, F32),
    Shape(40, 2, 4, 100, 72, 72, F16),  # by the kernel for any shape
    Shape(40, 2, 4, 100, 64, 64, F32, "random", sinks=True),
)
RATES = (
    Shape(512, 8, 4, 512, 128, 128, BF16),
    Shape(2048, 8, 4, 2048, 128, 128, BF16),
    Shape(4096, 8, 4, 4096, 128, 128, BF16),
    Shape(512, 8, 4, 4096, 128, 128, BF16),
    Shape(512, 8, 4, 16384, 128, 128, BF16),
    Shape(4096, 8, 4, 4096, 64, 64, BF16),
    Shape(4096, 8, 8, 4096, 64, 64, BF16, "window", sinks=True),
    Shape(512, 8, 4, 4096, 128, 128, F32),
)
DEPTHS = (512, 4096, 16384, 65536)
CUTS = (
    flash.Cut(4, 2, 64, 2), flash.Cut(8, 1, 64, 1), flash.Cut(8, 1, 64, 2), flash.Cut(4, 1, 64, 3),
    flash.Cut(4, 1, 64, 2), flash.Cut(4, 2, 32, 2), flash.Cut(4, 2, 64, 1), flash.Cut(8, 1, 128, 1),
    flash.Cut(4, 1, 32, 3), flash.Cut(8, 2, 64, 1),
)  # fmt: skip
STEPS = ((512, 512), (512, 4096), (512, 16384), (1, 512), (1, 4096), (1, 16384))
"""Tokens of a step, and rows of the cache that it ends at."""


def run(*, quick: bool) -> dict[str, Any]:
    """Check and measure; ok if all parts ran and agree."""
    parts: dict[str, Callable[[], Any]] = {
        **{f"agree {mode}": lambda mode=mode: _agree(mode) for mode in MODES},
        "cuts": _cuts,
        "rates": lambda: _rates(RATES[:2] if quick else RATES),
        "one token": lambda: _one_token(DEPTHS[:2] if quick else DEPTHS),
        "steps": lambda: _steps(quick),
    }
    found = run_parts(parts, BUDGET_S)
    wrong = [case for mode in MODES for case in found.get(f"agree {mode}", {}).get("wrong", ())]
    return {"ok": not wrong and not found["failed"], **found}


# --- against the reference --------------------------------------------------------------------


def attention(s: Shape) -> Graph:
    """Return the graph of one node, whose keys and values are the leading rows of caches."""
    g = GraphBuilder("attention")
    q = g.input("q", (s.tokens, s.groups * s.share, s.width))
    kept = [
        g.reshape(g.rows(g.input(name, (s.n + 8, s.groups * m), s.dtype), 0, s.n), s.n, s.groups, m)
        for name, m in (("k", s.width), ("v", s.across))
    ]
    is_mask = s.seen == "mask"
    return g.build(
        g.attention(
            q,
            *kept,
            mask=g.input("mask", (s.tokens, s.n)) if is_mask else None,
            bounds=None if is_mask else g.input("bounds", (s.tokens, 2), I32),
            sinks=g.input("sinks", (s.groups * s.share,)) if s.sinks else None,
            scale=s.width**-0.5,
            soft_cap=s.soft_cap,
        )
    )


def _values(graph: Graph, s: Shape, rng: np.random.Generator) -> dict[str, Any]:
    rules = {"mask": LeafRule("mask"), "bounds": LeafRule("bounds", bound=s.n)}
    plain = LeafRule(amp=2.0)
    values = {
        t.name: leaf_values(t, rules.get(t.name, plain), rng) for t in graph.roots(Role.INPUT)
    }
    if s.seen not in ("random", "mask"):
        values["bounds"] = _bounds(s)
    return values


def _bounds(s: Shape) -> np.ndarray:
    end = np.arange(s.n - s.tokens, s.n, dtype=np.int32) + 1
    first = {"prefix": 0 * end, "window": np.maximum(0, end - 128), "all": 0 * end}[s.seen]
    return np.stack([first, end if s.seen != "all" else 0 * end + s.n], axis=-1)


def _agree(mode: Activations) -> dict[str, Any]:
    """Return the largest error of each case, of the norm of the result, and which are wrong."""
    worst, wrong = {}, []
    for k, s in enumerate(CASES):
        graph = attention(s)
        values = _values(graph, s, np.random.default_rng(k))
        wanted = run_oracle(graph, values)
        allowed = rounding_allowances(graph, values, wanted)
        with _set_to(mode), Scheduler(["cuda:0"]) as scheduler:
            got = [{t: a.copy() for t, a in scheduler.run(graph, values).items()} for _ in range(3)]
        for tid, array in wanted.items():
            error = float(np.linalg.norm(got[-1][tid] - array) / np.linalg.norm(array))
            worst[str(s)] = error
            share = 1.0 if mode == "auto" else 0.02
            is_same = all(np.array_equal(g[tid], got[0][tid]) for g in got)
            if not is_within(got[-1][tid], array, share * allowed[tid]) or not is_same:
                wrong.append(f"{mode} {s}: {error:.2g}{'' if is_same else ', runs differ'}")
    sys.stdout.write("".join(f"      {mode} {case}: {e:.2g}\n" for case, e in worst.items()))
    return {"wrong": wrong, "worst": max(worst.values())}


# --- rates --------------------------------------------------------------------------------------


def _rates(shapes: tuple[Shape, ...]) -> dict[str, Any]:
    """Return the rate of a large product, and those of attention, in operations per second."""
    found: dict[str, Any] = {}
    with _set_to("auto"):
        device: Any = open_backend().open_device(0)
        bench = Products(device)
        g = GraphBuilder("product")
        x, w = g.input("x", (SIDE, SIDE)), g.weight("w", (SIDE, SIDE), BF16)
        seconds, _ = bench._run(g.build(g.mul_mat(w, x)), 1)
        large = 2.0 * SIDE**3 / seconds
        found[f"{SIDE}^3 bf16, activations rounded"] = f"{large / 1e12:.0f} TFLOP/s"
        for s in shapes:
            seconds = _seconds(bench, s)
            rate = _operations(s) / seconds
            text = f"{rate / 1e12:.0f} TFLOP/s, {rate / large:.2f}, {1e6 * seconds:.0f} us"
            sys.stdout.write(f"      {s}: {text}\n")
            found[str(s)] = text
        device.close()
    return found


def _cuts() -> dict[str, str]:
    """Return the rates of some cuts of the kernel."""
    found, kept = {}, flash.MANY
    with _set_to("auto"):
        device: Any = open_backend().open_device(0)
        bench = Products(device)
        try:
            for s in RATES[0], RATES[2], RATES[4], RATES[5]:
                for cut in CUTS:
                    flash.MANY = cut  # type: ignore[misc]
                    name = f"{s.tokens} of {s.n}, {s.width}: {tuple(cut)}"
                    try:
                        seconds = _seconds(bench, s)
                    except Exception as error:
                        found[name] = repr(error)[:200]
                        continue
                    found[name] = f"{_operations(s) / seconds / 1e12:.0f} TFLOP/s"
                    sys.stdout.write(f"      {name}: {found[name]}\n")
                    sys.stdout.flush()
        finally:
            flash.MANY = kept  # type: ignore[misc]
        device.close()
    return found


def _seconds(bench: Products, s: Shape) -> float:
    graph = attention(s)
    return min(_run(bench, graph, s) for _ in range(2))


def _run(bench: Products, graph: Graph, s: Shape, count: int = 5) -> float:
    """Return the seconds of a node: ``count`` of them in a row on the stream, by events."""
    from ggsched_testing.eager import bound_nodes

    values = _values(graph, s, np.random.default_rng(0))
    buffers = filled(bench.stream, graph, values)
    nodes = bound_nodes(graph, buffers)
    program = bench.device.compile(nodes * count, bench.stream)
    bench.stream.sync(60.0)
    best = bench.timer.replayed(lambda: [call(*given) for call, given in program.steps]) / count
    program.close()
    for buffer in buffers.values():
        buffer.close()
    return best


def _operations(s: Shape) -> float:
    first, end = _bounds(s).T
    return 2.0 * float((end - first).sum()) * s.groups * s.share * (s.width + s.across)


def _one_token(depths: tuple[int, ...]) -> dict[str, str]:
    """Return the time of one token by the kernel for few tokens and on tensor cores, at depths."""
    found = {}
    with _set_to("auto"):
        device: Any = open_backend().open_device(0)
        bench = Products(device)
        for n in depths:
            for share, width in ((4, 128), (8, 64)):
                s = Shape(1, 8, share, n, width, width, BF16)
                most, few.LONG = few.LONG, 1 << 30  # type: ignore[misc]
                apart = _seconds(bench, s)
                few.LONG = 0  # type: ignore[misc]
                try:
                    tensor_cores = _seconds(bench, s)
                finally:
                    few.LONG = most  # type: ignore[misc]
                rate = 2 * 2 * n * 8 * width / min(apart, tensor_cores)
                found[f"{n} rows, 8 x {share} heads of {width}"] = (
                    f"few tokens {1e6 * apart:.1f} us, tensor cores {1e6 * tensor_cores:.1f} us, "
                    f"{rate / 1e12:.2f} TB/s"
                )
        device.close()
    return found


def _steps(quick: bool) -> dict[str, str]:
    """Return the time of steps of a model that end at some depth, with a cache of f16."""
    spec = spec_of(SMALL if quick else LLAMA_8B, BF16, None)
    weights, found = random_weights(spec), {}
    settings = Settings.from_environment(capture=False)
    for tokens, depth in STEPS[:2] if quick else STEPS:
        with (
            _set_to("auto"),
            Scheduler(["cuda:0"], weights=weights, settings=settings) as scheduler,
        ):
            running = Running(scheduler, spec, tokens, depth, n_past=depth - tokens, kv_dtype=F16)
            running.capture()
            running.step()
            seconds = running.seconds(10)
            text = f"{1e3 * seconds:.2f} ms, {tokens / seconds:.0f} tokens/s"
            sys.stdout.write(f"      {tokens} tokens that end at {depth}: {text}\n")
            sys.stdout.flush()
            found[f"{tokens} at {depth}"] = text
            scheduler._store.drain()
    return found
