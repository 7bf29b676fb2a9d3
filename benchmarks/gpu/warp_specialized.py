"""Warp-specialised products, joined with what stands around them, against the oracle.

Each graph runs in every mode of PDL; results have to be the same bytes, and good.
"""

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.gpu.running import run_in_modes
from ggsched.backend.packed import dequantize
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import BF16, F16, F32, MXFP4, Q4_0, Q8_0, DType
from ggsched.ir.graph import Graph
from ggsched.ir.tensor import Role
from ggsched_testing.generators.values import LeafRule, leaf_values
from ggsched_testing.oracle.interpreter import run_oracle

TOLERANCE = 1e-5  # of the norm of a result
ROUNDING = 1e-7  # of the norm that it has if no terms cancel each other: half a unit of a float
ROWS = (1, 132, 777)
MOST = 1 << 22


def run(*, quick: bool) -> dict[str, Any]:
    """Compare every shape; ok if all agree."""
    worst: dict[str, float] = {}
    wrong = []
    for name, graph, floats in graphs(quick):
        found = _error(graph, floats)
        kind = name.split(" ")[0]
        worst[kind] = max(worst.get(kind, 0.0), found["error"])
        is_right = found["error"] <= TOLERANCE or found["error_of_terms"] <= ROUNDING
        if not is_right or not found["equal"]:
            wrong.append(f"{name}: {found}")
            sys.stdout.write(f"   WRONG {name}: {found}\n")
            sys.stdout.flush()
    sys.stdout.write(f"   largest errors {worst}, {len(wrong)} wrong\n")
    return {"ok": not wrong, "worst": worst, "wrong": wrong}


def graphs(quick: bool) -> Iterator[tuple[str, Graph, Graph]]:
    """Yield graphs of one row, by name, and the same with weights of floats."""
    extents = (64, 2048, 2880, 4096, 14336)
    for dtype in (BF16, Q8_0, MXFP4, Q4_0, F16, F32):
        for k in extents[1:3] if quick or dtype in (F16, F32) else extents:
            for n in ROWS[1:2] if quick else ROWS:
                if n * k > MOST:
                    continue
                for kind, build in BUILD.items():
                    yield f"{kind} {dtype} {n} x {k}", build(dtype, n, k), build(F32, n, k)


def _plain(dtype: DType, n: int, k: int) -> Graph:
    g = GraphBuilder("plain")
    return g.build(g.mul_mat(g.weight("w", (n, k), dtype), g.input("x", (1, k))))


def _normed(dtype: DType, n: int, k: int) -> Graph:
    """A norm and three products of it, one of them with a bias; the norm is looked at, too."""
    g = GraphBuilder("normed")
    x = g.mul(g.rms_norm(g.input("x", (1, k)), 1e-5), g.weight("norm", (k,)))
    a, b, c = (g.mul_mat(g.weight(f"w{i}", (n + i, k), dtype), x) for i in range(3))
    return g.build(a, b, g.add(c, g.weight("bias", (n + 2,))), g.scale(x, 2.0))


def _residual(dtype: DType, n: int, k: int) -> Graph:
    g = GraphBuilder("residual")
    y = g.mul_mat(g.weight("w", (n, k), dtype), g.input("x", (1, k)))
    return g.build(g.add(y, g.input("r", (1, n))))


def _gated(dtype: DType, n: int, k: int) -> Graph:
    """A norm and a gated product of it, and one of that."""
    g = GraphBuilder("gated")
    x = g.mul(g.rms_norm(g.input("x", (1, k)), 1e-5), g.weight("norm", (k,)))
    up = g.mul_mat(g.weight("up", (n, k), dtype), x)
    gate = g.mul_mat(g.weight("gate", (n, k), dtype), x)
    return g.build(g.swiglu(gate, up))


def _summed(dtype: DType, n: int, k: int) -> Graph:
    """A norm of sums of four rows and another one, and products of it; all are looked at."""
    g = GraphBuilder("summed")
    total = g.sum_rows(g.permute(g.input("terms", (1, 4, k)), 0, 2, 1))
    y = g.add(g.reshape(total, 1, k), g.input("base", (1, k)))
    x = g.mul(g.rms_norm(y, 1e-5), g.weight("norm", (k,)))
    made = [g.mul_mat(g.weight(f"w{i}", (n + i, k), dtype), x) for i in range(3)]
    return g.build(*made, g.scale(x, 2.0), g.scale(y, 2.0))


BUILD = {
    "plain": _plain, "normed": _normed, "residual": _residual, "gated": _gated, "summed": _summed,
}  # fmt: skip


def _error(graph: Graph, floats: Graph) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    rule = LeafRule(amp=0.5)
    values = {
        t.name: leaf_values(t, rule, rng)
        for t in graph.tensors
        if t.role in (Role.INPUT, Role.WEIGHT) and not t.is_view
    }
    wanted = run_oracle(graph, values)
    got = run_in_modes(graph, values, ("off", "on", "late"))
    equal = all(
        a.tobytes() == b.tobytes() for made in got[1:] for a, b in zip(got[0], made, strict=True)
    )
    terms = run_oracle(floats, {name: _terms(graph, name, v) for name, v in values.items()})
    error, of_terms = 0.0, 0.0
    for a, tid in zip(got[0], graph.outputs, strict=True):
        apart = float(np.linalg.norm(a - wanted[tid]))
        error = max(error, apart / max(1e-30, float(np.linalg.norm(wanted[tid]))))
        of_terms = max(of_terms, apart / max(1e-30, float(np.linalg.norm(terms[tid]))))
    return {"error": error, "error_of_terms": of_terms, "equal": equal}


def _terms(graph: Graph, name: str, value: Any) -> Any:
    """Return the magnitudes of an input or a weight as floats."""
    t = next(t for t in graph.tensors if t.name == name)
    if t.role is Role.WEIGHT and t.dtype is not F32:
        raw = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        value = dequantize(raw, t.dtype, t.shape)
    return np.abs(value).astype(np.float32)
