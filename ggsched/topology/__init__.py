"""Facts about machines, as frozen data. Planning sees these and never a live device."""

from ggsched.topology.caps import Capability, CopyOrder, DeviceFacts, WaitPath, capabilities, op_key
from ggsched.topology.model import CopyPath, Topology

__all__ = [
    "Capability",
    "CopyOrder",
    "CopyPath",
    "DeviceFacts",
    "Topology",
    "WaitPath",
    "capabilities",
    "op_key",
]
