"""Asks live devices once and writes down a ``Topology``.

What is cheap to check is checked here: a device whose facts cannot be true is refused before
anything is planned on them (TRU-1). What only running can show is the conformance kit's task.
"""

from collections.abc import Sequence
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

from ggsched.backend.offline_device import paper_topology
from ggsched.backend.plugin_calls import plugin_call
from ggsched.backend.protocols import Device
from ggsched.errors import BackendBroken, GraphError
from ggsched.ir.dtype import dtype_by_name
from ggsched.ir.ops import OPS, is_of_library
from ggsched.topology.caps import DeviceFacts, WaitPath
from ggsched.topology.model import CopyPath, Topology

_FIX: Final = "this is a defect of the plug-in: report it to its author"


def probe(devices: Sequence[Device]) -> Topology:
    """Ask devices for their facts and for the paths between them.

    Of two devices that could both make a copy, the one that is not a host device does, since a
    host's stream would spend a processor on it; between equals the one that holds the bytes.

    Of devices that stand in a file, all of them in order, the paths are those of the file.

    Args:
        devices: Open devices, highest priority first.

    Raises:
        BackendBroken: a device's answers cannot be true.

    Examples:
        >>> from ggsched import open_devices, probe
        >>> devices = open_devices(["cpu:0"])
        >>> [facts.name for facts in probe(devices).devices]
        ['cpu:0']
        >>> devices[0].close()
    """
    written = paper_topology(devices)
    if written is not None:
        return written
    facts = tuple(checked_facts(device) for device in devices)
    names = [f.name for f in facts]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise BackendBroken("two devices call themselves by one name", where=name, hint=_FIX)
    indices = range(len(devices))
    copies: dict[tuple[int, int], CopyPath] = {}
    waits: dict[tuple[int, int], WaitPath] = {}
    for i in indices:
        for j in indices:
            by = _copier(devices, facts, i, j) if i != j else None
            if by is not None:
                copies[i, j] = CopyPath(i, j, by)
            path = _wait_path(devices[i], facts[i], facts[j])
            if path != "host":
                waits[i, j] = path
    return Topology(facts, copies, waits)


def checked_facts(device: Device) -> DeviceFacts:
    """Return a device's facts, if they can be true.

    Raises:
        BackendBroken: an attribute of the wrong type or value, an op that does not exist, facts
            that change.
    """
    facts: Any = device.facts
    if not isinstance(facts, DeviceFacts):
        raise BackendBroken(
            f"its facts are {type(facts).__name__} instead of DeviceFacts",
            where=_name(facts),
            hint=_FIX,
        )
    if device.facts != facts:
        raise BackendBroken(
            "its facts change from one call to the next", where=_name(facts), hint=_FIX
        )
    for name, declared in get_type_hints(DeviceFacts).items():
        why = _flaw(name, declared, getattr(facts, name))
        if why:
            raise BackendBroken(f"its fact {name} {why}", where=_name(facts), hint=_FIX)
    _check_ops(facts)
    return facts


def _name(facts: Any) -> str:
    return str(getattr(facts, "name", "") or "a device without a name")


def _flaw(name: str, declared: Any, value: Any) -> str:
    """Return what is wrong with the value of a field, or an empty string."""
    if get_origin(declared) is Literal:
        choices = get_args(declared)
        return "" if value in choices else f"is {value!r} instead of one of {', '.join(choices)}"
    if get_origin(declared) is frozenset:
        good = isinstance(value, frozenset) and all(isinstance(key, str) for key in value)
        return "" if good else "is not a frozenset of texts"
    if type(value) is not declared:
        return f"is {value!r} instead of {declared.__name__}"
    if name in ("name", "backend") and not value:
        return "is empty"
    if declared is int and value < 1:
        return f"is {value} instead of at least 1"
    return ""


def _check_ops(facts: DeviceFacts) -> None:
    """Refuse names of ops and types that do not exist.

    An op that this version does not know may come from a newer one, but then no graph has it.
    """
    for key in sorted(facts.ops):
        if is_of_library(key):
            continue
        op, colon, dtype = key.partition(":")
        if not colon or op not in OPS:
            raise BackendBroken(f"it supports an unknown op {key!r}", where=facts.name, hint=_FIX)
        try:
            dtype_by_name(dtype)
        except GraphError as error:
            raise BackendBroken(
                f"it supports {op} on an unknown type {dtype!r}", where=facts.name, hint=_FIX
            ) from error


def _copier(
    devices: Sequence[Device], facts: Sequence[DeviceFacts], src: int, dst: int
) -> int | None:
    """Return the device that copies from ``src`` to ``dst``, or None."""
    able = [
        by
        for by, other in ((src, dst), (dst, src))
        if _truth(_asked(devices[by], "copies_with", facts[other]), facts[by], "copies_with")
    ]
    return min(able, key=lambda by: facts[by].is_host, default=None)


def _asked(device: Device, method: str, other: DeviceFacts) -> Any:
    ask = getattr(device, method)
    return plugin_call(device.facts.name, f"{method}({other.name})", lambda: ask(other))


def _truth(answer: Any, facts: DeviceFacts, method: str) -> bool:
    if not isinstance(answer, bool):
        raise BackendBroken(
            f"{method} returns {answer!r} instead of bool", where=facts.name, hint=_FIX
        )
    return answer


def _wait_path(device: Device, waiter: DeviceFacts, recorder: DeviceFacts) -> WaitPath:
    """Return how the streams of ``device`` wait for events of ``recorder`` (EVT-4)."""
    if not (waiter.has_events and recorder.has_events):
        return "host"
    path: Any = _asked(device, "wait_path", recorder)
    if path not in get_args(WaitPath):
        raise BackendBroken(
            f"wait_path({recorder.name}) returns {path!r} instead of one of "
            f"{', '.join(get_args(WaitPath))}",
            where=waiter.name,
            hint=_FIX,
        )
    answer: WaitPath = path
    return answer
