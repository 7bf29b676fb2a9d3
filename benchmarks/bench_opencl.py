"""OpenCL kernels against numpy in one run, as ratios; the times alone depend on the machine.

    python benchmarks/bench_opencl.py            # everything
    python benchmarks/bench_opencl.py gemv       # one of gemv gemm decode launch

Each figure is the best of several rounds in which numpy and the device take turns. numpy uses as
many threads as its BLAS is told to (``OPENBLAS_NUM_THREADS=1`` for one).
"""

import sys
from collections.abc import Callable, Sequence
from time import perf_counter

import numpy as np

from ggsched.backend.protocols import Device, Stream
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import BF16, F16, F32, MXFP4, Q4_0, Q8_0, DType
from ggsched.ir.graph import Graph
from ggsched.ir.tensor import Role
from ggsched.testing.direct import bound_nodes
from ggsched.testing.values import LeafRule, leaf_values
from ggsched_opencl import open_backend

ROUNDS = 7
SECONDS = 1.5  # at least as long and as many rounds are tried
COLD_NBYTES = 96 << 20  # of weights in turn, so that they do not come from a cache
TIMEOUT_S = 60.0

# 110 million weights: 8 layers, d 1024, ffn 2816, vocabulary 4096; (rows, columns) for each layer.
LAYER = ((1024, 1024), (512, 1024), (512, 1024), (1024, 1024)) + (
    ((2816, 1024),) * 2 + ((1024, 2816),)
)
LAYERS = 8
VOCABULARY = (4096, 1024)


class Session:
    """A graph that is ready to be launched again and again on one stream."""

    def __init__(self, device: Device, graph: Graph) -> None:
        self.stream: Stream = device.create_stream()
        self.buffers = {t.id: device.allocate(t.nbytes) for t in graph.tensors if not t.is_view}
        rng = np.random.default_rng(0)
        for t in graph.tensors:
            if not t.is_view and t.role is not Role.TEMP:
                raw = leaf_values(t, LeafRule(), rng)
                self.stream.upload(raw.reshape(-1).view(np.uint8).data, self.buffers[t.id], 0)
        self.program = device.compile(bound_nodes(graph, self.buffers), self.stream)
        self.run()

    def run(self) -> None:
        self.stream.launch(self.program)
        self.stream.sync(TIMEOUT_S)

    def close(self) -> None:
        self.program.close()
        self.stream.close()
        for buffer in self.buffers.values():
            buffer.close()


def products(shapes: Sequence[tuple[int, int]], rows: int, dtype: DType) -> Graph:
    """Return a graph of one product for each weight."""
    g = GraphBuilder("products")
    xs = {k: g.input(f"x{k}", (rows, k)) for k in dict.fromkeys(k for _, k in shapes)}
    ys = [g.mul_mat(g.weight(f"w{i}", (n, k), dtype), xs[k]) for i, (n, k) in enumerate(shapes)]
    return g.build(*ys)


def best_of(*actions: Callable[[], object]) -> list[float]:
    """Return the shortest time of each action, all of them taking turns."""
    best = [float("inf")] * len(actions)
    first, rounds = perf_counter(), 0
    while rounds < ROUNDS or perf_counter() - first < SECONDS:
        rounds += 1
        for i, action in enumerate(actions):
            start = perf_counter()
            action()
            best[i] = min(best[i], perf_counter() - start)
    return best


def numpy_products(shapes: Sequence[tuple[int, int]], rows: int) -> Callable[[], None]:
    """Return the same products in numpy, f32."""
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]
    xs = {k: rng.standard_normal((rows, k), dtype=np.float32) for _, k in shapes}
    outs = [np.empty((rows, n), np.float32) for n, _ in shapes]

    def run() -> None:
        for w, out in zip(weights, outs, strict=True):
            np.matmul(xs[w.shape[1]], w.T, out)

    return run


def compare(
    device: Device, title: str, shapes: Sequence[tuple[int, int]], rows: int, dtype: DType
) -> None:
    """Print one line: the device's time, numpy's, and their ratio."""
    graph = products(shapes, rows, dtype)
    session = Session(device, graph)
    ours, theirs = best_of(session.run, numpy_products(shapes, rows))
    session.close()
    nbytes = sum(t.nbytes for t in graph.roots(Role.WEIGHT))
    flops = 2.0 * rows * sum(n * k for n, k in shapes)
    print(
        f"{title:28s} {dtype.name:6s} {ours * 1e3:8.2f} ms  {nbytes / ours / 1e9:6.1f} GB/s "
        f"{flops / ours / 1e9:7.1f} GF/s   numpy f32 {theirs * 1e3:8.2f} ms   "
        f"speed / numpy {theirs / ours:5.2f}"
    )


def gemv(device: Device) -> None:
    """One row against a weight, cold."""
    for dtype in (F32, F16, BF16, Q8_0, Q4_0, MXFP4):
        for n, k in ((4096, 4096), (1024, 1024)):
            count = max(1, COLD_NBYTES // (4 * n * k))
            compare(device, f"gemv {n} x {k} x{count}", [(n, k)] * count, 1, dtype)


def gemm(device: Device) -> None:
    """Many rows against a weight."""
    for dtype in (F32, F16, Q8_0, Q4_0):
        compare(device, "gemm 1024 x 1024, 128 rows", [(1024, 1024)], 128, dtype)
    for rows in (2, 4, 5, 8, 16, 512):
        compare(device, f"gemm 1024 x 1024, {rows} rows", [(1024, 1024)] * 8, rows, F32)
    compare(device, "gemm 1024 x 2816, 128 rows", [(1024, 2816)], 128, F32)


def decode(device: Device) -> None:
    """All weights of a llama of 110 million once: one token, and 128."""
    shapes = [*LAYER * LAYERS, VOCABULARY]
    for dtype in (F32, F16, Q8_0):
        compare(device, "llama 110M, one token", shapes, 1, dtype)
    compare(device, "llama 110M, 128 tokens", shapes, 128, F32)


def launch(device: Device) -> None:
    """Cost of a tiny kernel: for the host alone, and until all have run."""
    count = 500
    g = GraphBuilder("tiny")
    y = g.input("x", (16,))
    for _ in range(count):
        y = g.scale(y, 1.0)
    session = Session(device, g.build(y))
    times: list[tuple[float, float]] = []
    for _ in range(ROUNDS):
        start = perf_counter()
        session.stream.launch(session.program)
        enqueued = perf_counter() - start
        session.stream.sync(TIMEOUT_S)
        times.append((enqueued, perf_counter() - start))
    session.close()
    one = GraphBuilder("one")
    single = Session(device, one.build(one.scale(one.input("x", (16,)), 1.0)))
    (trip,) = best_of(single.run)
    single.close()
    enqueued, whole = (min(t[i] for t in times) / count * 1e6 for i in range(2))
    print(f"launch: {enqueued:.2f} us per kernel for the host, {whole:.2f} us until all have run")
    print(f"launch and sync of one kernel: {trip * 1e6:.0f} us")


CASES = {"gemv": gemv, "gemm": gemm, "decode": decode, "launch": launch}


def main(names: Sequence[str]) -> None:
    """Run the named cases, all by default."""
    device = open_backend().open_device(0)
    print(device.facts.description)
    for name in names or CASES:
        CASES[name](device)
    device.close()


if __name__ == "__main__":
    main(sys.argv[1:])
