"""OpenCL kernels by themselves, without planner and executor, against numpy.

All weights of a llama of 110 million parameters against the vectors of one token and of small
batches, single products of each type of weight, and what a launch costs. numpy multiplies f32 on
one thread, whatever type the device reads; the device uses as many as it likes.
"""

from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.measure import interleaved, ratio, spread
from benchmarks.table import Row
from ggsched.backend.protocols import Backend, Device
from ggsched.errors import BackendUnavailable
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import BF16, F16, F32, MXFP4, Q4_0, Q4_K, Q6_K, Q8_0, DType
from ggsched.ir.graph import Graph
from ggsched.ir.tensor import Role
from ggsched_testing.eager import bound_nodes
from ggsched_testing.generators.values import LeafRule, leaf_values

ROUNDS = 15
TIMEOUT_S = 60.0
KERNELS = 500
WIDTH, KEYS, HIDDEN, LAYERS, VOCABULARY = 1024, 512, 2816, 8, 4096

Call = Callable[[], None]
Shapes = Sequence[tuple[int, int]]

LAYER = [(WIDTH, WIDTH)] * 2 + [(KEYS, WIDTH)] * 2 + [(HIDDEN, WIDTH)] * 2 + [(WIDTH, HIDDEN)]
LLAMA = LAYER * LAYERS + [(VOCABULARY, WIDTH)]


def run() -> list[Row]:
    """Measure; nothing where there is no OpenCL device."""
    try:
        from ggsched_opencl import open_backend

        backend: Backend = open_backend()
    except BackendUnavailable:
        return []
    device = backend.open_device(0)
    rows = [_products(device, "llama 110M", LLAMA, vectors, F32) for vectors in (1, 4, 16, 128)]
    rows += [
        _products(device, "llama 110M", LLAMA, 1, dtype) for dtype in (F16, Q8_0, Q4_0, Q4_K, Q6_K)
    ]
    square = [(VOCABULARY, VOCABULARY)]
    for dtype in (F32, F16, BF16, Q8_0, Q4_0, MXFP4, Q4_K, Q6_K):
        rows += [_products(device, "4096 x 4096", square, vectors, dtype) for vectors in (1, 128)]
    rows += _launches(device)
    device.close()
    return rows


class Session:
    """A graph that is ready to be launched again and again on a stream of its own."""

    def __init__(self, device: Device, graph: Graph) -> None:
        self.stream = device.create_stream()
        self._buffers = {t.id: device.allocate(t.nbytes) for t in graph.tensors if not t.is_view}
        rng = np.random.default_rng(0)
        for t in graph.tensors:
            if not t.is_view and t.role is not Role.TEMP:
                raw = leaf_values(t, LeafRule(), rng)
                self.stream.upload(raw.reshape(-1).view(np.uint8).data, self._buffers[t.id], 0)
        self._program = device.compile(bound_nodes(graph, self._buffers), self.stream)

    def launch(self) -> None:
        """Enqueue all nodes."""
        self.stream.launch(self._program)

    def run(self) -> None:
        """Run all nodes."""
        self.launch()
        self.stream.sync(TIMEOUT_S)

    def close(self) -> None:
        """Release everything."""
        self._program.close()
        self.stream.close()
        for buffer in self._buffers.values():
            buffer.close()


def _products(device: Device, title: str, shapes: Shapes, vectors: int, dtype: DType) -> Row:
    g = GraphBuilder("products")
    xs = {k: g.input(f"x{k}", (vectors, k)) for k in sorted({k for _, k in shapes})}
    weights = [g.weight(f"w{i}", shape, dtype) for i, shape in enumerate(shapes)]
    session = Session(device, g.build(*(g.mul_mat(w, xs[w.shape[1]]) for w in weights)))
    took = interleaved({"numpy": _in_numpy(shapes, vectors), "ours": session.run}, ROUNDS)
    session.close()
    what = f"{title}, {vectors} vectors: speed of {dtype} / numpy f32"
    is_target = shapes is LLAMA and vectors == 1 and dtype is F32
    bound = ">= 0.5" if is_target else ""
    return Row("opencl", what, *ratio(took["numpy"], took["ours"]), bound=bound)


def _in_numpy(shapes: Shapes, vectors: int) -> Call:
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]
    xs = {k: rng.standard_normal((vectors, k), dtype=np.float32) for _, k in shapes}
    outs = [np.empty((vectors, n), np.float32) for n, _ in shapes]

    def multiply() -> None:
        for w, out in zip(weights, outs, strict=True):
            np.matmul(xs[w.shape[1]], w.T, out)

    return multiply


def _launches(device: Device) -> list[Row]:
    g = GraphBuilder("tiny")
    y = g.input("x", (16,))
    for _ in range(KERNELS):
        y = g.scale(y, 1.0)
    many = Session(device, g.build(y))
    one = GraphBuilder("one")
    single = Session(device, one.build(one.scale(one.input("x", (16,)), 1.0)))
    many.run()
    took = interleaved({"enqueue": many.launch, "trip": single.run}, ROUNDS)
    many.stream.sync(TIMEOUT_S)
    took |= interleaved({"run": many.run}, ROUNDS)
    rows = []
    for side, what, count in (
        ("enqueue", "tiny kernel, enqueueing", KERNELS),
        ("run", "tiny kernel, until it has run", KERNELS),
        ("trip", "launch and sync of one kernel", 1),
    ):
        rows.append(Row("opencl", what, *spread(1e6 * s / count for s in took[side]), "us"))
    many.close()
    single.close()
    return rows
