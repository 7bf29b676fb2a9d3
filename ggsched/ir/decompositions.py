"""Decompositions: how to compute an op by other ops, on devices that have no kernel for it.

A decomposition is ``f(g, *operands, **params)``: it adds nodes to the builder and returns the
result. It is part of the op's record. ``ggsched.passes.decompose`` decides where they are used.
"""

from collections.abc import Callable, Sequence
from typing import Any

from ggsched.errors import GraphError
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.ops import OpDef, Params, infer
from ggsched.ir.tensor import Role, Tensor

Decomposition = Callable[..., Tensor]


def apply_decomposition(
    g: GraphBuilder, op: OpDef, operands: Sequence[Tensor], params: Params
) -> Tensor:
    """Return the result of an op's decomposition; its type and shape are checked.

    Args:
        g: Gets the nodes.
        op: The op, which has a decomposition.
        operands: Of the builder.
        params: All of the op's, defaults included.

    Raises:
        GraphError: a decomposition that fails, or gives another type or shape, or adds an input, a
            weight or a state.
    """
    decomposition, first = op.decompose, len(g.tensors)
    assert decomposition is not None
    try:
        found: Any = decomposition(g, *operands, **params)
    except GraphError:
        raise
    except Exception as error:
        what = f"decompose raised {type(error).__name__}: {error}"
        raise GraphError(what, where=op.name) from error
    wanted, shape = infer(op, operands, params)
    if not isinstance(found, Tensor) or (found.dtype, found.shape) != (wanted, shape):
        given = f"{found.dtype}{list(found.shape)}" if isinstance(found, Tensor) else repr(found)
        raise GraphError(
            f"decompose returned {given} instead of {wanted}{list(shape)}",
            where=op.name,
            hint="return the tensor that the builder's methods return",
        )
    for t in g.tensors[first:]:
        if not t.is_view and t.role is not Role.TEMP and t.name not in g.constants:
            raise GraphError(
                f"decompose adds an input, a weight or a state: {t.name!r}",
                where=op.name,
                hint="use the operands, and arrays as constants",
            )
    return found


__all__ = ["Decomposition", "apply_decomposition"]
