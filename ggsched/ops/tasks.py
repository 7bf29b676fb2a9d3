"""Tasks as ops: operands and result are handles of objects, 8 bytes each.

A handle is ``generation << 32 | slot``: which run made the object, and its place in the table of
that run. ``task.KIND`` is a task for devices of a kind, ``task.any`` one for any device. The bytes
of handles are planned, ordered and checked as those of all tensors, and with them the objects.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from ggsched.ops.record import ARRAY_AXES, OpDef, Operand, Param, Shape, need

SLOT_BITS: Final = 32
ANY_KIND: Final = "any"
OPERATIONS_PER_SECOND: Final = 1e9
"""By which seconds become the operations of the cost model."""

_NAME: Final = re.compile(r"task\.[a-z][a-z0-9_]{0,39}")


def _handles(x: Sequence[Operand], **_: Param) -> tuple[str, Shape]:
    need(
        all(t.dtype.name == "i64" and t.shape == (1,) for t in x),
        "operands must be handles: i64[1]",
    )
    return "i64", (1,)


def _flops(*_: tuple[int, ...], **params: Param) -> float:
    cost = params["cost"]
    assert isinstance(cost, (int, float))
    return cost * OPERATIONS_PER_SECOND


def _handle(*handles: Any, **params: Param) -> Any:
    """Return the handle of a task's result: of the generation of its operands."""
    assert isinstance(params["slot"], int)
    generation = handles[0].astype(np.int64) >> SLOT_BITS
    return generation << SLOT_BITS | params["slot"]


def _task(name: str) -> OpDef:
    return OpDef(
        name,
        ("handles*",),
        _handles,
        _handle,
        defaults={"slot": 0, "cost": 0.0},
        max_axes=ARRAY_AXES,
        flops=_flops,
        version="1",
    )


class _Tasks(Mapping[str, OpDef]):
    """An op for each kind; made when it is looked up."""

    def __init__(self) -> None:
        self._made: dict[str, OpDef] = {}

    def __getitem__(self, name: str) -> OpDef:
        if name not in self._made:
            if not _NAME.fullmatch(name):
                raise KeyError(name)
            self._made[name] = _task(name)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)


_TASKS: Final = _Tasks()


def library() -> Mapping[str, OpDef]:
    """Return the definitions by name."""
    return _TASKS
