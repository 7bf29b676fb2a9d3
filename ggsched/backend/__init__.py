"""What a backend must be: protocols, defaults, discovery. The rules are in the contract."""

from ggsched.backend.program import BoundNode, Operand
from ggsched.backend.protocols import (
    CONTRACT_VERSION,
    Backend,
    Buffer,
    Device,
    Event,
    HostMemory,
    Program,
    Stream,
)

__all__ = [
    "CONTRACT_VERSION",
    "Backend",
    "BoundNode",
    "Buffer",
    "Device",
    "Event",
    "HostMemory",
    "Operand",
    "Program",
    "Stream",
]
