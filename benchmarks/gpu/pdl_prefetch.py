"""Attention that reads while the product before it runs, and what happens if it must not.

A product is followed by a layer from its rotations to the end of attention. What the product makes
is the new row of V, which is read when the product has ended, or the mask, or the cache of K, which
attention would read before. All is compared with the oracle, with kernels that begin in their turn,
early, and early with predecessors that end late. Last, the comparison of places is taken out: then
results have to be wrong, or this part could not fail.
"""

import sys
from typing import Any

import numpy as np

from benchmarks.gpu.attention import filled, grouped
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import F32, I32
from ggsched.ir.graph import Graph
from ggsched.ir.tensor import Role
from ggsched_cuda import open_backend
from ggsched_cuda_kernels import pdl_prefetch
from ggsched_testing.eager import bound_nodes
from ggsched_testing.oracle.interpreter import run_oracle
from tests.support.rope_attention_graphs import BEHIND, FIRST

MADE = ("new_v", "mask", "keys")
MODES = ("off", "on", "late")
GROUPS, SHARE, N, WIDTH, DEPTH = 2, 4, 1024, 64, 1024
ACROSS, POSITION, RUNS = GROUPS * WIDTH, 160, 3
ORDERS = ((2, 3),)  # K on its way to the cache; node 0 is the product
TOLERANCE, TIMEOUT_S = 1e-4, 60.0


def run(*, quick: bool) -> dict[str, Any]:
    """Compare each way, and see that it is noticed when places are not compared."""
    del quick
    device: Any = open_backend().open_device(0)
    found: dict[str, Any] = {"errors": {}, "reads_early": {}}
    for made in MADE:
        errors = {mode: _worst(device, made, mode) for mode in MODES}
        found["errors"][made] = {mode: error for mode, (error, _) in errors.items()}
        found["reads_early"][made] = any(is_early for _, is_early in errors.values())
    compared = pdl_prefetch._share_lines
    pdl_prefetch._share_lines = lambda a, b: False
    try:
        found["without the comparison"] = {
            made: _worst(device, made, "late")[0] for made in MADE if made != "new_v"
        }
    finally:
        pdl_prefetch._share_lines = compared
    device.close()
    is_right = all(e <= TOLERANCE for some in found["errors"].values() for e in some.values())
    is_used = found["reads_early"] == {made: made == "new_v" for made in MADE}
    is_noticed = all(not e <= TOLERANCE for e in found["without the comparison"].values())
    sys.stdout.write(f"   {found}\n")
    sys.stdout.flush()
    return {"ok": is_right and is_used and is_noticed, **found}


def product_and_layer(made: str) -> Graph:
    """Return the graph; the product makes one of the layer's operands."""
    g, rows = GraphBuilder("pdl prefetch"), FIRST + N + BEHIND
    extent = {"new_v": ACROSS, "mask": N, "keys": rows * ACROSS}[made]
    product = g.mul_mat(g.weight("w", (extent, DEPTH)), g.input("x", (1, DEPTH)))
    positions, ids = g.input("positions", (1,), I32), g.input("ids", (1,), I32)
    q = g.rope(g.input("q", (1, GROUPS * SHARE, WIDTH)), positions, n_dims=WIDTH)
    k = g.rope(g.input("k", (1, GROUPS, WIDTH)), positions, n_dims=WIDTH)
    new_v = product if made == "new_v" else g.input("v", (1, ACROSS))
    mask = product if made == "mask" else g.input("mask", (1, N))
    is_cache = made == "keys"
    keys = g.reshape(product, rows, ACROSS) if is_cache else g.input("keys", (rows, ACROSS))
    stored = [
        g.set_rows(keys, g.reshape(k, 1, ACROSS), ids),
        g.set_rows(g.input("values", (rows, ACROSS)), new_v, ids),
    ]
    seen = [g.reshape(g.rows(o, FIRST, FIRST + N), N, GROUPS, WIDTH) for o in stored]
    return g.build(g.attention(q, *seen, mask=mask, scale=WIDTH**-0.5))


def values_of(graph: Graph) -> dict[str, Any]:
    """Return values for weights and inputs."""
    rng = np.random.default_rng(1)
    roots = [*graph.roots(Role.INPUT), *graph.roots(Role.WEIGHT)]
    values = {t.name: rng.standard_normal(t.shape).astype(np.float32) for t in roots}
    values["w"] *= DEPTH**-0.5
    values["positions"] = np.array([1000 + POSITION], np.int32)
    values["ids"] = np.array([FIRST + POSITION], np.int32)
    return values


def bound(graph: Graph, buffers: Any) -> list[Any]:
    """Return the nodes in their groups."""
    return grouped(bound_nodes(graph, buffers, constant_weights=True), ORDERS)


def _worst(device: Any, made: str, mode: str) -> tuple[float, bool]:
    """Return the largest error of some runs, infinite for no number, and whether it read early."""
    graph = product_and_layer(made)
    values = values_of(graph)
    (tid,) = graph.outputs
    wanted = run_oracle(graph, values)[tid]
    worst, is_early = 0.0, False
    for _ in range(RUNS):
        got, early = _once(device, graph, values, mode)
        error = float(np.max(np.abs(got.view(np.float32).reshape(wanted.shape) - wanted)))
        worst = max(worst, error if error == error else float("inf"))
        is_early |= early
    return worst, is_early


def _once(device: Any, graph: Graph, values: Any, mode: str) -> tuple[Any, bool]:
    stream = device.create_stream()
    buffers = filled(stream, graph, values)
    device.early = mode
    nodes = bound(graph, buffers)
    calls, _ = _lowered(nodes, device)
    program = device.compile(nodes, stream)
    stream.launch(program)
    result = graph.tensors[graph.outputs[0]]
    assert result.dtype is F32
    got = np.empty(result.nbytes, np.uint8)
    stream.download(buffers[result.storage], result.offset, got.data)
    stream.sync(TIMEOUT_S)
    program.close()
    for buffer in buffers.values():
        buffer.close()
    stream.close()
    return got, pdl_prefetch.DEFINE in calls[-1].defines


def _lowered(nodes: list[Any], device: Any) -> Any:
    from ggsched_cuda_kernels.kernel_selection import lower

    return lower(nodes, device.profile)
