"""What a simulated device can do, and what is to go wrong."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from ggsched.ir.dtype import ALL_DTYPES
from ggsched.ir.fusion import PATTERNS
from ggsched.ir.ops import OPS
from ggsched.testing.sim.costs import Costs
from ggsched.topology.caps import CopyOrder, DeviceFacts, WaitPath, op_key

SIM_OPS: Final = frozenset(op_key(op, dtype.name) for op in OPS for dtype in ALL_DTYPES)
"""The simulator computes with the oracle, so it has every op on every type that graphs allow."""

BACKEND: Final = "sim"


@dataclass(frozen=True, slots=True)
class SimConfig:
    """Capabilities of a device, in any combination. Its facts follow from them (TRU-1).

    Attributes:
        has_events: Whether streams record and wait for events.
        copy_order: How copies and launches of one stream are kept in order (STR-1).
        copies: Devices of the world, by number, from and to whose buffers its streams copy; None
            for all, an empty set for none. A path that both ends lack has to go over the host.
        waits: How its streams wait for events of other devices (EVT-4), one for all or by number.
        max_streams: Streams at once.
        transfer_queues: Internal queues, shared by all streams, that copies go through; 0 for
            none. Events and waits cover them (EVT-2).
        is_host: Whether buffers offer ``host_view`` (BUF-4).
        snapshots_uploads: Whether uploads read their source while they are enqueued (CPY-4).
        imports_host_memory: Whether ``import_host`` works.
        is_deterministic: If not, the last bit of sums changes from launch to launch (LCH-4).
        runs_after_faults: Whether what follows a failed command runs nevertheless, on what that
            one left (ERR-2).
        memory_nbytes: Memory in all.
        max_allocation_nbytes: Largest buffer; 0 for all of the memory.
        alignment: Alignment of buffers.
        kind: What it says that it is.
        ops: Supported ops.
        fusions: Patterns that it runs as one.
        neighbours: Sequences of groups that it says it makes one call of.
        costs: What things cost in simulated time.
    """

    has_events: bool = True
    copy_order: CopyOrder = "stream"
    copies: frozenset[int] | None = None
    waits: WaitPath | Mapping[int, WaitPath] = "native"
    max_streams: int = 8
    transfer_queues: int = 0
    is_host: bool = False
    snapshots_uploads: bool = False
    imports_host_memory: bool = False
    is_deterministic: bool = True
    runs_after_faults: bool = False
    memory_nbytes: int = 1 << 40
    max_allocation_nbytes: int = 0
    alignment: int = 64
    kind: Literal["cpu", "gpu", "accelerator"] = "gpu"
    ops: frozenset[str] = SIM_OPS
    fusions: frozenset[str] = frozenset(PATTERNS)
    neighbours: frozenset[str] = frozenset()
    costs: Costs = field(default_factory=Costs)

    def facts(self, index: int) -> DeviceFacts:
        """Return the facts of the device of this number."""
        fields: dict[str, Any] = {
            "name": f"{BACKEND}:{index}",
            "backend": BACKEND,
            "description": "simulated, as late and as torn as the contract allows",
            "kind": self.kind,
            "memory_nbytes": self.memory_nbytes,
            "max_allocation_nbytes": self.max_allocation_nbytes or self.memory_nbytes,
            "is_async": True,
        }
        same = (
            "alignment",
            "max_streams",
            "is_host",
            "has_events",
            "copy_order",
            "snapshots_uploads",
            "is_deterministic",
            "imports_host_memory",
            "ops",
            "fusions",
            "neighbours",
        )
        return DeviceFacts(**fields, **{name: getattr(self, name) for name in same})

    @classmethod
    def of_facts(cls, facts: DeviceFacts, costs: Costs | None = None) -> "SimConfig":
        """Return the capabilities that these facts declare."""
        return cls(
            has_events=facts.has_events,
            copy_order=facts.copy_order,
            max_streams=facts.max_streams,
            is_host=facts.is_host,
            snapshots_uploads=facts.snapshots_uploads,
            imports_host_memory=facts.imports_host_memory,
            is_deterministic=facts.is_deterministic,
            memory_nbytes=facts.memory_nbytes,
            max_allocation_nbytes=facts.max_allocation_nbytes,
            alignment=facts.alignment,
            kind=facts.kind,
            ops=facts.ops,
            fusions=facts.fusions,
            neighbours=facts.neighbours,
            costs=costs or Costs(),
        )


@dataclass(frozen=True, slots=True)
class InjectedFaults:
    """What goes wrong, by number.

    Commands are numbered over the whole world in the order of enqueueing, from 0: uploads,
    downloads, copies, launches, records, waits, barriers. ``world.enqueued`` is the next number.

    Attributes:
        refuse: Commands that are refused at once (ERR-1).
        fail: Commands that fail when they run, half done (ERR-2, EVT-6).
        lose: Commands at which their device is lost.
        hang: Commands that never end, so that whoever waits for them runs into a timeout.
        no_memory: Allocations for which there is no memory (BUF-1), likewise from 0;
            ``world.allocated`` is the number of the next one.
    """

    refuse: frozenset[int] = frozenset()
    fail: frozenset[int] = frozenset()
    lose: frozenset[int] = frozenset()
    hang: frozenset[int] = frozenset()
    no_memory: frozenset[int] = frozenset()
