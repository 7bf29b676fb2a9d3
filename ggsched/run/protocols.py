"""What a scheduler needs from the place where its plans run: this process, or other machines.

Devices that bring a place of their own implement ``OpensRuntime``, so that a scheduler knows no
cluster.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from ggsched.backend.protocols import Device, HostMemory
from ggsched.config import Settings
from ggsched.errors import GgschedError
from ggsched.ir.graph import Graph
from ggsched.plan.bundle import Plan
from ggsched.plan.memory import Arena
from ggsched.run.expert_ledger import ExpertLedger
from ggsched.run.following import StateStreams
from ggsched.run.store import Progress, TensorStore, WeightSource
from ggsched.trace.recorder import Recorder


class Run(Protocol):
    """A plan bound to devices, to be run as often as wanted; see ``Executor``."""

    plan: Plan
    state_streams: StateStreams | None
    takes_turns: bool
    owes: bool
    is_under_way: bool
    is_closed: bool
    alternate: "Run | None"

    @property
    def is_done(self) -> bool:
        """Whether the run that was started is known to have come to its end."""

    def start(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Begin a run; ``finish`` has to follow unless this raises."""

    def finish(self, *, copy: bool = True) -> dict[int, np.ndarray]:
        """Wait for the run that was started, and return its outputs by tensor id."""

    def follow(self) -> None:
        """Let the next run come behind the last one of another plan, stream by stream."""

    def drained(self) -> None:
        """Take note that all streams were drained."""

    def give_up(self) -> None:
        """Take note that the run that was started failed."""

    def close(self) -> None:
        """Release what the plan takes; legal twice."""


class Store(Protocol):
    """Weights and states that live longer than a plan; see ``TensorStore``."""

    ledger: ExpertLedger

    @property
    def names(self) -> frozenset[str]:
        """Names of everything that is resident."""

    @property
    def is_lost(self) -> bool:
        """Whether a machine of the devices was lost."""

    def holds(self, arenas: Iterable[Arena]) -> bool:
        """Whether binding a plan with these arenas fills no memory."""

    def drain(self) -> list[GgschedError]:
        """Wait for all work, and return what went wrong."""

    def require_files(self) -> None:
        """Raise ``ModelError`` if a file that devices read was changed."""

    def release(self, names: Collection[str]) -> None:
        """Forget weights and states that no plan uses; the next use fills anew."""

    def clear_states(self) -> None:
        """Fill all states with zeros, and wait for that."""

    def nbytes_by_device(self, kind: str) -> dict[str, int]:
        """Return the resident bytes of a kind by device name."""

    def close(self) -> None:
        """Release everything; legal twice and after a fault."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """Where the plans of a scheduler run.

    Attributes:
        store: Weights and states there.
        bind: Makes what a plan of a graph needs. Raises ``OutOfDeviceMemory`` where that does not
            fit.
        tensors: The store, where its tensors are memory of this process. Only there are runs
            enqueued by this process, so that they may overlap and be recorded.
    """

    store: Store
    bind: Callable[[Graph, Plan], Run]
    tensors: TensorStore | None = None


@runtime_checkable
class OpensRuntime(Protocol):
    """A device that this process does not enqueue on: it brings the place where plans run."""

    def open_runtime(
        self,
        devices: Sequence[Device],
        weights: WeightSource,
        settings: Settings,
        progress: Progress | None,
        recorder: Recorder | None,
    ) -> Runtime:
        """Return where plans for a list of devices, this one among them, run.

        Raises:
            UsageError: devices that do not belong together.
        """


# --- messages between machines --------------------------------------------------------------------

# ``docs/reference/network.md`` states the rules; ``ggsched_cluster`` keeps them over sockets.


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
