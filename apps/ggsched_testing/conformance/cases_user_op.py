"""Cases of one user-defined op: ``ggsched conform NAME --op OP``."""

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ggsched.ir.graph import Graph
from ggsched.ir.ops import OpDef
from ggsched.passes.decompose import decompose_once
from ggsched_testing.allowance import is_within
from ggsched_testing.conformance.case import Case, case
from ggsched_testing.conformance.context import TestContext
from ggsched_testing.conformance.draws import is_declared
from ggsched_testing.conformance.oprun import Prepared, run
from ggsched_testing.conformance.rules import BrokenRule
from ggsched_testing.generators.user_op_graphs import sample_graphs, user_op
from ggsched_testing.generators.values import DrawnGraph, values_for
from ggsched_testing.oracle.interpreter import run_oracle

Array = npt.NDArray[Any]

POISONS: Final = (0x00, 0x7B)
"""Bytes that lie where the result comes: neither may be seen in it."""


def user_op_cases(name: str) -> tuple[Case, ...]:
    """Return the cases of a user-defined op.

    Raises:
        UsageError: there is none of this name.
    """
    op, needs = user_op(name), f"op {name}"

    def made(rule: str, what: str, statement: str, check: Callable[[TestContext], None]) -> Case:
        check.__name__ = f"{rule.lower().replace('-', '')}_{name}_{what}"
        return case(rule, statement, needs)(check)

    decomposed = made(
        "LCH-3",
        "decomposition",
        f"What {name} is decomposed into agrees with its reference.",
        lambda w: _decomposition(w, op),
    )
    return (
        *([decomposed] if op.decompose is not None else []),
        made("LCH-3", "samples", f"{name} agrees with its reference.", lambda w: _samples(w, op)),
        made(
            "LCH-3",
            "strided",
            f"{name} agrees with its reference for operands with gaps.",
            lambda w: _strided(w, op),
        ),
        made(
            "LCH-1",
            "complete",
            f"{name} writes all of its result and reads none of it.",
            lambda w: _complete(w, op),
        ),
        made(
            "LCH-2",
            "operands",
            f"{name} leaves its operands, and all bytes around, as they are.",
            lambda w: _operands(w, op),
        ),
        made(
            "LCH-2",
            "in_place",
            f"A result of {name} may take over the bytes of the operands declared so.",
            lambda w: _in_place(w, op),
        ),
        made(
            "LCH-3",
            "rows",
            f"{name} reads only rows that ids name, where declared.",
            lambda w: _rows(w, op),
        ),
        made("LCH-4", "again", f"{name} gives the same bytes again.", lambda w: _again(w, op)),
    )


def _graphs(
    w: TestContext, op: OpDef, *, strided: bool = False, inplace: bool = False
) -> Iterator[DrawnGraph]:
    for drawn in sample_graphs(op, strided=strided, inplace=inplace):
        if is_declared(drawn.graph, w.device.facts):
            yield drawn


def _samples(w: TestContext, op: OpDef) -> None:
    for drawn in _graphs(w, op):
        _compare(w, drawn, values_for(drawn, w.seed))


def _strided(w: TestContext, op: OpDef) -> None:
    for drawn in _graphs(w, op, strided=True):
        _compare(w, drawn, values_for(drawn, w.seed))


def _complete(w: TestContext, op: OpDef) -> None:
    for drawn in _graphs(w, op):
        values = values_for(drawn, w.seed)
        results = [_result(w, drawn, values, blank=poison)[0] for poison in POISONS]
        if not _same(*results):
            raise BrokenRule(
                f"the result of {_text(drawn)} depends on what was in its place: some bytes are "
                "not written, or the kernel reads them"
            )


def _operands(w: TestContext, op: OpDef) -> None:
    for drawn in _graphs(w, op):
        _, prepared, after = _result(w, drawn, values_for(drawn, w.seed))
        graph = drawn.graph
        for i, tid in enumerate(graph.nodes[-1].inputs):
            t = graph.tensors[tid]
            span = slice(prepared.start[t.storage], prepared.start[t.storage] + t.nbytes)
            if not np.array_equal(after[span], prepared.before[span]):
                raise BrokenRule(
                    f"{_text(drawn)} writes to its operand {i} ({op.operands[i]}), which it "
                    "declares as read only"
                )
        beside = ~prepared.written()
        w.equal(after[beside], prepared.before[beside], f"bytes beside the result of {op.name}")


def _in_place(w: TestContext, op: OpDef) -> None:
    for drawn in _graphs(w, op):
        graph, values = drawn.graph, values_for(drawn, w.seed)
        result = graph.tensors[graph.nodes[-1].output]
        for i in op.may_overwrite:
            t = graph.tensors[graph.nodes[-1].inputs[i]]
            if (t.shape, t.dtype) == (result.shape, result.dtype) and not t.is_view:
                what = f" in place of operand {i} ({op.operands[i]}); is it element by element?"
                _compare(w, drawn, values, over={result.id: t.id}, what=what)
    if 0 in op.may_overwrite:
        for drawn in _graphs(w, op, inplace=True):
            _compare(w, drawn, values_for(drawn, w.seed), what=" with inplace=True")


def _rows(w: TestContext, op: OpDef) -> None:
    if op.rows is None:
        return
    table, ids = op.rows
    for drawn in _graphs(w, op):
        values = values_for(drawn, w.seed)
        names = [drawn.graph.tensors[t].name for t in drawn.graph.nodes[-1].inputs]
        expected = run_oracle(drawn.graph, values)
        hidden = values[names[table]].copy()
        unnamed = sorted({*range(hidden.shape[0])} - {*values[names[ids]].ravel().tolist()})
        hidden.reshape(hidden.shape[0], -1).view(np.uint8)[unnamed] = 0xFF  # NaN in each float type
        seen = _result(w, drawn, {**values, names[table]: hidden})[0]
        for tid, wanted in expected.items():
            if not is_within(seen[tid], wanted):
                raise BrokenRule(f"{_text(drawn)} reads rows of operand {table} that no id names")


def _decomposition(w: TestContext, op: OpDef) -> None:
    """Compare meanings; where the nodes run does not matter, so the oracle runs them."""
    for strided in (False, True):
        for drawn in sample_graphs(op, strided=strided):
            graph, values = drawn.graph, values_for(drawn, w.seed)
            seen = run_oracle(decompose_once(graph, graph.nodes[-1].id), values)
            for tid, wanted in run_oracle(graph, values).items():
                if not is_within(seen[tid], wanted):
                    raise BrokenRule(
                        f"{_text(drawn)}, decomposed, differs from its reference: "
                        f"{_off(seen[tid], wanted)}"
                    )


def _again(w: TestContext, op: OpDef) -> None:
    if not w.device.facts.is_deterministic:
        return
    for drawn in _graphs(w, op):
        values = values_for(drawn, w.seed)
        if not _same(_result(w, drawn, values)[0], _result(w, drawn, values)[0]):
            raise BrokenRule(f"{_text(drawn)} gives other bytes the second time")


def _compare(
    w: TestContext,
    drawn: DrawnGraph,
    values: dict[str, Array],
    *,
    over: dict[int, int] | None = None,
    what: str = "",
) -> None:
    expected = run_oracle(drawn.graph, values)
    seen = _result(w, drawn, values, over=over)[0]
    for tid, wanted in expected.items():
        if not is_within(seen[tid], wanted):
            raise BrokenRule(
                f"{_text(drawn)} differs from its reference{what}: {_off(seen[tid], wanted)}"
            )


def _off(seen: Array, wanted: Array) -> str:
    """Say where results differ most; NaN counts as most."""
    off = np.abs(seen.astype(np.float64) - wanted.astype(np.float64))
    at = np.unravel_index(np.nanargmax(np.where(np.isnan(off), np.inf, off)), off.shape)
    place = ", ".join(str(int(i)) for i in at)
    return f"element [{place}] is {seen[at]:g} instead of {wanted[at]:g}"


def _result(
    w: TestContext,
    drawn: DrawnGraph,
    values: dict[str, Array],
    *,
    over: dict[int, int] | None = None,
    blank: int = 0xFF,
) -> tuple[dict[int, Array], Prepared, Any]:
    """Run a graph; return its outputs, how it lay, and all bytes afterwards."""
    q = w.stream()
    prepared, after = run(w, q, drawn.graph, values, over=over, blank=blank)
    w.close(q)
    w.program.clear()
    return {tid: prepared.output(after, tid) for tid in drawn.graph.outputs}, prepared, after


def _same(one: dict[int, Array], other: dict[int, Array]) -> bool:
    return all(one[tid].tobytes() == other[tid].tobytes() for tid in one)


def _text(drawn: DrawnGraph) -> str:
    graph: Graph = drawn.graph
    node = graph.nodes[-1]
    shapes = ", ".join(
        f"{graph.tensors[t].dtype}{list(graph.tensors[t].shape)}" for t in node.inputs
    )
    return f"{node.op}({shapes})"
