"""Groups of nodes that run as one, against the same nodes one by one, in turn in one process.

Whole steps of models through plans with and without groups, and single groups of each pattern that
a device declares, without planner and executor. A value above 1 means that running as one is
faster. What is compared is processor time, of all threads: neighbours on the machine take turns at
the processors, which makes wall time worthless on a busy one.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from time import perf_counter, process_time
from typing import Final

import numpy as np

from benchmarks.bench_decode import N_KV, N_PAST, dense_110m, random_model
from benchmarks.measure import best, interleaved
from benchmarks.table import Row
from ggsched.backend.program import Group
from ggsched.backend.protocols import Device, Program
from ggsched.backend.registry import open_devices
from ggsched.config import Settings
from ggsched.errors import BackendUnavailable
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import F32, I32
from ggsched.ir.graph import Graph
from ggsched.ir.tensor import Role, Tensor
from ggsched.scheduler import Scheduler
from ggsched_llm.batches import batch_inputs
from ggsched_llm.graph import build_model_graph
from ggsched_llm.hparams import HParams
from ggsched_testing.eager import bound_nodes
from ggsched_testing.generators.values import LeafRule, leaf_values

ROUNDS: Final = (20, 1000)  # at least and at most
BUDGET_S: Final = 4.0  # for both sides of a ratio
REPEATS: Final = 10
TIMEOUT_S: Final = 60.0
WIDTH, HIDDEN, HEADS, ROWS = 1024, 2816, 16, 256

Make = Callable[[GraphBuilder, int], tuple[Tensor, tuple[int, ...]]]


def run() -> list[Row]:
    """Measure on ``cpu`` and, where there is one, on the first OpenCL device."""
    rows = []
    for name in ("cpu:0", "opencl:0"):
        try:
            rows += [*_steps(name), *_groups(name)]
        except BackendUnavailable as error:
            print(f"  {name} is not measured: {error}")
    return rows


# --- steps ------------------------------------------------------------------------------------


def _small() -> HParams:
    """Return a model whose steps are mostly overhead, as those of tests and demos are."""
    return replace(dense_110m(), name="dense-3M", n_embd=192, n_head=6, n_head_kv=6, head_dim=32,
                   n_ff=512, n_vocab=1024, attn_scale=32**-0.5,
                   rope=replace(dense_110m().rope, n_dims=32))  # fmt: skip


def _experts() -> HParams:
    return replace(_small(), arch="qwen3moe", name="moe", n_ff=96, n_expert=16, n_expert_used=4)


def _steps(device: str) -> list[Row]:
    rows = []
    for hp, tokens in ((dense_110m(), 1), (_small(), 1), (_experts(), 1), (_small(), 64)):
        spec, arrays = random_model(hp)
        shape = {"n_tokens": tokens, "n_kv": N_KV, "n_out": 1, "n_ctx": N_KV}
        graph = build_model_graph(spec, **shape)
        past = 0 if tokens > 1 else N_PAST
        kept = batch_inputs(graph, np.ones(tokens, np.int32), past, 1, 0)
        settings = Settings(sanitize="off", verify=False, streams=1)
        with (
            Scheduler([device], weights=arrays, settings=settings) as fused,
            Scheduler([device], weights=arrays, settings=replace(settings, fuse=False)) as plain,
        ):
            groups = len(fused.plan(graph).fusions)
            took = _in_turn(partial(fused.run, graph, kept), partial(plain.run, graph, kept))
        label = f"{device}, {hp.name}, {tokens} tokens, {groups} groups of {len(graph.nodes)} nodes"
        rows.append(_row(label, took))
    return rows


def _in_turn(fused: Callable[[], object], plain: Callable[[], object]) -> dict[str, list[float]]:
    """Time both sides in turn, as often as the budget allows."""

    def first() -> None:
        fused()

    def second() -> None:
        plain()

    first()
    began = perf_counter()
    second()
    each = perf_counter() - began
    rounds = max(ROUNDS[0], min(ROUNDS[1], int(BUDGET_S / 4 / each)))
    # Whoever comes second finds the weights in the cache, so each side does as often.
    took = interleaved({"fused": first, "plain": second}, rounds, process_time)
    turned = interleaved({"plain": second, "fused": first}, rounds, process_time)
    return {name: took[name] + turned[name] for name in took}


def _row(what: str, took: Mapping[str, list[float]]) -> Row:
    """Return the ratio of the best rounds, and the middle half of the ratios round by round."""
    plain, fused = took["plain"], took["fused"]
    pairs = sorted(a / b for a, b in zip(plain, fused, strict=True))
    low, high = pairs[len(pairs) // 4], pairs[3 * len(pairs) // 4]
    return Row("fusion", what, best(plain) / best(fused), low, high)


# --- single groups ----------------------------------------------------------------------------


def _norm_mul(g: GraphBuilder, tokens: int) -> tuple[Tensor, tuple[int, ...]]:
    return g.mul(g.rms_norm(g.input("x", (tokens, WIDTH)), 1e-5), g.weight("w", (WIDTH,))), (0, 1)


def _product_add(g: GraphBuilder, tokens: int) -> tuple[Tensor, tuple[int, ...]]:
    made = g.mul_mat(g.weight("w", (WIDTH, WIDTH)), g.input("x", (tokens, WIDTH)))
    return g.add(made, g.input("z", (tokens, WIDTH))), (0, 1)


def _gated(g: GraphBuilder, tokens: int) -> tuple[Tensor, tuple[int, ...]]:
    x = g.input("x", (tokens, WIDTH))
    gate, up = (g.mul_mat(g.weight(n, (HIDDEN, WIDTH)), x) for n in ("gate", "up"))
    return g.swiglu(gate, up), (0, 1, 2)


def _experts_add(g: GraphBuilder, tokens: int) -> tuple[Tensor, tuple[int, ...]]:
    ids = g.input("ids", (tokens, 4), I32)
    x = g.input("x", (tokens, 1, WIDTH))
    made = g.mul_mat_id(g.weight("w", (16, 256, WIDTH)), x, ids)
    return g.add_id(made, g.weight("b", (16, 256)), ids), (0, 1)


def _gated_experts(g: GraphBuilder, tokens: int) -> tuple[Tensor, tuple[int, ...]]:
    ids = g.input("ids", (tokens, 4), I32)
    x = g.input("x", (tokens, 1, WIDTH))
    gate, up = (g.mul_mat_id(g.weight(n, (16, 256, WIDTH)), x, ids) for n in ("gate", "up"))
    return g.swiglu(gate, up), (0, 1, 2)


def _rope_rows(g: GraphBuilder, tokens: int) -> tuple[Tensor, tuple[int, ...]]:
    x = g.input("x", (tokens, HEADS, WIDTH // HEADS))
    turned = g.rope(x, g.input("positions", (tokens,), I32), n_dims=WIDTH // HEADS)
    flat = g.reshape(turned, tokens, WIDTH)
    return g.set_rows(g.state("cache", (ROWS, WIDTH)), flat, g.input("rows", (tokens,), I32)), (
        0,
        1,
    )


GROUPS: Final[Mapping[str, Make]] = {
    "rms_norm+mul": _norm_mul,
    "mul_mat+add": _product_add,
    "mul_mat*2+swiglu": _gated,
    "mul_mat_id+add_id": _experts_add,
    "mul_mat_id*2+swiglu": _gated_experts,
    "rope+set_rows": _rope_rows,
}


def _groups(name: str) -> list[Row]:
    (device,) = open_devices([name])
    try:
        wanted = [(p, n) for p in sorted(device.facts.fusions & GROUPS.keys()) for n in (1, 256)]
        return [_row(f"{name}, {p}, {n} rows", _group(device, p, n)) for p, n in wanted]
    finally:
        device.close()


def _group(device: Device, pattern: str, tokens: int) -> dict[str, list[float]]:
    g = GraphBuilder(pattern)
    result, order = GROUPS[pattern](g, tokens)
    graph = g.build(result)
    stream = device.create_stream()
    buffers = {t.id: device.allocate(t.nbytes) for t in graph.tensors if not t.is_view}
    rng = np.random.default_rng(0)
    for t in graph.tensors:
        if not t.is_view and t.role is not Role.TEMP:
            raw = leaf_values(t, _rule(graph, t), rng)
            stream.upload(raw.reshape(-1).view(np.uint8).data, buffers[t.id], 0)
    plain = bound_nodes(graph, buffers)
    group = Group(pattern, order)
    programs = {
        "fused": device.compile([replace(n, group=group) for n in plain], stream),
        "plain": device.compile(plain, stream),
    }

    def launch(program: Program) -> None:
        for _ in range(REPEATS):
            stream.launch(program)
        stream.sync(TIMEOUT_S)

    took = _in_turn(*(partial(launch, p) for p in programs.values()))
    for thing in (*programs.values(), stream, *buffers.values()):
        thing.close()
    return took


def _rule(graph: Graph, t: Tensor) -> LeafRule:
    """Return rules for ids: of experts below 16, of rows and positions all different."""
    if t.dtype is F32:
        return LeafRule()
    return LeafRule("ids", bound=16 if t.name == "ids" else ROWS, distinct=t.name == "rows")
