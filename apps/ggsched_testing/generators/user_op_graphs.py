"""Graphs around a user-defined op, from the samples that it was registered with."""

from collections.abc import Iterator
from typing import Final

from ggsched.errors import UsageError
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import F32, I32, DType, dtype_by_name
from ggsched.ir.ops import OPS, OpDef, infer
from ggsched.ir.params import canonical_params
from ggsched.ir.tensor import Tensor
from ggsched.ir.user_ops import Sample
from ggsched_testing.generators.graph_gen import GraphGenerator
from ggsched_testing.generators.values import DrawnGraph, LeafRule

IDS: Final = 2
"""Bound of ids that a sample does not bound."""


def user_op(name: str) -> OpDef:
    """Return a user-defined op.

    Raises:
        UsageError: there is none of this name.
    """
    op = OPS.get(name)
    if op is None or not op.version:
        raise UsageError(
            "it is not a user-defined op",
            where=f"op {name!r}",
            hint="import the module that registers it, e.g. as MODULE:NAME",
        )
    return op


def sample_graphs(
    op: OpDef, *, strided: bool = False, inplace: bool = False
) -> Iterator[DrawnGraph]:
    """Yield a graph of one node for each sample and each type of the first operand.

    Args:
        strided: Whether operands are views with a gap behind each row.
        inplace: Whether the result takes the place of operand 0; samples whose result has another
            type or shape are left out.
    """
    for number, sample in enumerate(op.samples):
        for first in op.types[0]:
            g = GraphBuilder(f"{op.name} {first} {number}")
            rules: dict[str, LeafRule] = {}
            operands = []
            for i, (name, types) in enumerate(zip(op.operands, op.types, strict=True)):
                dtype = dtype_by_name(first if i == 0 else types[0])
                rules[name] = leaf_rule(sample, name, dtype)
                operands.append(_leaf(g, name, tuple(sample.shapes[i]), dtype, strided=strided))
            result = infer(op, operands, op.full(canonical_params(op, sample.params)))
            if inplace and result != (operands[0].dtype, operands[0].shape):
                continue
            made = g.op(op.name, *operands, inplace=inplace, **sample.params)
            yield DrawnGraph(g.build(made), rules)


def leaf_rule(sample: Sample, name: str, dtype: DType) -> LeafRule:
    """Return what an operand's elements are like."""
    if dtype is I32:
        return LeafRule("ids", bound=sample.bounds.get(name, IDS))
    return LeafRule(sample.kinds.get(name, "plain"))


def _leaf(
    g: GraphBuilder, name: str, shape: tuple[int, ...], dtype: DType, *, strided: bool
) -> Tensor:
    if not strided or not shape or dtype.is_quantized:
        return g.input(name, shape, dtype)
    base = g.input(name, (*shape[:-1], shape[-1] + 1), dtype)
    return g.view(base, shape, base.strides)


def draw_user_op(d: GraphGenerator, op: OpDef) -> None:
    """Add a node of a user-defined op to a random graph, with the operands of a sample.

    Where a bound of its result is known (``magnitude``), it takes tensors of the graph and later
    nodes take its result.
    """
    samples = [s for s in op.samples if all(0 not in shape for shape in s.shapes)]
    if not samples:
        return
    sample, bound = d.pick(samples), op.bound
    operands: list[Tensor] = []
    for i, (name, types) in enumerate(zip(op.operands, op.types, strict=True)):
        shape, dtype = tuple(sample.shapes[i]), dtype_by_name(types[0])
        kind = sample.kinds.get(name, "plain")
        if dtype is I32:
            operands.append(d.ids_for(shape, sample.bounds.get(name, IDS)))
        elif kind != "plain":
            operands.append(d.special_leaf(kind, shape))
        elif dtype is F32 and bound is not None:
            operands.append(_f32(d, shape))
        else:
            operands.append(d.leaf(shape, dtype))
    floats = [t for t in operands if t.id in d.bounds or t.storage in d.bounds]
    if bound is None:
        if all(d.err(t) == 0.0 for t in floats):
            d.node(op.name, *operands, **sample.params)
        return
    mag, err = bound(*map(d.mag, floats), *map(d.err, floats))
    d.emit(op.name, *operands, mag=mag, err=err, **sample.params)


def _f32(d: GraphGenerator, shape: tuple[int, ...]) -> Tensor:
    return d.f32(lambda t: t.shape == shape, lambda: shape)


__all__ = ["draw_user_op", "leaf_rule", "sample_graphs", "user_op"]
