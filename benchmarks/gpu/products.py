"""Matrix-vector products at the sizes of a 7B layer, against the rate of copies on the same GPU.

Each product runs from a captured graph of many, one behind the other, over weights that together
are several times the L2 cache. There are two limits, measured in the same run: the rate of a
large copy, bytes read plus bytes written, by the fastest of two ways; and the time of a copy that
moves as many bytes as the weight has, from a graph of many such copies. The second has the start
and the end of a kernel in it, as products have.
"""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.gpu.timing import Timer
from ggsched.backend.packed import dequantize
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import BF16, F16, F32, I32, MXFP4, Q4_0, Q8_0, DType
from ggsched.ir.graph import Graph
from ggsched.ir.tensor import Role
from ggsched_cuda import driver, open_backend
from ggsched_cuda.compiler.driver import compile_text
from ggsched_cuda_kernels.sources import architecture_of
from ggsched_testing.eager import bound_nodes
from ggsched_testing.generators.values import LeafRule, leaf_values

SHAPES = ((4096, 4096), (11008, 4096), (4096, 11008), (32000, 4096))
DTYPES = (BF16, Q8_0, F32, F16, Q4_0, MXFP4)
SPREAD_NBYTES = 400 << 20
CHECKED = 64  # rows of each weight that are compared with numpy
TOLERANCE = 1e-5  # of the norm of a result

COPY = """
extern "C" __global__ void copy_pieces(const uint4 *from, uint4 *to, long long n) {
  long long i = (long long)blockIdx.x * blockDim.x * 4 + threadIdx.x;
  uint4 v[4];
  for (int j = 0; j < 4; j++) if (i + j * blockDim.x < n) v[j] = from[i + j * blockDim.x];
  for (int j = 0; j < 4; j++) if (i + j * blockDim.x < n) to[i + j * blockDim.x] = v[j];
}
"""
LANES = 256


def run(*, quick: bool) -> dict[str, Any]:
    """Measure every type and size with one column, and some with more columns and with experts."""
    device: Any = open_backend().open_device(0)
    bench = _Bench(device)
    found: dict[str, Any] = {"copy_bytes_per_s": bench.copy_rate()}
    errors = []
    cases = [(d, s, 1) for d in (DTYPES[:2] if quick else DTYPES) for s in SHAPES]
    if not quick:
        cases += [(d, SHAPES[0], m) for d in (BF16, Q8_0, MXFP4) for m in (2, 4, 8)]
    for dtype, (n, k), m in cases:
        name = f"{dtype} {n} x {k}, {m} columns"
        found[name] = bench.product(dtype, n, k, m, found["copy_bytes_per_s"]["best"])
        errors.append(found[name]["error"])
        sys.stdout.write(f"   {name}: {_short(found[name])}\n")
    if not quick:
        for dtype, n, k in ((MXFP4, 5760, 2880), (Q8_0, 4096, 4096)):
            name = f"{dtype} 4 of 32 experts {n} x {k}"
            found[name] = bench.experts(dtype, n, k, found["copy_bytes_per_s"]["best"])
            sys.stdout.write(f"   {name}: {_short(found[name])}\n")
    sys.stdout.flush()
    device.close()
    return {"ok": max(errors) < TOLERANCE, **found}


def _short(found: dict[str, Any]) -> str:
    return ", ".join(f"{k} {v:.3g}" for k, v in found.items() if isinstance(v, float))


def _drawn(t: Any, rng: np.random.Generator) -> Any:
    """Return random content; the ids of each row are different experts of 32."""
    if t.name != "ids":
        return leaf_values(t, LeafRule(), rng)
    return rng.random((t.size // t.shape[-1], 32)).argsort(-1)[:, : t.shape[-1]].astype(np.int32)


class _Bench:
    def __init__(self, device: Any) -> None:
        self.device = device
        self.stream = device.create_stream()
        self.timer = Timer(device, self.stream)
        arch = device.gpu.found.arch
        options = (f"--gpu-architecture={architecture_of(arch)}",)
        self._copy = driver.function_of(
            driver.load_module(compile_text(COPY, options)), "copy_pieces", 0
        )

    # --- copies -----------------------------------------------------------------------------

    def copy_rate(self, nbytes: int = 1 << 30) -> dict[str, float]:
        """Return bytes per second, read plus written, of large copies by kernel and driver."""
        by_driver = self._replayed(nbytes, 2, lambda a, b: self._enqueue(a, b, nbytes))
        by_kernel = self._replayed(nbytes, 2, lambda a, b: self._launch(a, b, nbytes))
        rates = {"driver": 2 * nbytes / by_driver, "kernel": 2 * nbytes / by_kernel}
        return {**rates, "best": max(rates.values())}

    def copy_seconds(self, moved: int) -> float:
        """Return the time of a copy that reads half as many bytes and writes them."""
        nbytes = moved // 32 * 16
        count = max(4, SPREAD_NBYTES // moved)
        return self._replayed(nbytes, count, lambda a, b: self._launch(a, b, nbytes))

    def _replayed(self, nbytes: int, count: int, copy: Callable[[int, int], None]) -> float:
        buffers = [self.device.allocate(nbytes) for _ in range(2 * count)]
        pairs = [(a.address, b.address) for a, b in zip(buffers[::2], buffers[1::2], strict=True)]
        seconds = self.timer.replayed(lambda: [copy(a, b) for a, b in pairs]) / count
        for buffer in buffers:
            buffer.close()
        return seconds

    def _enqueue(self, source: int, to: int, nbytes: int) -> None:
        driver.enqueue_copy(to, source, nbytes, self.stream.handle)

    def _launch(self, source: int, to: int, nbytes: int) -> None:
        kept = [np.array([v], np.uint64) for v in (source, to, nbytes // 16)]
        params = np.array([v.ctypes.data for v in kept], np.uint64)
        groups = -(-nbytes // (16 * 4 * LANES))
        driver.check(
            driver.launch_kernel(
                self._copy, groups, 1, 1, LANES, 1, 1, 0, self.stream.handle, params.ctypes.data, 0
            ),
            "cuLaunchKernel",
        )

    # --- products ---------------------------------------------------------------------------

    def product(self, dtype: DType, n: int, k: int, m: int, rate: float) -> dict[str, float]:
        """Measure ``mul_mat`` and compare some rows with numpy."""
        nbytes = n * dtype.row_nbytes(k)
        count = max(4, -(-SPREAD_NBYTES // nbytes))
        g = GraphBuilder("products")
        # Each has an x of its own: products of the same one would be joined.
        ys = [
            g.mul_mat(g.weight(f"w{i}", (n, k), dtype), g.input(f"x{i}", (m, k)))
            for i in range(count)
        ]
        seconds, content = self._run(g.build(*ys), count)
        w = dequantize(content["w0"][: CHECKED * dtype.row_nbytes(k)], dtype, (CHECKED, k))
        wanted = content["x0"].view(np.float32).reshape(m, k).astype(float) @ w.T.astype(float)
        got = content["y"].view(np.float32).reshape(m, n)[:, :CHECKED]
        error = float(np.linalg.norm(got - wanted) / np.linalg.norm(wanted))
        return self._result(nbytes, seconds, rate) | {"error": error}

    def experts(self, dtype: DType, n: int, k: int, rate: float) -> dict[str, float]:
        """Measure ``mul_mat_id`` of one token and 4 experts of 32."""
        nbytes = 4 * n * dtype.row_nbytes(k)
        count = max(4, -(-SPREAD_NBYTES // nbytes) // 4)
        g = GraphBuilder("experts")
        x, ids = g.input("x", (1, 1, k)), g.input("ids", (1, 4), I32)
        weights = [g.weight(f"w{i}", (32, n, k), dtype) for i in range(count)]
        seconds, _ = self._run(g.build(*(g.mul_mat_id(w, x, ids) for w in weights)), count)
        return self._result(nbytes, seconds, rate)

    def _result(self, nbytes: int, seconds: float, rate: float) -> dict[str, float]:
        return {
            "us": 1e6 * seconds,
            "bytes_per_s": nbytes / seconds,
            "of_large_copy": nbytes / seconds / rate,
            "of_equal_copy": self.copy_seconds(nbytes) / seconds,
        }

    def _run(self, graph: Graph, count: int) -> tuple[float, dict[str, Any]]:
        """Return the seconds of one node, and what the first weight, x and the result hold."""
        buffers = {t.id: self.device.allocate(t.nbytes) for t in graph.tensors if not t.is_view}
        rng = np.random.default_rng(0)
        content: dict[str, Any] = {}
        first: dict[Any, Any] = {}
        for t in graph.tensors:
            if t.is_view or t.role is Role.TEMP:
                continue
            key = (t.role, t.shape, t.dtype.name)
            if key not in first:  # the others are copies: drawing takes longer than measuring
                first[key] = _drawn(t, rng).reshape(-1).view(np.uint8)
            content[t.name or str(t.id)] = first[key]
            self.stream.upload(first[key].data, buffers[t.id], 0)
        self.stream.sync(60.0)
        program = self.device.compile(
            bound_nodes(graph, buffers, constant_weights=True), self.stream
        )
        self.stream.sync(60.0)
        # Not the stream's launch, which looks after ids that came with the data.
        seconds = (
            self.timer.replayed(lambda: [call(*given) for call, given in program.steps]) / count
        )
        first_output = next(t for t in graph.tensors if t.id == graph.outputs[0])
        result = np.empty(first_output.nbytes, np.uint8)
        self.stream.download(buffers[graph.outputs[0]], 0, result.data)
        self.stream.sync(60.0)
        program.close()
        for buffer in buffers.values():
            buffer.close()
        return seconds / count, content | {"y": result}
