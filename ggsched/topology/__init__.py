"""Facts about machines, as frozen data. Planning sees these and never a live device."""

from ggsched.topology.caps import CopyOrder, DeviceFacts, WaitPath, op_key
from ggsched.topology.model import CopyPath, Topology

__all__ = ["CopyOrder", "CopyPath", "DeviceFacts", "Topology", "WaitPath", "op_key"]
