"""Attention as one kernel, heads as one, and both as one, against the oracle, and their times.

Everything runs with PDL and without. What is compared is also run twice: the bytes have to
be the same.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, product
from typing import Any

import numpy as np

from benchmarks.gpu.timing import Timer
from ggsched.backend.program import BoundNode, Group
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import F16, F32, I32, DType
from ggsched.ir.graph import Graph
from ggsched.ir.tensor import Role, Tensor
from ggsched_cuda import open_backend
from ggsched_testing.eager import bound_nodes
from ggsched_testing.oracle.interpreter import run_oracle
from tests.support.rope_attention_graphs import Turned, groups_of_layers, turned, turned_values

TOLERANCE = 1e-4
TOKENS, SHARES, WIDTHS = (1, 2, 5, 8), (1, 4, 8), (64, 128, 80)
POSITIONS = (1, 7, 32, 100, 256, 1000, 4096)
MASKS = ("prefix", "window", "none", "hidden", "mask")
SPREAD_NBYTES = 100 << 20  # of caches, several times what the L2 cache keeps
TIMEOUT_S = 60.0

Arrays = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of attention; ``share`` query heads for each of ``groups`` key heads."""

    tokens: int
    groups: int
    share: int
    n: int
    width: int
    dtype: DType = F16
    mask: str = "prefix"
    sinks: bool = False


DECODE = {
    "llama 8B": Shape(1, 8, 4, 256, 128),
    "llama 8B, 4096 positions": Shape(1, 8, 4, 4096, 128),
    "llama 1B": Shape(1, 8, 4, 256, 64),
    "gpt-oss": Shape(1, 8, 8, 256, 64, sinks=True),
    "gpt-oss, window of 4096 positions": Shape(1, 8, 8, 4096, 64, mask="window", sinks=True),
    "llama 8B, 8 tokens": Shape(8, 8, 4, 256, 128),
}

TURNED = {
    "llama 8B": Turned((160,), 8, 4, 256, 128),
    "llama 8B, last of 4096 positions": Turned((4095,), 8, 4, 4096, 128),
    "llama 8B, 4 tokens": Turned((160, 161, 162, 163), 8, 4, 256, 128),
    "llama 1B": Turned((160,), 8, 4, 256, 64),
    "gpt-oss": Turned((160,), 8, 8, 256, 64, pairing="halves", sinks=True),
}
MORE_TURNED = (
    Turned((0,), 8, 4, 256, 64, factors=True),
    Turned((255, 0), 8, 4, 256, 64, F32, "halves"),
    Turned((260, 7, -3, 255), 8, 4, 256, 128, sinks=True),
    Turned((256,), 2, 12, 256, 80),
    Turned((40, 39), 3, 3, 41, 80, F32, factors=True),
    Turned((999,), 1, 1, 1000, 256, pairing="halves"),
    Turned((0,), 1, 2, 1, 8),
)


def run(*, quick: bool) -> dict[str, Any]:
    """Compare a grid of shapes, measure those of decoding; ok if none differs."""
    device: Any = open_backend().open_device(0)
    bench = _Bench(device)
    worst, wrong = {"attention": 0.0, "heads": 0.0, "heads_attention": 0.0}, []
    for name, kind, graph, values, orders in _cases(quick):
        for early in ("on", "off"):
            error, problem = bench.compare(graph, values, orders, early, kind)
            worst[kind] = max(worst[kind], error)
            if problem:
                wrong.append(f"{name}, early {early}: {problem}")
                sys.stdout.write(f"   WRONG {wrong[-1]}\n")
                sys.stdout.flush()
    times = {name: bench.microseconds(shape) for name, shape in DECODE.items()}
    for name, layer in TURNED.items():
        times[f"{name}, with heads"] = bench.microseconds_of_layer(layer)
    sys.stdout.write(f"   largest errors {worst}, {len(wrong)} wrong\n")
    for name, found in times.items():
        sys.stdout.write(f"   {name}: {found}\n")
    device.close()
    return {"ok": not wrong, "worst": worst, "wrong": wrong, "us": times}


# --- what is compared -------------------------------------------------------------------------


Orders = Sequence[tuple[int, ...]]


def _cases(quick: bool) -> Iterator[tuple[str, str, Graph, Arrays, Orders]]:
    """Yield a name, a kind, a graph, its values, and the nodes of its groups."""
    for i, shape in enumerate(_shapes(quick)):
        graph = attention(shape)
        yield str(shape), "attention", graph, _values(graph, shape, i), [(0, 1, 2)]
    for tokens, dtype in product((1, 3, 8), (F16, F32)):
        graph = _heads(tokens, dtype)
        yield f"heads of {tokens} tokens, {dtype}", "heads", graph, _head_values(graph), [(1, 2)]
    for layer in (*TURNED.values(), *MORE_TURNED):
        graph = turned(layer)
        values = turned_values(graph, layer)
        yield str(layer), "heads_attention", graph, values, groups_of_layers()


def _shapes(quick: bool) -> Iterator[Shape]:
    """Yield shapes, with masks and sinks in turn; where all is hidden there are sinks."""
    turn = count()
    for i, (n, width, share, tokens) in enumerate(product(POSITIONS, WIDTHS, SHARES, TOKENS)):
        if quick and i % 5:
            continue
        k = next(turn)
        mask = MASKS[k % len(MASKS)]
        sinks = mask == "hidden" or k // len(MASKS) % 2 == 1
        yield Shape(tokens, 2, share, n, width, F16, mask, sinks)
        if i % 4 == 1:
            yield Shape(tokens, 3, share, n, width, F32, mask, sinks)
    yield from DECODE.values()


def attention(shape: Shape, layers: int = 1) -> Graph:
    """Return the graph of attention, of several layers with caches of their own."""
    s, g = shape, GraphBuilder("attention")
    heads = s.groups * s.share
    q = g.input("q", (s.tokens, heads, s.width))
    mask = g.input("mask", (s.tokens, s.n)) if s.mask in ("mask", "hidden") else None
    bounds = None
    if s.mask in ("prefix", "window"):
        bounds = g.input("bounds", (s.tokens, 2), I32)
    sinks = g.input("sinks", (heads,)) if s.sinks else None
    results = []
    for i in range(layers):
        keys, values = (
            g.reshape(
                g.rows(g.input(f"{name}{i}", (s.n + 1, s.groups * s.width), s.dtype), 1, s.n + 1),
                s.n, s.groups, s.width,
            )
            for name in ("keys", "values")
        )  # fmt: skip
        results.append(
            g.attention(q, keys, values, mask=mask, bounds=bounds, sinks=sinks, scale=s.width**-0.5)
        )
    return g.build(*results)


def _values(graph: Graph, shape: Shape, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    values = {t.name: _drawn(t, rng) for t in graph.roots(Role.INPUT)}
    if "mask" in graph:
        values["mask"] = _mask(shape)
    if "bounds" in graph:
        values["bounds"] = _bounds(shape)
    return values


def _drawn(t: Tensor, rng: np.random.Generator) -> Any:
    plain = (2 * rng.standard_normal(t.shape)).astype(np.float32)
    return plain.astype(np.float16) if t.dtype is F16 else plain


def _mask(shape: Shape) -> Any:
    """Hide what comes after a token, or everything."""
    seen = np.arange(shape.n) < _bounds(shape)[:, 1:]
    if shape.mask == "hidden":
        seen[:] = False
    return np.where(seen, 0.0, -np.inf).astype(np.float32)


def _bounds(shape: Shape) -> Any:
    """Show what comes up to a token, or lies a little before it."""
    end = np.minimum(shape.n, 5 * shape.n // 8 + np.arange(shape.tokens, dtype=np.int32) + 1)
    first = np.maximum(0, end - 128) if shape.mask == "window" else 0 * end
    return np.stack([first, end], axis=-1).astype(np.int32)


def _heads(tokens: int, dtype: DType) -> Graph:
    """Return what stands between the products of a layer and its attention."""
    g = GraphBuilder("heads")
    positions, rows = g.input("positions", (tokens,), I32), g.input("rows", (tokens,), I32)
    turned = g.rope(g.input("q", (tokens, 32, 128)), positions, n_dims=128)
    k = g.rope(g.input("k", (tokens, 8, 128)), positions, n_dims=128)
    keys, values = (g.input(name, (64, 1024), dtype) for name in ("keys", "values"))
    stored = g.set_rows(keys, g.reshape(k, tokens, 1024), rows)
    return g.build(turned, stored, g.set_rows(values, g.input("v", (tokens, 1024)), rows))


def _head_values(graph: Graph) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    values = {t.name: _drawn(t, rng) for t in graph.roots(Role.INPUT)}
    tokens = values["v"].shape[0]
    values["positions"] = np.arange(1000, 1000 + tokens, dtype=np.int32)
    values["rows"] = rng.permutation(64)[:tokens].astype(np.int32)
    return values


# --- running ----------------------------------------------------------------------------------


class _Bench:
    def __init__(self, device: Any) -> None:
        self.device = device
        self.stream = device.create_stream()
        self.timer = Timer(device, self.stream)

    def compare(
        self, graph: Graph, values: Arrays, orders: Orders, early: str, kind: str
    ) -> tuple[float, str]:
        """Return the largest error, and what is wrong, if anything."""
        first, second = (self._once(graph, values, orders, early, kind) for _ in range(2))
        expected = run_oracle(graph, values)
        worst, problem = 0.0, ""
        for tid, wanted in expected.items():
            # A number that lies between two of f16 may become either.
            with_rounding = kind == "heads_attention" and any(t.dtype is F16 for t in graph.tensors)
            limit = 2e-3 if wanted.dtype == np.float16 or with_rounding else TOLERANCE
            got = first[tid].view(wanted.dtype).reshape(wanted.shape).astype(float)
            error = float(np.max(np.abs(got - wanted) / (1 + np.abs(wanted.astype(float)))))
            if not error <= limit:
                problem = f"{graph.tensors[tid].name or tid} is wrong by {error:.3g}"
            if not np.array_equal(first[tid], second[tid]):
                problem = f"{problem} two runs differ".strip()
            worst = max(worst, error * TOLERANCE / limit)
        return worst, problem

    def _once(
        self, graph: Graph, values: Arrays, orders: Orders, early: str, kind: str
    ) -> dict[int, Any]:
        """Run a graph from the start; return the bytes of its results."""
        buffers = filled(self.stream, graph, values)
        program = self._compiled(graph, buffers, orders, early)
        if len(program.steps) != 1:
            raise AssertionError(f"{kind}: {len(program.steps)} calls instead of one")
        self.stream.launch(program)
        found = {}
        for tid in graph.outputs:
            t = graph.tensors[tid]
            found[tid] = np.empty(t.nbytes, np.uint8)
            self.stream.download(buffers[t.storage], t.offset, found[tid].data)
        self.stream.sync(TIMEOUT_S)
        program.close()
        self._close(buffers)
        return found

    def microseconds(self, shape: Shape) -> dict[str, float]:
        """Return the median time of one attention of many in a captured graph."""
        each = 2 * shape.n * shape.groups * shape.width * shape.dtype.block_nbytes
        layers = min(256, max(8, -(-SPREAD_NBYTES // each)))
        one = attention(replace(shape, tokens=1), 1)
        kept = _values(one, shape, 0)
        graph = attention(shape, layers)
        values = {
            t.name: kept.get(t.name, kept.get(f"{t.name.rstrip('0123456789')}0"))
            for t in graph.roots(Role.INPUT)
        }
        values["q"] = np.repeat(kept["q"], shape.tokens, 0)
        buffers = filled(self.stream, graph, values)
        found = {
            f"early {early}": self._each(graph, buffers, [], early, layers)
            for early in ("on", "off")
        }
        self._close(buffers)
        return found

    def microseconds_of_layer(self, layer: Turned) -> dict[str, float]:
        """Return the median time of a layer by one kernel and by two."""
        each = 2 * layer.n * layer.groups * layer.width * layer.dtype.block_nbytes
        layers = min(256, max(8, -(-SPREAD_NBYTES // each)))
        found = {}
        for name, apart in (("one kernel", False), ("two kernels", True)):
            s = replace(layer, apart=apart)
            graph = turned(s, layers)
            buffers = filled(self.stream, graph, turned_values(graph, s))
            for early in ("on", "off"):
                orders = groups_of_layers(layers)
                found[f"{name}, early {early}"] = self._each(graph, buffers, orders, early, layers)
            self._close(buffers)
        return found

    def _each(
        self, graph: Graph, buffers: Mapping[int, Any], orders: Orders, early: str, layers: int
    ) -> float:
        """Return microseconds of one of several layers."""
        program = self._compiled(graph, buffers, orders, early)
        took = self.timer.replayed(lambda: [call(*given) for call, given in program.steps]) / layers
        program.close()
        return round(1e6 * took, 2)

    def _compiled(
        self, graph: Graph, buffers: Mapping[int, Any], orders: Orders, early: str
    ) -> Any:
        self.device.early = early
        return self.device.compile(grouped(bound_nodes(graph, buffers), orders), self.stream)

    def _close(self, buffers: Mapping[int, Any]) -> None:
        for buffer in buffers.values():
            buffer.close()


def filled(stream: Any, graph: Graph, values: Arrays) -> dict[int, Any]:
    """Return buffers of the tensors of a graph, by id; NaN where no value is given."""
    buffers = {t.id: stream.device.allocate(t.nbytes) for t in graph.tensors if not t.is_view}
    for tid, buffer in buffers.items():
        t = graph.tensors[tid]
        raw = np.full(t.nbytes, 0xFF, np.uint8)
        if t.role is not Role.TEMP:
            raw = np.ascontiguousarray(values[t.name]).reshape(-1).view(np.uint8)
        stream.upload(raw.data, buffer, 0)
    stream.sync(TIMEOUT_S)
    return buffers


def grouped(nodes: list[BoundNode], orders: Orders) -> list[BoundNode]:
    """Return nodes, those of each order as a group."""
    for order in orders:
        group = Group("+".join(nodes[k].op for k in order), order)
        for k in order:
            nodes[k] = replace(nodes[k], group=group)
    return nodes
