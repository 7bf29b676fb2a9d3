"""The choice of experts, their products with what joins them, and their sum, against the oracle.

Each graph runs in every mode of PDL; results have to be the same bytes, and good: ids as
they are, numbers within a small part of the norm of their result.
"""

import sys
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from benchmarks.gpu.running import run_in_modes
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import BF16, F32, I32, MXFP4, Q8_0, DType
from ggsched.ir.graph import Graph
from ggsched.ir.tensor import Role, Tensor
from ggsched_testing.generators.values import LeafRule, leaf_values
from ggsched_testing.oracle.interpreter import run_oracle

TOLERANCE = 1e-5  # of the norm of a result
MODES = ("off", "on", "late")
EXPERTS, USED = 8, 4
ROUTES = ((1, 32, 4), (2, 32, 4), (8, 128, 8), (3, 33, 1), (1, 7, 7), (4, 256, 32), (32, 8, 2))
LOGITS = ("plain", "ties", "infinite")
EXTENTS = (64, 2880, 4096)
DTYPES = (MXFP4, Q8_0, BF16)

Arrays = Mapping[str, Any]


class Case(NamedTuple):
    """A graph and its inputs and weights."""

    name: str
    graph: Graph
    values: Arrays


def run(*, quick: bool) -> dict[str, Any]:
    """Compare every graph; ok if all agree."""
    worst: dict[str, float] = {}
    wrong = []
    for case in cases(quick):
        error, problem = _compare(case)
        kind = case.name.split(",")[0]
        worst[kind] = max(worst.get(kind, 0.0), error)
        if problem:
            wrong.append(f"{case.name}: {problem}")
            sys.stdout.write(f"   WRONG {wrong[-1]}\n")
            sys.stdout.flush()
    sys.stdout.write(f"   largest errors {worst}, {len(wrong)} wrong\n")
    return {"ok": not wrong, "worst": worst, "wrong": wrong}


def cases(quick: bool) -> Iterator[Case]:
    """Yield graphs of a kind each, of several sizes."""
    rng = np.random.default_rng(0)
    for kind, size in product(("chosen", "all"), ROUTES[:3] if quick else ROUTES):
        for what in LOGITS:
            graph = _route(kind, *size)
            yield Case(f"{kind}, {size}, {what}", graph, {"logits": _logits(what, size, rng)})
    for dtype, k, tokens in product(DTYPES, EXTENTS[1:2] if quick else EXTENTS, (1, 2)):
        for name, build in BUILD.items():
            graph = build(dtype, k, tokens)
            yield Case(f"{name}, {dtype} {k}, {tokens} tokens", graph, _drawn(graph, rng))


# --- routes -----------------------------------------------------------------------------------


def _chosen(g: GraphBuilder, kind: str, logits: Tensor, used: int) -> tuple[Tensor, ...]:
    """Add a route; its results, the ids first and the weights (T, U) last."""
    scores = g.soft_max(logits) if kind == "all" else logits
    ids = g.top_k(scores, used)
    picked = g.get_rows(g.reshape(scores, *scores.shape, 1), ids)
    flat = g.reshape(picked, *ids.shape)
    if kind == "all":
        total = g.sum_rows(flat)
        return ids, scores, picked, total, g.div(flat, total)
    return ids, picked, g.soft_max(flat)


def _route(kind: str, tokens: int, experts: int, used: int) -> Graph:
    """A route whose every result is looked at."""
    g = GraphBuilder("route")
    return g.build(*_chosen(g, kind, g.input("logits", (tokens, experts)), used))


def _logits(what: str, size: tuple[int, int, int], rng: np.random.Generator) -> np.ndarray:
    """Return logits a sixteenth apart, so that rounding changes no order, many of them ties."""
    tokens, experts, _ = size
    steps = 4 if what == "ties" else 64
    logits = rng.integers(-steps, steps, (tokens, experts)).astype(np.float32) / 16
    if what == "infinite":
        logits[rng.random(logits.shape) < 0.7] = -np.inf
        logits[:, experts // 2] = 0.5
    return logits


# --- experts ----------------------------------------------------------------------------------


def _side(g: GraphBuilder, x: Tensor, ids: Tensor, name: str, w: Tensor) -> Tensor:
    made = g.mul_mat_id(w, x, ids)
    return g.add_id(made, g.weight(f"{name}.bias", w.shape[:2]), ids)


def _hidden(g: GraphBuilder, x: Tensor, ids: Tensor, dtype: DType, n: int, experts: int) -> Tensor:
    """Both halves of the gate; up first, as in a model."""
    shape = (experts, n, x.shape[-1])
    up = _side(g, x, ids, "up", g.weight("up", shape, dtype))
    gate = _side(g, x, ids, "gate", g.weight("gate", shape, dtype))
    return g.swiglu_oai(gate, up)


def _down(
    g: GraphBuilder, x: Tensor, ids: Tensor, weights: Tensor, dtype: DType, n: int, experts: int
) -> Tensor:
    """What experts make of x (T, U, k), weighted and added up."""
    made = _side(g, x, ids, "down", g.weight("down", (experts, n, x.shape[-1]), dtype))
    total = g.sum_rows(g.permute(g.mul(made, weights), 0, 2, 1))
    return g.reshape(total, x.shape[0], n)


def _gated_oai(dtype: DType, k: int, tokens: int) -> Graph:
    g = GraphBuilder("gated_oai")
    x, ids = g.input("x", (tokens, 1, k)), g.input("ids", (tokens, USED), I32)
    return g.build(_hidden(g, x, ids, dtype, 197, EXPERTS))


def _weighted(dtype: DType, k: int, tokens: int) -> Graph:
    g = GraphBuilder("weighted")
    x, ids = g.input("x", (tokens, USED, k)), g.input("ids", (tokens, USED), I32)
    made = _side(g, x, ids, "down", g.weight("down", (EXPERTS, 197, k), dtype))
    return g.build(g.mul(made, g.input("weights", (tokens, USED, 1))))


def _summed(dtype: DType, k: int, tokens: int) -> Graph:
    g = GraphBuilder("summed")
    x, ids = g.input("x", (tokens, USED, k)), g.input("ids", (tokens, USED), I32)
    weights = g.input("weights", (tokens, USED, 1))
    total = _down(g, x, ids, weights, dtype, 197, EXPERTS)
    return g.build(g.add(total, g.input("rest", (tokens, 197))))


def _biased(dtype: DType, k: int, tokens: int) -> Graph:
    g = GraphBuilder("biased")
    x, ids = g.input("x", (tokens, 1, k)), g.input("ids", (tokens, USED), I32)
    return g.build(_side(g, x, ids, "w", g.weight("w", (EXPERTS, 197, k), dtype)))


def _gated(dtype: DType, k: int, tokens: int) -> Graph:
    g = GraphBuilder("gated")
    x, ids = g.input("x", (tokens, 1, k)), g.input("ids", (tokens, USED), I32)
    up, gate = (g.mul_mat_id(g.weight(n, (EXPERTS, 197, k), dtype), x, ids) for n in ("up", "gate"))
    return g.build(g.swiglu(gate, up))


def _layer(dtype: DType, k: int, tokens: int) -> Graph:
    """The whole network of a layer as in gpt-oss, from the residual to the residual."""
    g = GraphBuilder("layer")
    rest = g.input("rest", (tokens, k))
    x = g.mul(g.rms_norm(rest), g.weight("norm", (k,)))
    experts = 4 * EXPERTS
    logits = g.add(g.mul_mat(g.weight("router", (experts, k)), x), g.weight("bias", (experts,)))
    ids, *_, weights = _chosen(g, "chosen", logits, USED)
    hidden = _hidden(g, g.reshape(x, tokens, 1, k), ids, dtype, 64, experts)
    flat = g.reshape(weights, *weights.shape, 1)
    return g.build(g.add(_down(g, hidden, ids, flat, dtype, k, experts), rest))


def _output(dtype: DType, k: int, tokens: int) -> Graph:
    """A product, its bias, and the residual."""
    g = GraphBuilder("output")
    weight = g.weight("w", (197, k), F32 if dtype is MXFP4 else dtype)
    made = g.add(g.mul_mat(weight, g.input("x", (tokens, k))), g.weight("bias", (197,)))
    return g.build(g.add(made, g.input("rest", (tokens, 197))))


BUILD = {
    "gated_oai": _gated_oai,
    "weighted": _weighted,
    "summed": _summed,
    "biased": _biased,
    "gated": _gated,
    "layer": _layer,
    "output": _output,
}


# --- comparing --------------------------------------------------------------------------------


def _drawn(graph: Graph, rng: np.random.Generator) -> Arrays:
    """Return inputs and weights; ids are in range, and the same one may come twice."""
    rules = {I32: LeafRule("ids", bound=EXPERTS)}
    plain = LeafRule(amp=0.5)
    leaves = (*graph.roots(Role.INPUT), *graph.roots(Role.WEIGHT))
    return {t.name: leaf_values(t, rules.get(t.dtype, plain), rng) for t in leaves}


def _compare(case: Case) -> tuple[float, str]:
    """Return the largest error and what is wrong, if anything is."""
    graph, values = case.graph, case.values
    wanted = run_oracle(graph, values)
    got = run_in_modes(graph, values, MODES)
    errors = [_error(a, wanted[tid]) for a, tid in zip(got[0], graph.outputs, strict=True)]
    problem = "" if max(errors) <= TOLERANCE else f"errors {errors}"
    for i, some in enumerate(got):
        if any(a.tobytes() != b.tobytes() for a, b in zip(got[0], some, strict=True)):
            problem += f" mode {MODES[i // 2]} differs"
    return max(errors), problem


def _error(a: np.ndarray, wanted: np.ndarray) -> float:
    """Return the norm of the difference relative to that of what is wanted; ids agree or do not."""
    if wanted.dtype == np.int32:
        return float(not np.array_equal(a, wanted))
    same = a == wanted  # infinite ones, too
    difference = np.where(same, 0.0, a.astype(np.float64) - np.where(same, 0.0, wanted))
    norm = float(np.linalg.norm(np.where(np.isfinite(wanted), wanted, 0.0)))
    error = float(np.linalg.norm(difference) / max(1e-30, norm))
    return error if np.isfinite(error) else float("inf")
