"""The machine as planning sees it: devices in order of priority and the paths between them."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from ggsched.errors import PlanError
from ggsched.topology.caps import DeviceFacts, WaitPath, facts_to_json

FORMAT: Final = "ggsched-topology/2"


@dataclass(frozen=True, slots=True)
class CopyPath:
    """A direct way for bytes from one device's memory to another's.

    Attributes:
        src: Device that holds the bytes.
        dst: Device that gets them.
        by: Device on whose stream the copy is enqueued (CPY-1), ``src`` or ``dst``.
    """

    src: int
    dst: int
    by: int


@dataclass(frozen=True)
class Topology:
    """Frozen facts about a machine.

    Devices are named by their index here, which is their priority: 0 is preferred. A pair of
    devices without a copy path is bridged by a download and an upload, which the planner plans
    (CPY-6); a pair without a wait path by a wait of the host (EVT-4).

    Attributes:
        devices: All devices, highest priority first.
        copy_paths: Direct copy paths by (src, dst).
        wait_paths: How a stream of the first device waits for an event of the second. Pairs that
            are absent need the host.

    Examples:
        >>> from ggsched import open_devices, probe
        >>> devices = open_devices(["cpu:0", "cpu:1"])
        >>> topology = probe(devices)
        >>> topology.device_index("cpu:1"), topology.wait_path(0, 1)
        (1, 'native')
        >>> for device in devices:
        ...     device.close()
    """

    devices: tuple[DeviceFacts, ...]
    copy_paths: Mapping[tuple[int, int], CopyPath] = field(default_factory=dict)
    wait_paths: Mapping[tuple[int, int], WaitPath] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.devices:
            raise PlanError("a topology needs at least one device")
        names = [d.name for d in self.devices]
        if len(set(names)) != len(names):
            raise PlanError("two devices of one name", where=", ".join(names))
        n = len(self.devices)
        for (src, dst), path in self.copy_paths.items():
            ok = (path.src, path.dst) == (src, dst) and path.by in (src, dst) and src != dst
            if not ok or not (0 <= src < n and 0 <= dst < n):
                raise PlanError(f"copy path {path} under ({src}, {dst})", where="topology")
        for waiter, recorder in self.wait_paths:
            if not (0 <= waiter < n and 0 <= recorder < n):
                raise PlanError(f"wait path of ({waiter}, {recorder})", where="topology")

    def device_index(self, name: str) -> int:
        """Return the index of a device.

        Args:
            name: Such as ``"cpu:0"``.

        Raises:
            PlanError: there is no device of that name.

        Examples:
            >>> topology.device_index("cpu:0")
            0
        """
        for i, device in enumerate(self.devices):
            if device.name == name:
                return i
        known = ", ".join(d.name for d in self.devices)
        raise PlanError(f"no device {name!r}", hint=f"devices: {known}")

    def wait_path(self, waiter: int, recorder: int) -> WaitPath:
        """Return how ``waiter``'s streams wait for ``recorder``'s events (EVT-4).

        Args:
            waiter: Index of a device.
            recorder: Index of another one.

        Examples:
            >>> topology.wait_path(0, 1)
            'native'
        """
        if not self.devices[recorder].has_events:
            return "host"
        return self.wait_paths.get((waiter, recorder), "host")

    @cached_property
    def digest(self) -> str:
        """Hash of all facts; two machines with one digest get the same plans."""
        text = json.dumps(self.to_json(), sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Return the topology as plain JSON data.

        Examples:
            >>> [device["name"] for device in topology.to_json()["devices"]]
            ['cpu:0', 'cpu:1']
        """
        return {
            "format": FORMAT,
            "devices": [facts_to_json(d) for d in self.devices],
            "copy_paths": [[p.src, p.dst, p.by] for _, p in sorted(self.copy_paths.items())],
            "wait_paths": [[w, r, path] for (w, r), path in sorted(self.wait_paths.items())],
        }
