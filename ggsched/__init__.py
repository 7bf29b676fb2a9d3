"""Schedules tensor graphs over several devices by plans that are data.

The public names below are loaded when they are first used, so that ``import ggsched`` costs
nothing and needs nothing but the standard library.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from ggsched.moved import MovedModules

if TYPE_CHECKING:
    from ggsched.backend.probe import probe
    from ggsched.backend.registry import discover, open_devices
    from ggsched.buckets import Bucketed
    from ggsched.config import Settings
    from ggsched.errors import GgschedError
    from ggsched.ir import DType, Graph, GraphBuilder
    from ggsched.ir.user_ops import Sample, SourceKernel, register_op, unregister_op
    from ggsched.scheduler import Scheduler
    from ggsched.topology import Topology
    from ggsched_import.onnx import from_onnx
    from ggsched_import.torch import from_torch
    from ggsched_race.watch import watch

__version__ = "0.1.0"

sys.meta_path.insert(0, MovedModules())

_HOME: Final = {
    "Bucketed": "ggsched.buckets",
    "DType": "ggsched.ir",
    "GgschedError": "ggsched.errors",
    "Graph": "ggsched.ir",
    "GraphBuilder": "ggsched.ir",
    "Sample": "ggsched.ir.user_ops",
    "Scheduler": "ggsched.scheduler",
    "Settings": "ggsched.config",
    "SourceKernel": "ggsched.ir.user_ops",
    "Topology": "ggsched.topology",
    "discover": "ggsched.backend.registry",
    "from_onnx": "ggsched_import.onnx",
    "from_torch": "ggsched_import.torch",
    "open_devices": "ggsched.backend.registry",
    "probe": "ggsched.backend.probe",
    "register_op": "ggsched.ir.user_ops",
    "unregister_op": "ggsched.ir.user_ops",
    "watch": "ggsched_race.watch",
}

__all__ = [
    "Bucketed",
    "DType",
    "GgschedError",
    "Graph",
    "GraphBuilder",
    "Sample",
    "Scheduler",
    "Settings",
    "SourceKernel",
    "Topology",
    "__version__",
    "discover",
    "from_onnx",
    "from_torch",
    "open_devices",
    "probe",
    "register_op",
    "unregister_op",
    "watch",
]


def __getattr__(name: str) -> Any:
    """Load a public name from where it lives."""
    if name not in _HOME:
        raise AttributeError(f"module 'ggsched' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
