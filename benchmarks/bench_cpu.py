"""The CPU device by itself, without planner and executor, against numpy and a thread pool.

Commands of a stream as the executor makes them, and the products of one token and of small
batches (every weight of a llama of 103 million parameters) against numpy on the same bytes.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from math import prod

import numpy as np

from benchmarks.measure import interleaved, ratio, spread
from benchmarks.table import Row
from ggsched.backend.base import BaseStream
from ggsched.backend.program import BoundNode, Operand, full_params
from ggsched.ir.dtype import F32, I32
from ggsched.ir.tensor import contiguous_strides
from ggsched_cpu.device import CpuDevice, CpuSettings

N = 2_000
ROUNDS = 15
TIMEOUT_S = 60.0
WIDTH, HIDDEN, LAYERS, VOCABULARY = 1024, 2816, 8, 4096

Call = Callable[[], None]


def run() -> list[Row]:
    """Measure."""
    rows = [_per_node()]
    for is_sync in (True, False):
        rows += _per_command(is_sync)
    rows += [_products(vectors) for vectors in (1, 4, 16, 128)]
    return rows + [_attention(tokens) for tokens in (512, 4096)]


def _per_node() -> Row:
    device = CpuDevice(0, CpuSettings(sync=True))
    stream = device.create_stream()
    tensors = [_filled(device, 16) for _ in range(N + 1)]
    nodes = [_node("add", (a, tensors[0]), b) for a, b in pairwise(tensors)]
    program = device.compile(nodes, stream)
    a, b, c = (np.zeros(16, np.float32) for _ in range(3))

    def bare() -> None:
        for _ in range(N):
            np.add(a, b, out=c)

    took = interleaved({"launch": lambda: stream.launch(program), "bare": bare}, 4 * ROUNDS)
    return Row(
        "cpu", "node of a launch / np.add on 16 floats", *ratio(took["launch"], took["bare"])
    )


def _per_command(is_sync: bool) -> list[Row]:
    mode = "synchronous" if is_sync else "worker"
    device = CpuDevice(0, CpuSettings(sync=is_sync))
    stream = device.create_stream()
    rows = []
    with ThreadPoolExecutor(1) as pool:
        for what, command in _commands(device, stream).items():
            took = interleaved(
                {"ours": _times(command), "pool": _times(lambda: pool.submit(int).result())},
                ROUNDS,
            )
            stream.sync(TIMEOUT_S)
            each = spread(1e6 * s / N for s in took["ours"])
            rows.append(Row("cpu", f"{mode}: {what}", *each, "us"))
    what = f"{mode}: these three commands / submit and result"
    rows.append(Row("cpu", what, *ratio(took["ours"], took["pool"]), bound="<= 3"))
    device.close()
    return rows


def _commands(device: CpuDevice, stream: BaseStream) -> dict[str, Callable[[], object]]:
    """Return calls of the stream, the round trip last."""
    x = _filled(device, 16)
    add = device.compile([_node("add", (x, x), x)], stream)
    source = memoryview(bytearray(64))
    done = device.create_event()
    stream.record(done)

    def round_trip() -> None:
        stream.launch(add)
        event = device.create_event()
        stream.record(event)
        event.sync(TIMEOUT_S)

    return {
        "launch of one add": lambda: stream.launch(add),
        "create and record an event": lambda: stream.record(device.create_event()),
        "wait for an event that is done": lambda: stream.wait(done),
        "upload of 64 bytes": lambda: stream.upload(source, x.buffer, 0),
        "launch, record, sync": round_trip,
    }


def _products(vectors: int) -> Row:
    device = CpuDevice(0, CpuSettings(sync=True))
    stream = device.create_stream()
    nodes, alone = [], []
    for n, k in _matrices():
        operands = [_filled(device, *shape) for shape in ((n, k), (vectors, k), (vectors, n))]
        nodes.append(_node("mul_mat", (operands[0], operands[1]), operands[2]))
        alone.append([np.frombuffer(o.buffer.host_view(), "f4").reshape(o.shape) for o in operands])
    program = device.compile(nodes, stream)

    def numpy_alone() -> None:
        for w, x, y in alone:
            if vectors == 1:
                np.dot(w, x[0], y[0])
            else:
                np.matmul(x, w.T, y)

    sides = {"ours": lambda: stream.launch(program), "numpy": numpy_alone}
    took = interleaved(sides, ROUNDS if vectors == 1 else 3)
    what = f"numpy / ours, all weights times {vectors} vectors"
    bound = ">= 0.9" if vectors == 1 else ""
    return Row("cpu", what, *ratio(took["numpy"], took["ours"]), bound=bound)


def _attention(tokens: int) -> Row:
    """Causal attention of a prompt, against products of numpy with as many multiplications."""
    device = CpuDevice(0, CpuSettings(sync=True))
    stream = device.create_stream()
    groups, share, width = 2, 4, 64
    q, y = (_filled(device, tokens, groups * share, width) for _ in range(2))
    k, v = (_filled(device, tokens, groups, width) for _ in range(2))
    bounds = _filled(device, tokens, 2)
    seen = np.frombuffer(bounds.buffer.host_view(), np.int32).reshape(tokens, 2)
    seen[:, 0], seen[:, 1] = 0, np.arange(tokens) + 1
    operands = (k, v, q, replace(bounds, dtype=I32))
    program = device.compile([_node("attention", operands, y, bounds=True)], stream)
    a = np.ones((tokens // 2, width), np.float32)
    scores = np.empty((tokens // 2, tokens), np.float32)
    b, c = np.ones((tokens, width), np.float32), np.empty_like(a)

    def numpy_alone() -> None:
        for _ in range(groups * share):
            np.matmul(a, b.T, scores)
            np.matmul(scores, b, c)

    sides = {"ours": lambda: stream.launch(program), "numpy": numpy_alone}
    took = interleaved(sides, 5)
    what = f"products of numpy alone / attention, {tokens} tokens"
    return Row("cpu", what, *ratio(took["numpy"], took["ours"]), bound=">= 0.5")


def _matrices() -> list[tuple[int, int]]:
    """Return (rows, columns) of every weight on one token's way through the model."""
    attention = [(WIDTH, WIDTH)] * 4
    network = [(HIDDEN, WIDTH), (HIDDEN, WIDTH), (WIDTH, HIDDEN)]
    return (attention + network) * LAYERS + [(VOCABULARY, WIDTH)]


def _times(call: Callable[[], object]) -> Call:
    def repeated() -> None:
        for _ in range(N):
            call()

    return repeated


def _filled(device: CpuDevice, *shape: int) -> Operand:
    """Return a tensor in a buffer of its own."""
    nbytes = 4 * prod(shape)
    buffer = device.allocate(nbytes)
    np.frombuffer(buffer.host_view(), np.float32)[:] = 0.01
    return Operand(buffer, 0, nbytes, F32, shape, contiguous_strides(F32, shape))


def _node(op: str, inputs: tuple[Operand, ...], output: Operand, **params: bool) -> BoundNode:
    return BoundNode(0, op, inputs, output, full_params(op, params), op)
