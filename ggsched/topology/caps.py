"""What one device can do, as facts that were probed and can be written down.

A capability is a promise in both directions (TRU-1): what is declared works, and what is not
declared is refused.
"""

from dataclasses import dataclass
from typing import Literal

from ggsched.errors import UsageError

CopyOrder = Literal["stream", "barrier", "host"]
WaitPath = Literal["native", "thread", "host"]


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """Facts about a device.

    Attributes:
        name: As on the command line, e.g. ``"opencl:0"``.
        backend: Name of the plug-in, e.g. ``"opencl"``.
        description: For people, e.g. the name of the processor.
        kind: What it is; ``-ngl`` counts layers onto devices that are not ``"cpu"``.
        memory_nbytes: Memory in all.
        max_allocation_nbytes: Largest single buffer.
        alignment: Alignment in bytes that buffers have and that regions get.
        max_streams: Streams that can exist at once.
        is_host: Its memory is host memory: buffers offer ``host_view`` (BUF-4).
        is_async: Enqueueing normally returns before the work is done (STR-2 forbids to rely on it).
        has_events: Streams can record and wait for events (EVT-1..6).
        copy_order: How copies and launches of one stream are kept in order (STR-1).
        snapshots_uploads: Uploads read their host source while they are being enqueued and not
            later (CPY-4): it may be reused when ``upload`` returns, and it must be complete before
            ``upload`` is called, whatever the stream waits for.
        is_deterministic: Same launch, same inputs, same bytes (LCH-4).
        imports_host_memory: ``import_host`` makes a read-only buffer of host memory, no copy.
        ops: Supported ops as ``op:dtype`` with the type of the first operand (LCH-3).
        fusions: Patterns of ``ggsched.ir.fusion`` that ``compile`` knows how to run as one (LCH-6).
            The planner takes no notice of a name that it does not know.
        neighbours: Sequences of patterns and ops, as ``"rope, rope+set_rows"``, of which
            ``compile`` may make one call where none writes what another one touches. The planner
            lays nothing on what they touch until the last of them has run, if it is small; that is
            a wish, and no plan depends on it.
    """

    name: str
    backend: str
    description: str
    kind: Literal["cpu", "gpu", "accelerator"]
    memory_nbytes: int
    max_allocation_nbytes: int
    alignment: int
    max_streams: int
    is_host: bool
    is_async: bool
    has_events: bool
    copy_order: CopyOrder
    snapshots_uploads: bool
    is_deterministic: bool
    imports_host_memory: bool
    ops: frozenset[str]
    fusions: frozenset[str] = frozenset()
    neighbours: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.alignment < 1 or self.alignment & (self.alignment - 1):
            raise UsageError(
                f"alignment {self.alignment} is no power of two",
                where=self.name,
                hint="declare the alignment of the buffers that the device allocates",
            )
        if self.max_streams < 1:
            raise UsageError("a device needs at least one stream", where=self.name)


def op_key(op: str, dtype: str) -> str:
    """Return the key of ``DeviceFacts.ops`` for an op on a first operand of this type."""
    return f"{op}:{dtype}"
