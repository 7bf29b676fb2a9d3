"""Every op is one record, declared here: built-in ops, the library ``nd`` and tasks.

``ggsched.ops.record`` says what a record has. Built-in ops compute with f32 and up to four axes, as
kernels of GPUs do; ``ggsched.ops.nd`` computes with arrays of any type and is loaded on demand.
"""

from collections.abc import Mapping
from typing import Final, Protocol

from ggsched.ops.attention import Attention
from ggsched.ops.elementwise import Elementwise
from ggsched.ops.moves import CONT, Moves
from ggsched.ops.products import Products
from ggsched.ops.record import OpDef, records
from ggsched.ops.rope import Rope
from ggsched.ops.rows import Rows
from ggsched.ops.sequences import States

LIBRARIES: Final = {"nd": "ggsched.ops.nd", "task": "ggsched.ops.tasks"}
"""Libraries of ops by prefix, and the module whose ``library()`` returns the records.

They are loaded when a name with the prefix is first looked up: they need numpy, which planning of
other graphs does not.
"""


class Methods(Elementwise, Products, Rows, Moves, Attention, Rope, States, Protocol):
    """The methods of builders that follow from records."""


_RECORDS: Final = (
    *records(Products, Rows, Attention, Rope, Elementwise, Moves, States), CONT
)  # fmt: skip

BUILT_IN: Final[Mapping[str, OpDef]] = {op.name: op for op in _RECORDS}
"""The ops that every version of ggsched has, by name."""
