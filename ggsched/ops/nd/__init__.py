"""The op library ``nd``: what numpy does with arrays of up to eight axes, as ops of graphs.

An op is one declaration: operands, parameters, the rule for type and shape, the work, and a
reference in numpy. The reference is what the oracle, the simulator and the device ``cpu`` compute
with, so an op can be planned, checked and run as soon as it is declared. Devices that have every op
of the library declare ``nd.*``; others name those that they have kernels for (``nd.exp:f32``).

``ggsched.ir.ops`` loads the library when a name that begins with ``nd.`` is first looked up.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Final

from ggsched.ops.nd.declare import DEFINED
from ggsched.ops.record import OpDef

_MODULES: Final = (
    "elementwise",
    "indexing",
    "layout",
    "products",
    "recurrent",
    "reductions",
    "sampling",
    "windows",
)


def library() -> Mapping[str, OpDef]:
    """Return the definitions of all ops of the library by name.

    Examples:
        >>> from ggsched.ops.nd import library
        >>> library()["nd.gather"].operands
        ('x', 'indices')
    """
    for name in _MODULES:
        import_module(f"{__name__}.{name}")
    return DEFINED


__all__ = ["library"]
