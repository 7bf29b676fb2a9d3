"""What carries messages between machines, as the executor sees it; rules NET-1..6.

``docs/reference/network.md`` states the rules; ``ggsched_cluster`` keeps them over sockets.
"""

from typing import Protocol

from ggsched.backend.protocols import HostMemory


class Network(Protocol):
    """The messages of one machine in one run. For one thread at a time."""

    def send(self, machine: int, tag: int, source: HostMemory) -> None:
        """Send bytes; they may change when this returns (NET-1). It does not wait (NET-3).

        Raises:
            DeviceFault: the way to the machine is broken.
        """

    def receive(self, machine: int, tag: int, target: HostMemory) -> None:
        """Wait for the message of this run with a tag, and write its bytes (NET-2).

        Messages may arrive in any order (NET-4).

        Raises:
            DeviceFault: another length, or the run was given up (NET-5).
        """
