"""Running a graph in one buffer with guards between its storages.

Every storage lies in one arena with random bytes around it, so that a byte which a launch writes
and should not has nowhere to hide.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ggsched.backend.arrays import numpy_dtype, numpy_shape
from ggsched.backend.program import BoundNode, Group, Operand, full_params
from ggsched.backend.protocols import Buffer, Program, Stream
from ggsched.ir.dtype import DType
from ggsched.ir.graph import Graph
from ggsched.ir.tensor import Role, Tensor
from ggsched_testing.allowance import far_off, rounds_of
from ggsched_testing.conformance.call_trace import Bytes
from ggsched_testing.conformance.context import TestContext
from ggsched_testing.oracle.interpreter import run_oracle

Array = npt.NDArray[Any]

GUARD: Final = 64

BLANK: Final = 0xFF
"""A byte that is NaN in each float type."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A graph that is ready to be launched.

    Attributes:
        arena: The buffer that holds everything.
        start: Where each storage begins, by id.
        before: The bytes of the arena.
        program: All nodes.
    """

    graph: Graph
    stream: Stream
    arena: Buffer
    start: Mapping[int, int]
    before: Bytes
    program: Program

    def output(self, after: Bytes, tid: int) -> Array:
        """Return a tensor of a plain type out of the bytes of the arena, as it is in memory."""
        t = self.graph.tensors[tid]
        return _window(t, after, self.start[t.storage]).copy()

    def written(self) -> npt.NDArray[np.bool_]:
        """Return which bytes the nodes may write."""
        mask = np.zeros(self.before.size, np.uint8)
        for node in self.graph.nodes:
            t = self.graph.tensors[node.output]
            if t.size:
                _window(t, mask, self.start[t.storage])[...] = _ones(t.dtype)
        return mask.astype(np.bool_)


def prepare(
    w: TestContext,
    stream: Stream,
    graph: Graph,
    values: Mapping[str, Array],
    *,
    group: Group | None = None,
    over: Mapping[int, int] | None = None,
    constant: bool = False,
    blank: int = BLANK,
) -> Prepared:
    """Lay a graph out, upload it and compile it.

    Args:
        w: The world.
        values: Its inputs and weights.
        group: All nodes, as one group in this order.
        over: Storages that lie on the bytes of another one, by id.
        constant: Whether to declare weights constant (LCH-7).
        blank: The byte that fills results before the run.
    """
    step = max(GUARD, w.device.facts.alignment)
    start: dict[int, int] = {}
    at = step
    for t in graph.tensors:
        if not t.is_view:
            if over is not None and t.id in over:
                start[t.id] = start[over[t.id]]
                continue
            start[t.id] = at
            at += -(-t.nbytes // step) * step + step
    before: Bytes = w.rng.integers(0, 256, at, dtype=np.uint8)
    for t in graph.tensors:
        if not t.is_view and (over is None or t.id not in over):
            before[start[t.id] : start[t.id] + t.nbytes] = _initial(t, values, blank)
    arena = w.buffer(at, stream.device)
    w.upload(stream, before, arena)
    if constant:
        w.sync(stream)
    else:
        w.order(stream)
    program = w.compile(_bound(graph, arena, start, group, constant=constant), stream)
    return Prepared(graph, stream, arena, start, before.copy(), program)


def run(
    w: TestContext,
    stream: Stream,
    graph: Graph,
    values: Mapping[str, Array],
    *,
    group: Group | None = None,
    over: Mapping[int, int] | None = None,
    blank: int = BLANK,
) -> tuple[Prepared, Bytes]:
    """Run a graph; return how it lay and the bytes of the arena afterwards. See ``prepare``."""
    prepared = prepare(w, stream, graph, values, group=group, over=over, blank=blank)
    w.launch(stream, prepared.program)
    after = w.get(stream, prepared.arena)
    w.close(prepared.program, prepared.arena)
    return prepared, after


def agrees(w: TestContext, prepared: Prepared, after: Bytes, values: Mapping[str, Array]) -> bool:
    """Return whether what a run has left is within rounding of the oracle."""
    graph = prepared.graph
    expected = run_oracle(graph, values)
    seen = {tid: prepared.output(after, tid) for tid in expected}
    return not far_off(seen, graph, values, expected, how=rounds_of(w.device.facts))


def _initial(t: Tensor, values: Mapping[str, Array], blank: int) -> Any:
    if t.role is Role.TEMP:
        return blank
    if t.role is Role.STATE and t.name not in values:
        return 0
    return np.frombuffer(values[t.name].tobytes(), np.uint8)


def _bound(
    graph: Graph,
    arena: Buffer,
    start: Mapping[int, int],
    group: Group | None,
    *,
    constant: bool,
) -> list[BoundNode]:
    order = range(len(graph.nodes)) if group is None else group.nodes
    operands = [
        Operand(
            arena,
            start[t.storage] + t.offset,
            t.nbytes,
            t.dtype,
            t.shape,
            t.strides,
            is_constant=constant and graph.tensors[t.storage].role is Role.WEIGHT,
        )
        for t in graph.tensors
    ]
    return [
        BoundNode(
            n.id,
            n.op,
            tuple(operands[tid] for tid in n.inputs),
            operands[n.output],
            full_params(n.op, n.params),
            graph.label(n),
            group,
        )
        for n in (graph.nodes[i] for i in order)
    ]


def _window(t: Tensor, raw: Bytes, start: int) -> Array:
    """Return a tensor as a view of bytes."""
    shape, kind = numpy_shape(t.dtype, t.shape), numpy_dtype(t.dtype)
    if not t.size:
        return np.zeros(shape, kind)
    strides = (*t.strides[:-1], 1) if t.dtype.is_quantized else t.strides
    return np.ndarray(shape, kind, raw.data, start + t.offset, strides)


def _ones(dtype: DType) -> Any:
    """Return an element all of whose bytes differ from zero."""
    kind = numpy_dtype(dtype)
    return np.frombuffer(b"\x01" * kind.itemsize, kind)[0]
