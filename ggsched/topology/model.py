"""The machine as planning sees it: devices in order of priority and the paths between them."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Final

from ggsched.errors import PlanError
from ggsched.topology.caps import DeviceFacts, WaitPath

FORMAT = "ggsched-topology/1"
_NEWER: Final = ("fusions", "neighbours")
_SETS: Final = ("ops", *_NEWER)


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

        Raises:
            PlanError: there is no device of that name.
        """
        for i, device in enumerate(self.devices):
            if device.name == name:
                return i
        known = ", ".join(d.name for d in self.devices)
        raise PlanError(f"no device {name!r}", hint=f"devices: {known}")

    def wait_path(self, waiter: int, recorder: int) -> WaitPath:
        """Return how ``waiter``'s streams wait for ``recorder``'s events (EVT-4)."""
        if not self.devices[recorder].has_events:
            return "host"
        return self.wait_paths.get((waiter, recorder), "host")

    @cached_property
    def digest(self) -> str:
        """Hash of all facts; two machines with one digest get the same plans."""
        text = json.dumps(self.to_json(), sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Return the topology as plain JSON data."""
        devices = [_facts_to_json(d) for d in self.devices]
        return {
            "format": FORMAT,
            "devices": devices,
            "copy_paths": [[p.src, p.dst, p.by] for _, p in sorted(self.copy_paths.items())],
            "wait_paths": [[w, r, path] for (w, r), path in sorted(self.wait_paths.items())],
        }

    @classmethod
    def from_json(cls, data: Any) -> "Topology":
        """Read a topology back, e.g. one recorded on a machine that is not at hand.

        Raises:
            PlanError: the data are not a topology of this format.
        """
        try:
            if data["format"] != FORMAT:
                raise PlanError(
                    f"format {data['format']!r} instead of {FORMAT!r}", where="topology"
                )
            devices = tuple(_facts_from_json(d) for d in data["devices"])
            copies = {(s, d): CopyPath(s, d, by) for s, d, by in data["copy_paths"]}
            waits = {(w, r): path for w, r, path in data["wait_paths"]}
        except (KeyError, TypeError, ValueError) as error:
            raise PlanError("not a topology", why=f"{type(error).__name__}: {error}") from error
        return cls(devices, copies, waits)


def _facts_to_json(facts: DeviceFacts) -> dict[str, Any]:
    """Return facts as plain data. A device that joins nothing says nothing of it, as before."""
    plain = {**asdict(facts), **{name: sorted(getattr(facts, name)) for name in _SETS}}
    for name in _NEWER:
        if not plain[name]:
            del plain[name]
    return plain


def _facts_from_json(data: Mapping[str, Any]) -> DeviceFacts:
    sets = {name: frozenset(data[name]) for name in _SETS if name in data}
    return DeviceFacts(**{**data, **sets})
