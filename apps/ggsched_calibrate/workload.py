"""Work to be timed: small graphs, bound to memory of one device and compiled for one stream."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any, Final, cast

import numpy as np

from ggsched.backend.capture import offers_capture
from ggsched.backend.program import BoundNode, Operand, full_params
from ggsched.backend.protocols import Buffer, Device, HostMemory, Program, Stream
from ggsched.errors import GgschedError
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import ALL_DTYPES, DType
from ggsched.ir.graph import Graph
from ggsched.ir.tensor import Role, Tensor

TIMEOUT_S: Final = 60.0

Repeat = Callable[[int], None]
"""Does something that number of times and waits until all is complete."""
_TILE_NBYTES: Final = 1 << 20
# Blocks that mean numbers of ordinary size; denormal ones would be slow on some machines.
_RANDOM: Final = np.random.default_rng(0)
_BLOCK: Final = {
    "f32": _RANDOM.uniform(0.1, 1.0, 1 << 14).astype("<f4"),
    "bool": np.array([False, True]),
    # Ids of few rows, so that they are in any table.
    **{
        t: _RANDOM.integers(0, 64, 1 << 12).astype(f"<{t[0]}{int(t[1:]) // 8}")
        for t in ("i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8")
    },
    "f64": np.array([0.5], "<f8"),
    "f16": np.array([0.5], "<f2"),
    "bf16": np.array([0x3F00], "<u2"),
    **{t.name: np.frombuffer(t.layout.sample(), np.uint8) for t in ALL_DTYPES if t.layout},
}


def products(weights: int, rows: int, width: int, columns: int, dtype: DType) -> Graph:
    """Return a graph of products of (columns, width) with several weights (rows, width)."""
    g = GraphBuilder("products")
    x = g.input("x", (columns, width))
    return g.build(*(g.mul_mat(g.weight(f"w{i}", (rows, width), dtype), x) for i in range(weights)))


def sums(count: int, size: int) -> Graph:
    """Return a graph of ``count`` sums of two vectors."""
    g = GraphBuilder("sums")
    a, b = g.input("a", (size,)), g.input("b", (size,))
    return g.build(*(g.add(a, b) for _ in range(count)))


def chain(links: int, width: int = 16) -> Graph:
    """Return a graph of small nodes of the usual sorts, three to a link, one after the other."""
    g = GraphBuilder("chain")
    x, w = g.input("x", (1, width)), g.weight("w", (width, width))
    for _ in range(links):
        x = g.add(g.mul_mat(w, g.rms_norm(x)), x)
    return g.build(x)


def activations(size: int) -> Graph:
    """Return a graph of one nonlinear function of a vector."""
    g = GraphBuilder("activations")
    return g.build(g.silu(g.input("x", (size,))))


class Bench:
    """A device under measurement. What is made here is released by ``close``."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._stack = ExitStack()

    def stream(self) -> Stream:
        """Return a new stream."""
        stream = self.device.create_stream()
        self._stack.callback(stream.close)
        return stream

    @contextmanager
    def program(self, graph: Graph, stream: Stream) -> Iterator[Program]:
        """Give the graph as a program, with every tensor in memory of its own.

        Inputs and weights are filled before. After the block all of it is released.

        Raises:
            OutOfDeviceMemory: it does not fit.
            UsageError: an op that the device does not have.
        """
        with ExitStack() as stack:
            try:
                yield self._prepare(graph, stream, stack)
            finally:
                _drain(stream)

    def _prepare(self, graph: Graph, stream: Stream, stack: ExitStack) -> Program:
        buffers: dict[int, Buffer] = {}
        for t in graph.tensors:
            if not t.is_view:
                buffers[t.id] = buffer = self.device.allocate(t.nbytes)
                stack.callback(buffer.close)
                if t.role is not Role.TEMP:
                    fill(stream, buffer, t.dtype)
        stream.sync(TIMEOUT_S)
        nodes = [
            _bound(graph, node.id, [_operand(graph.tensors[t], buffers) for t in node.tensors])
            for node in graph.nodes
        ]
        program = self.device.compile(nodes, stream)
        stack.callback(program.close)
        return program

    def close(self) -> None:
        """Release all streams."""
        self._stack.close()


@contextmanager
def repeated(
    stream: Stream, enqueue: Callable[[], None], times: int = 1, *, may_capture: bool = True
) -> Iterator[Repeat]:
    """Give what enqueues a command again and again and waits, as runs of plans do.

    That is by replays of a graph where plans are captured (CAP-1).

    Args:
        stream: The stream of the command.
        enqueue: Enqueues it once.
        times: How often for each repetition.
        may_capture: Whether plans capture such commands.
    """
    device = stream.device
    with ExitStack() as stack:
        replay = None
        if may_capture and not device.facts.is_host and offers_capture(device):
            capture = device.begin_capture([stream])
            try:
                for _ in range(times):
                    enqueue()
            except BaseException:
                capture.abort()
                raise
            graph = capture.end()
            stack.callback(graph.close)
            replay = partial(cast(Any, stream).replay, graph)

        def repeat(count: int) -> None:
            for _ in range(count if replay else count * times):
                (replay or enqueue)()
            stream.sync(TIMEOUT_S)

        yield repeat


def launches(stream: Stream, program: Program) -> AbstractContextManager[Repeat]:
    """Give what launches a program, see ``repeated``."""
    return repeated(stream, partial(stream.launch, program))


def fill(stream: Stream, buffer: Buffer, dtype: DType) -> None:
    """Enqueue uploads that fill a buffer with numbers of a type."""
    block = _BLOCK[dtype.name].view(np.uint8)
    tile: HostMemory = np.tile(block, max(1, _TILE_NBYTES // block.size)).data
    for start in range(0, buffer.nbytes, tile.nbytes):
        part = tile[: min(tile.nbytes, buffer.nbytes - start)]
        stream.upload(part.toreadonly(), buffer, start)


def _operand(t: Tensor, buffers: dict[int, Buffer]) -> Operand:
    return Operand(buffers[t.storage], t.offset, t.nbytes, t.dtype, t.shape, t.strides)


def _bound(graph: Graph, number: int, operands: list[Operand]) -> BoundNode:
    node = graph.nodes[number]
    *inputs, output = operands
    params = full_params(node.op, node.params)
    return BoundNode(number, node.op, tuple(inputs), output, params, graph.label(node))


def _drain(stream: Stream) -> None:
    """Wait before memory goes away (BUF-2); a failure has been reported already."""
    try:
        stream.sync(TIMEOUT_S)
    except GgschedError:
        return
