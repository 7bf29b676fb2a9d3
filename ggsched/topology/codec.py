"""Topology files: a machine written down where it stands and planned for elsewhere.

The format is documented in ``docs/reference/topology-format.md``. ``ggsched devices --json``
writes one, as the entry ``topology`` of its object; both the object and the entry are read.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final, get_type_hints

import msgspec

from ggsched.errors import GgschedError, GraphError, PlanError
from ggsched.ir.dtype import dtype_by_name
from ggsched.ir.ops import OPS, is_of_library
from ggsched.topology.caps import DeviceFacts, WaitPath
from ggsched.topology.model import FORMAT, CopyPath, Topology

READABLE: Final = (FORMAT, "ggsched-topology/1")
"""Files of format 1 name every fact, also those that have their default."""

_AGAIN: Final = "write the file again: ggsched devices --json > FILE"


class _Paths(msgspec.Struct, frozen=True):
    """What a file says of pairs of devices."""

    copy_paths: tuple[tuple[int, int, int], ...]
    wait_paths: tuple[tuple[int, int, WaitPath], ...]


def topology_to_text(topology: Topology) -> str:
    """Return a topology as the text of a file, the same text for the same topology."""
    return json.dumps(topology.to_json(), indent=1, sort_keys=True) + "\n"


def topology_from_text(data: bytes | str, where: str = "topology") -> Topology:
    """Read a topology back; every fact is checked, as those of live devices are.

    Args:
        data: A topology, or an object with one under ``topology``.
        where: For messages, such as the path of the file.

    Raises:
        PlanError: not JSON, no topology, of another format, or with facts that cannot be true.
    """
    try:
        plain = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeError, ValueError, RecursionError) as error:
        raise _damaged(where, "not JSON", str(error)) from error
    if isinstance(plain, dict) and "format" not in plain and "topology" in plain:
        plain = plain["topology"]
    if not isinstance(plain, dict):
        raise _damaged(where, "not a topology", f"it is {json.dumps(plain)[:40]}")
    if plain.get("format") not in READABLE:
        raise _damaged(where, f"format {plain.get('format')!r} instead of {FORMAT!r}")
    try:
        return _checked(plain)
    except PlanError as error:
        raise _damaged(where, error.what, error.where or error.why) from error
    except GgschedError as error:  # facts that contradict themselves
        raise _damaged(where, "not a topology", error.one_line()) from error
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise _damaged(where, "not a topology", str(error)) from error


def restricted(topology: Topology, names: Sequence[str] | None) -> Topology:
    """Return the machine that is left of another when only some devices are used.

    Args:
        topology: The whole machine.
        names: Devices in order of priority; None for all as they are.

    Raises:
        PlanError: there is no device of that name, or it is named twice.
    """
    if names is None:
        return topology
    old = [topology.device_index(name) for name in names]
    if len(set(old)) != len(old):
        raise PlanError("a device is named twice", where=", ".join(names))
    new = {index: position for position, index in enumerate(old)}
    copies = {
        (new[p.src], new[p.dst]): CopyPath(new[p.src], new[p.dst], new[p.by])
        for p in topology.copy_paths.values()
        if p.src in new and p.dst in new
    }
    waits = {
        (new[w], new[r]): path
        for (w, r), path in topology.wait_paths.items()
        if w in new and r in new
    }
    return Topology(tuple(topology.devices[i] for i in old), copies, waits)


def _checked(plain: dict[str, Any]) -> Topology:
    _refuse_unknown("the topology", plain, ("format", "devices", "copy_paths", "wait_paths"))
    listed = msgspec.convert(plain.get("devices", []), list[dict[str, Any]])
    for device in listed:
        _refuse_unknown(f"device {device.get('name')!r}", device, get_type_hints(DeviceFacts))
    facts = tuple(msgspec.convert(device, DeviceFacts) for device in listed)
    for some in facts:
        _check_facts(some)
    paths = msgspec.convert(plain, _Paths)
    copies = {(src, dst): CopyPath(src, dst, by) for src, dst, by in paths.copy_paths}
    waits: dict[tuple[int, int], WaitPath] = {(w, r): path for w, r, path in paths.wait_paths}
    if len(copies) != len(paths.copy_paths) or len(waits) != len(paths.wait_paths):
        raise PlanError("a pair of devices has two paths")
    return Topology(facts, copies, waits)


def _refuse_unknown(what: str, plain: dict[str, Any], known: Iterable[str]) -> None:
    """Refuse what a later version may have added: it may be a promise that changes plans."""
    unknown = sorted(plain.keys() - set(known))
    if unknown:
        raise PlanError(f"{what} has an unknown entry {unknown[0]!r}")


def _check_facts(facts: DeviceFacts) -> None:
    if not facts.name or not facts.backend:
        raise PlanError("a device without a name or without a backend")
    for name in ("memory_nbytes", "max_allocation_nbytes"):
        if getattr(facts, name) < 1:
            raise PlanError(f"device {facts.name!r}: {name} is {getattr(facts, name)}")
    for key in sorted(facts.ops):
        if is_of_library(key):
            continue
        op, _, dtype = key.partition(":")
        try:
            dtype_by_name(dtype)
        except GraphError:
            op = ""
        if op not in OPS:
            raise PlanError(
                f"device {facts.name!r} supports an unknown op {key!r}",
                hint="import the module that registers it, e.g. by GGSCHED_OPS=module",
            )


def _damaged(where: str, what: str, why: str = "") -> PlanError:
    return PlanError(what, where=where, why=" ".join(why.split()), hint=_AGAIN)
