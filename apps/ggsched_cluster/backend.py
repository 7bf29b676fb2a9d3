"""Backends whose devices are those of other processes: named, never numbered."""

from collections.abc import Callable, Sequence

from ggsched.backend.protocols import CONTRACT_VERSION, Device
from ggsched.backend.timeouts import event_timeout
from ggsched.errors import BackendUnavailable
from ggsched_cluster.local import local_start
from ggsched_cluster.members import Start
from ggsched_cluster.remote_devices import open_group


class MachinesBackend:
    """Devices of machines. None is offered unless it is named.

    Args:
        name: Of the backend, and what stands in front of ``://``.
        example: A name that opens devices.
        hint: How its devices are named.
        start: Returns what starts a worker on each of the machines of these names.
    """

    contract_version = CONTRACT_VERSION

    def __init__(
        self, name: str, example: str, hint: str, start: Callable[[tuple[str, ...]], Start]
    ) -> None:
        self.name, self.example = name, example
        self._hint = hint
        self._start = start

    def device_count(self) -> int:
        """Return 0: looking at devices takes a worker on each machine."""
        return 0

    def open_device(self, index: int) -> Device:
        """Refuse a number.

        Raises:
            BackendUnavailable: always.
        """
        raise BackendUnavailable("devices of other processes have no numbers", hint=self._hint)

    def open_named(self, specs: Sequence[str]) -> list[Device]:
        """Start a worker on each machine that is named, and return the devices.

        Args:
            specs: ``NAME://`` for all machines, ``NAME://MACHINE`` for all devices of a machine, or
                ``NAME://MACHINE/cuda:0``. The devices of a machine stand together.

        Raises:
            BackendUnavailable: no such machine, or no device there.
            UsageError: a device that a machine does not have.
        """
        wanted = self._by_machine(specs)
        start = self._start(tuple(machine for machine, _ in wanted))
        return open_group(start, wanted, timeout_s=event_timeout())

    def _by_machine(self, specs: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
        """Return the devices by machine, in order; nothing stands for everything."""
        found: dict[str, list[str]] = {}
        for spec in specs:
            machine, _, device = spec.removeprefix(f"{self.name}://").strip("/").partition("/")
            if not machine:
                return []
            found.setdefault(machine, []).extend([device] if device else [])
        return [(machine, tuple(devices)) for machine, devices in found.items()]


def open_local() -> MachinesBackend:
    """Return the backend ``local``: each machine is a process of this host.

    A device that ends its process, as a library may do by an assertion, ends the worker, and the
    run with an error.
    """
    hint = "write local://a/cpu:0,local://b/cuda:0 for a device in each of two processes"

    def start(names: tuple[str, ...]) -> Start:
        if not names:
            raise BackendUnavailable("local:// names no process", hint=hint)
        return local_start(names)

    return MachinesBackend("local", "local://a", hint, start)
