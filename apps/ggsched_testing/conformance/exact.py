"""Ops that every correct device computes to the same bits from small whole numbers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ggsched.ir.ops import Param
from ggsched.topology.caps import DeviceFacts, op_key

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class ExactOp:
    """An op on f32 vectors without rounding.

    Attributes:
        name: Of the op.
        arity: Operands that it takes, all of one shape.
        apply: What it computes.
        params: Its parameters.
        through: Whether its last operand is the result itself.
    """

    name: str
    arity: int
    apply: Callable[..., Array]
    params: Mapping[str, Param] = field(default_factory=dict)
    through: bool = False


_LARGE: Final = float(2**60)

EXACT_OPS: Final = (
    ExactOp("add", 2, np.add),
    ExactOp("sub", 2, np.subtract),
    ExactOp("scale", 1, lambda x: x * np.float32(2) + np.float32(1), {"scale": 2.0, "bias": 1.0}),
    ExactOp("clamp", 1, lambda x: x, {"min": -_LARGE, "max": _LARGE}),
    ExactOp("cont", 1, lambda x: x),
    ExactOp("cpy", 1, lambda x: x, through=True),
    ExactOp("mul", 2, np.multiply),
)
"""In order of preference."""


def exact_op(facts: DeviceFacts) -> ExactOp | None:
    """Return the first of them that a device declares, or None."""
    return next((op for op in EXACT_OPS if op_key(op.name, "f32") in facts.ops), None)
