"""Products of 1 to 512 rows with the weights of a layer of 8B: tokens/s must grow with the rows.

Several sequences, drafts and short prompts are rows at once. For each type of weight and number of
rows, the products of one layer run from a captured graph, over copies of the weights that together
are larger than the L2 cache; tokens/s are what 32 such layers would give if there were nothing else
(no attention, no output matrix). Beside it stands which kernel each product got, so that a step
down names its cause. ``ok`` says whether each number of rows is at least as fast as the one before,
within ``NOISE``. Weights are random bytes: speed does not depend on them.

A part that would begin after ``BUDGET_S`` is left out.
"""

import sys
import time
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from benchmarks.gpu.timing import Timer
from ggsched.backend.precision import Activations
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import BF16, Q4_0, Q4_K, Q5_K, Q6_K, Q8_0, DType
from ggsched.ir.graph import Graph
from ggsched_cuda import open_backend
from ggsched_cuda_kernels.calls import ProductCall
from ggsched_cuda_kernels.kernel_selection import lower
from ggsched_testing.eager import bound_nodes

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 512)
DTYPES = (Q8_0, BF16, Q4_0, Q4_K, Q6_K, Q5_K)
MODES: tuple[Activations, ...] = ("f32", "auto")
LAYER = {
    "q": (4096, 4096), "k": (1024, 4096), "v": (1024, 4096), "o": (4096, 4096),
    "gate": (14336, 4096), "up": (14336, 4096), "down": (4096, 14336),
}  # fmt: skip
SMALL = {"q": (256, 256), "down": (256, 512)}
LAYERS = 32
COPIES = 2  # of a layer; one of q4_0 has 123 MB, an H200 50 MB of L2 cache
NOISE = 0.03
BUDGET_S = 75.0


def run(*, quick: bool) -> dict[str, Any]:
    """Measure every type in both modes; ok if tokens/s never fall."""
    began, device = time.perf_counter(), open_backend().open_device(0)
    found: dict[str, Any] = {"falls": [], "left_out": []}
    try:
        for mode in MODES:
            for dtype in DTYPES:
                name = f"{dtype} {mode}"
                if time.perf_counter() - began > BUDGET_S:
                    found["left_out"].append(name)
                    continue
                found[name] = _curve(device, dtype, mode, SMALL if quick else LAYER)
                rates = {m: point["tokens_per_s"] for m, point in found[name].items()}
                found["falls"] += _falls(name, rates)
                text = ", ".join(f"{m}: {rate:,.0f}" for m, rate in rates.items())
                sys.stdout.write(f"   {name}, tokens/s by rows: {text}\n")
                sys.stdout.flush()
    finally:
        device.close()
    for fall in found["falls"]:
        sys.stdout.write(f"   falls: {fall}\n")
    return {"ok": not found["falls"] and not found["left_out"], **found}


def _falls(name: str, rates: dict[int, float]) -> list[str]:
    return [
        f"{name}: {rates[a]:,.0f} tokens/s with {a} rows, {rates[b]:,.0f} with {b}"
        for a, b in pairwise(rates)
        if rates[b] < rates[a] * (1 - NOISE)
    ]


def _curve(
    device: Any, dtype: DType, mode: Activations, layer: dict[str, tuple[int, int]]
) -> dict[int, dict[str, Any]]:
    """Return tokens per second and kernels by rows, on one set of weights."""
    device.profile = replace(device.profile, activations=mode)
    stream, rng = device.create_stream(), np.random.default_rng(0)
    sizes = {f"{name}{i}": n * dtype.row_nbytes(k)
             for i in range(COPIES) for name, (n, k) in layer.items()}  # fmt: skip
    weights = {name: device.allocate(nbytes) for name, nbytes in sizes.items()}
    raw = rng.integers(0, 64, max(sizes.values()), dtype=np.uint8)  # no infinities among scales
    for name, nbytes in sizes.items():
        stream.upload(raw[:nbytes].data, weights[name], 0)
    stream.sync(60.0)
    points = {m: _point(device, stream, _graph(layer, dtype, m), weights) for m in ROWS}
    for thing in (*weights.values(), stream):
        thing.close()
    return points


def _graph(layer: dict[str, tuple[int, int]], dtype: DType, m: int) -> Graph:
    g = GraphBuilder("layer")
    made = [
        # Each has rows of its own: products of the same ones would be joined where rows are few.
        g.mul_mat(g.weight(f"{name}{i}", (n, k), dtype), g.input(f"x {name}{i}", (m, k)))
        for i in range(COPIES)
        for name, (n, k) in layer.items()
    ]
    return g.build(*made)


def _point(device: Any, stream: Any, graph: Graph, weights: dict[str, Any]) -> dict[str, Any]:
    buffers = {
        t.id: weights[t.name] if t.name in weights else device.allocate(t.nbytes)
        for t in graph.tensors
    }
    for t in graph.tensors:
        if t.name not in weights:
            stream.fill(buffers[t.id], 0, t.nbytes, b"\0")
    nodes = bound_nodes(graph, buffers, constant_weights=True)
    program = device.compile(nodes, stream)
    stream.sync(60.0)
    timer = Timer(device, stream)
    seconds = timer.replayed(lambda: [call(*given) for call, given in program.steps], min)
    calls, _ = lower(nodes, device.profile)
    kernels = sorted({"cublas" if isinstance(c, ProductCall) else c.kernel for c in calls})
    program.close()
    for t in graph.tensors:
        if t.name not in weights:
            buffers[t.id].close()
    rows = graph.tensors[graph.nodes[0].output].shape[0]
    return {
        "tokens_per_s": rows * COPIES / (LAYERS * seconds),
        "us": 1e6 * seconds / COPIES,
        "kernels": kernels,
    }
