"""LCH-2, LCH-5: results in the place of operands, and products of several streams at a time."""

from collections.abc import Iterator
from itertools import islice
from typing import Final

import numpy as np

from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import BF16, F16, F32, Q4_0, Q8_0
from ggsched.ir.ops import OPS
from ggsched.topology.caps import op_key
from ggsched_testing.conformance.case import case
from ggsched_testing.conformance.context import TestContext
from ggsched_testing.conformance.draws import declared_types, graphs_with, is_declared
from ggsched_testing.conformance.oprun import agrees, prepare, run
from ggsched_testing.generators.values import DrawnGraph, values_for

DRAWS: Final = 12
"""Graphs that are drawn for each op and type in search of one whose result fits an operand."""

WEIGHTS: Final = (F32, F16, BF16, Q8_0, Q4_0)
MAX_STREAMS: Final = 4
ROUNDS: Final = 4

# --- results in place -------------------------------------------------------------------------


@case("LCH-2", "The result of each op may take the place of each operand that the op allows.")
def lch2_drawn_in_place(w: TestContext) -> None:
    q = w.stream()
    for drawn, over in _in_place(w):
        graph, values = drawn.graph, values_for(drawn, w.seed)
        (node,) = graph.nodes
        prepared, after = run(w, q, graph, values, over={node.output: over})
        label = f"{graph.label(node)}, the result in the place of {graph.tensors[over].name}"
        w.require(agrees(w, prepared, after, values), f"{label}: another result than apart")
        beside = ~prepared.written()
        w.equal(after[beside], prepared.before[beside], f"bytes beside the result of {label}")
        w.program.clear()


def _in_place(w: TestContext) -> Iterator[tuple[DrawnGraph, int]]:
    """Yield graphs of one node, with the operand in whose place the result is to be."""
    for op, dtype in declared_types(w.device.facts):
        for place in OPS[op].may_overwrite:
            drawn = graphs_with(op, dtype, DRAWS, w.rng)
            fits = ((d, _operand(d, place)) for d in drawn if is_declared(d.graph, w.device.facts))
            found = ((d, t) for d, t in fits if t is not None)
            yield from islice(found, w.draws(2, 1))


def _operand(drawn: DrawnGraph, place: int) -> int | None:
    """Return an operand of the only node if the result can be in its place, else None."""
    graph = drawn.graph
    if len(graph.nodes) != 1:
        return None
    (node,) = graph.nodes
    if place >= len(node.inputs):
        return None
    tid, result = node.inputs[place], graph.tensors[node.output]
    operand = graph.tensors[tid]
    is_read_once = [graph.tensors[t].storage for t in node.inputs].count(operand.storage) == 1
    layout = (operand.dtype, operand.shape, operand.strides)
    same = layout == (result.dtype, result.shape, result.strides)
    return tid if same and is_read_once and not (operand.is_view or result.is_view) else None


# --- scratch memory ---------------------------------------------------------------------------


@case("LCH-5", "Products of drawn sizes on up to four streams at a time do not share scratch "
      "memory.", "two streams", "op mul_mat")  # fmt: skip
def lch5_drawn_products(w: TestContext) -> None:
    streams = [w.stream() for _ in range(min(MAX_STREAMS, w.device.facts.max_streams))]
    for drawn in _products(w):
        graph = drawn.graph
        (tid,) = graph.outputs
        values = [values_for(drawn, w.seed + i) for i in range(len(streams))]
        alone = []
        for v in values:
            before, after = run(w, streams[0], graph, v)
            alone.append(before.output(after, tid))
        ready = [prepare(w, q, graph, v) for q, v in zip(streams, values, strict=True)]
        for q in streams:
            w.sync(q)
            w.hold(q)
        for _ in range(ROUNDS):
            for i in w.rng.permutation(len(ready)):
                w.launch(ready[i].stream, ready[i].program)
        w.release()
        for p, wanted in zip(ready, alone, strict=True):
            seen = p.output(w.get(p.stream, p.arena), tid)
            close = np.allclose(seen, wanted, 1e-5, 1e-5)
            w.require(close, f"{graph.label(graph.nodes[0])} differs beside {len(streams)} streams")
            w.close(p.program)
            w.close(p.arena)
        w.program.clear()


def _products(w: TestContext) -> Iterator[DrawnGraph]:
    """Yield a product for each type of weight that the device declares, of a drawn size."""
    for dtype in WEIGHTS:
        if op_key("mul_mat", dtype.name) not in w.device.facts.ops:
            continue
        rows, tokens = int(w.rng.integers(1, 300)), int(w.rng.choice([1, 2, 7, 33, 64, 130]))
        width = dtype.block * int(w.rng.integers(1, 700 // dtype.block + 1))
        g = GraphBuilder(f"product of {dtype.name}")
        result = g.mul_mat(g.weight("w", (rows, width), dtype), g.input("x", (tokens, width)))
        yield DrawnGraph(g.build(result), {})
