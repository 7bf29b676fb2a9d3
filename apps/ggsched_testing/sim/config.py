"""What a simulated device can do, and what is to go wrong."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ggsched.backend.user_kernels import user_op_keys
from ggsched.ir.dtype import GGUF_DTYPES
from ggsched.ir.fusion import PATTERNS
from ggsched.ir.ops import BUILT_IN, LIBRARY_KEYS
from ggsched.topology.caps import DeviceFacts, WaitPath, capabilities, op_key
from ggsched_testing.sim.costs import Costs

SIM_OPS: Final = LIBRARY_KEYS | {op_key(op, t.name) for op in BUILT_IN for t in GGUF_DTYPES}
"""The simulator computes with the oracle, so it has every op on every type that graphs allow."""

BACKEND: Final = "sim"


SIM_CAPABILITIES: Final[Mapping[str, Any]] = {
    "kind": "gpu",
    "memory_nbytes": 1 << 40,
    "alignment": 64,
    "max_streams": 8,
    "copy_order": "stream",
    "has_events": True,
    "is_async": True,
    "is_deterministic": True,
    "takes_expert_ranges": True,
    "ops": SIM_OPS,
    "fusions": frozenset(PATTERNS),
}
"""What a simulated device declares unless its configuration says otherwise."""


class SimConfig:
    """A simulated device: its capabilities in any combination, its paths, what things cost.

    The device does what its capabilities say and uses every freedom that they leave (TRU-1). One
    that is not ``is_deterministic`` changes the last bit of sums from launch to launch (LCH-4).

    Args:
        copies: Devices of the world, by number, from and to whose buffers its streams copy; None
            for all, an empty set for none. A path that both ends lack has to go over the host.
        waits: How its streams wait for events of other devices (EVT-4), one for all or by number.
        transfer_queues: Internal queues, shared by all streams, that copies go through; 0 for
            none. Events and waits cover them (EVT-2).
        runs_after_faults: Whether commands behind a failed one run nevertheless, on the bytes that
            it left (ERR-2).
        costs: What things cost in simulated time.
        capabilities: Fields of ``DeviceFacts`` that differ from ``SIM_CAPABILITIES``.
    """

    def __init__(
        self,
        *,
        copies: frozenset[int] | None = None,
        waits: WaitPath | Mapping[int, WaitPath] = "native",
        transfer_queues: int = 0,
        runs_after_faults: bool = False,
        costs: Costs | None = None,
        **capabilities: Any,
    ) -> None:
        self.copies = copies
        self.waits = waits
        self.transfer_queues = transfer_queues
        self.runs_after_faults = runs_after_faults
        self.costs = costs or Costs()
        self._capabilities = {"ops": SIM_OPS | user_op_keys(None), **capabilities}

    def facts(self, index: int) -> DeviceFacts:
        """Return the facts of the device of this number."""
        return DeviceFacts(
            name=f"{BACKEND}:{index}",
            backend=BACKEND,
            description="simulated, as late and as torn as the contract allows",
            **{**SIM_CAPABILITIES, **self._capabilities},
        )

    @classmethod
    def of_facts(cls, facts: DeviceFacts, costs: Costs | None = None) -> "SimConfig":
        """Return the capabilities that these facts declare."""
        return cls(costs=costs, **{name: getattr(facts, name) for name in capabilities()})

    def __repr__(self) -> str:
        paths = {"copies": self.copies, "waits": self.waits, "queues": self.transfer_queues}
        return f"SimConfig({paths}, {self._capabilities})"


@dataclass(frozen=True, slots=True)
class InjectedFaults:
    """What goes wrong, by number.

    Commands are numbered over the whole world in the order of enqueueing, from 0: uploads,
    downloads, copies, launches, records, waits, barriers. ``world.enqueued`` is the next number.

    Attributes:
        refuse: Commands that are refused at once (ERR-1).
        fail: Commands that fail when they run, half done (ERR-2, EVT-6).
        lose: Commands at which their device is lost.
        hang: Commands that never end, so that waits for them time out.
        no_memory: Allocations for which there is no memory (BUF-1), likewise from 0;
            ``world.allocated`` is the number of the next one.
    """

    refuse: frozenset[int] = frozenset()
    fail: frozenset[int] = frozenset()
    lose: frozenset[int] = frozenset()
    hang: frozenset[int] = frozenset()
    no_memory: frozenset[int] = frozenset()
