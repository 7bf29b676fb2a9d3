"""Simulated time: what each command costs, and when it ran.

A command starts when everything that it comes after has ended and the host has enqueued it, and
takes as long as its device's ``Costs`` say. Nothing else counts, so the times do not depend on the
order in which the simulator happens to run what is unordered. Kernels of two streams of a device
do not slow each other down.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

from ggsched.backend.program import BoundNode

CommandKind = Literal[
    "upload",
    "download",
    "copy",
    "fill",
    "launch",
    "fetch",
    "record",
    "wait",
    "barrier",
    "hold",
    "notice",
]


@dataclass(frozen=True, slots=True)
class Costs:
    """What things cost on a device, in seconds and per second.

    Attributes:
        enqueue_s: Time of the host for each command.
        launch_s: For each launch, before its first node.
        flops_per_s: Arithmetic of matrix products; other ops count one for each element.
        memory_bytes_per_s: Operands of nodes, read and written.
        transfer_s: For each upload, download, copy or fill.
        upload_bytes_per_s: Host to device.
        download_bytes_per_s: Device to host.
        copy_bytes_per_s: Between devices, within one, or of a fill.
        record_s: From the end of the work to the event.
        wait_s: From an event to the stream that waits for it.
        thread_wait_s: The same where a thread of the backend waits.
    """

    enqueue_s: float = 1e-6
    launch_s: float = 5e-6
    node_s: float = 2e-6
    flops_per_s: float = 1e12
    memory_bytes_per_s: float = 1e11
    transfer_s: float = 1e-5
    upload_bytes_per_s: float = 1e10
    download_bytes_per_s: float = 1e10
    copy_bytes_per_s: float = 2e10
    record_s: float = 1e-6
    wait_s: float = 1e-6
    thread_wait_s: float = 2e-5

    def moving(self, kind: CommandKind, nbytes: int) -> float:
        """Return the seconds of a transfer."""
        rate = self.copy_bytes_per_s
        if kind == "upload":
            rate = self.upload_bytes_per_s
        elif kind == "download":
            rate = self.download_bytes_per_s
        return self.transfer_s + nbytes / rate

    def computing(self, nodes: Sequence[BoundNode]) -> float:
        """Return the seconds of a launch."""
        return self.launch_s + sum(self.of_node(node) for node in nodes)

    def of_node(self, node: BoundNode) -> float:
        """Return the seconds of a node of a launch."""
        touched = sum(o.nbytes for o in (*node.inputs, node.output))
        work = flops(node) / self.flops_per_s + touched / self.memory_bytes_per_s
        return self.node_s + work


def flops(node: BoundNode) -> int:
    """Return the arithmetic operations of a node, roughly."""
    size = prod(node.output.shape)
    if node.op in ("mul_mat", "mul_mat_id"):
        return 2 * size * (node.inputs[0].shape[-1] if node.inputs[0].shape else 1)
    if node.op == "attention":
        (rows, _, width), (*_, result) = node.inputs[0].shape, node.output.shape
        return 2 * size * rows * (width + result) // max(1, result)
    return size


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """When a command ran, in simulated seconds.

    Attributes:
        device: Name of the device.
        stream: Name of the stream.
        command: The command, with its number.
        kind: What sort of command.
        start_s: When it began.
        end_s: When it was complete.
    """

    device: str
    stream: str
    command: str
    kind: CommandKind
    start_s: float
    end_s: float
