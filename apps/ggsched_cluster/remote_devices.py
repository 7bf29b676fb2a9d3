"""Devices of other machines, as a scheduler sees them."""

from collections.abc import Sequence
from typing import NoReturn

from ggsched.backend.offline_device import RefusingDevice
from ggsched.backend.protocols import Device
from ggsched.backend.timeouts import EVENT_TIMEOUT_S
from ggsched.config import Settings
from ggsched.errors import BackendUnavailable, UsageError
from ggsched.interchange.dlpack_import import host_weights
from ggsched.run.protocols import Runtime
from ggsched.run.store import Progress, WeightSource
from ggsched.topology.caps import DeviceFacts, WaitPath
from ggsched.trace.recorder import Recorder
from ggsched_cluster.driver import Driver
from ggsched_cluster.group import Group
from ggsched_cluster.members import Start
from ggsched_cluster.remote_store import RemoteStore


class RemoteDevice(RefusingDevice):
    """A device of another machine: planned on as any other; work reaches it in parts of plans.

    Args:
        group: Of its session.
        index: Its number there.
    """

    def __init__(self, group: Group, index: int) -> None:
        self.group, self.index = group, index
        self._is_open = True

    @property
    def facts(self) -> DeviceFacts:
        """What it can do, without what concerns its own host's memory."""
        return self.group.topology.devices[self.index]

    @property
    def free_nbytes(self) -> int:
        """Bytes that were free when it was opened."""
        return self.group.free[self.index]

    def copies_with(self, other: DeviceFacts) -> bool:
        """Whether it copies from and to a device: only within its machine."""
        there = self._index_of(other)
        paths = self.group.topology.copy_paths
        found = [paths.get(pair) for pair in ((self.index, there), (there, self.index))]
        return any(path is not None and path.by == self.index for path in found)

    def wait_path(self, other: DeviceFacts) -> WaitPath:
        """How its streams wait for a device's events: only within its machine."""
        there = self._index_of(other)
        return "host" if there < 0 else self.group.topology.wait_path(self.index, there)

    def open_runtime(
        self,
        devices: Sequence[Device],
        weights: WeightSource,
        settings: Settings,
        progress: Progress | None,
        recorder: Recorder | None,
    ) -> Runtime:
        """Return the machines of its group; see ``OpensRuntime``."""
        group = group_of(devices)
        assert group is not None  # this device has one
        store = RemoteStore(
            group,
            host_weights(weights),
            timeout_s=settings.timeout_s,
            capture=settings.capture,
            checked=settings.checked,
            is_sanitized=settings.sanitize == "plan",
            progress=progress,
            recorder=recorder,
        )
        return Runtime(store, store.bind)

    def close(self) -> None:
        """Close it; the last one of its group ends the workers. Legal twice (ERR-3)."""
        if self._is_open:
            self._is_open = False
            self.group.closed()

    def _index_of(self, facts: DeviceFacts) -> int:
        names = [d.name for d in self.group.topology.devices]
        return names.index(facts.name) if facts.name in names else -1

    def _refuse(self) -> NoReturn:
        raise UsageError(
            "this process cannot enqueue on a device of another machine",
            where=self.facts.name,
            hint="give it to a Scheduler, together with devices of its cluster only",
        )


def open_group(
    start: Start,
    wanted: Sequence[tuple[str, tuple[str, ...]]] = (),
    *,
    backends: tuple[str, ...] | None = None,
    timeout_s: float = EVENT_TIMEOUT_S,
) -> list[Device]:
    """Start workers and return their devices, by machine.

    Args:
        wanted: Names of devices by machine, in order of priority; none for all usable devices of
            each machine.
        backends: Backends that may be used on the machines; None for all.
        timeout_s: How long something may go on without progress.

    Raises:
        BackendUnavailable: no machine, no device, or another version of ggsched on one of them.
    """
    driver = Driver(start, backends=backends, timeout_s=timeout_s)
    try:
        driver.open(wanted)
        group = Group(start.scheme, driver)
        driver.join(group.topology, group.first)
        devices: list[Device] = [RemoteDevice(group, i) for i in range(len(group.free))]
        if not devices:
            raise BackendUnavailable("no machine has a usable device", where=f"{start.scheme}://")
    except BaseException:
        driver.close()
        raise
    return devices


def group_of(devices: Sequence[Device]) -> Group | None:
    """Return the group of devices of other machines; None for devices of this process.

    Raises:
        UsageError: both kinds, or not all of a group in its order.
    """
    remote = [d for d in devices if isinstance(d, RemoteDevice)]
    if not remote:
        return None
    group = remote[0].group
    order = [(group, i) for i in range(len(group.topology.devices))]
    if len(remote) != len(devices) or [(d.group, d.index) for d in remote] != order:
        names = ", ".join(d.facts.name for d in devices)
        raise UsageError(
            "devices of this process and of a cluster in one list",
            where=names,
            hint="this machine is a machine of the cluster too: name its devices there",
        )
    return group
