"""What is installed, what of it is usable and why not, and devices by name.

No plug-in can hide: each one that is installed has a ``BackendStatus``, with a reason and a hint
where it cannot be used, and none of them can harm the others. Nothing is remembered between
calls. The names of devices are ``backend:index``, as in ``--devices opencl:0,cpu:0``, and
``backend:index/part`` where a backend has ``open_part``, as in ``cuda:0/0,cuda:0/1``. A backend
with ``device_names`` has names in place of indices, as in ``ggml:CPU``. Devices of other machines
are ``backend://machine/device``, where a backend has ``open_named``; all devices in a list are of
that backend then.
"""

import contextlib
import difflib
import logging
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Final, Literal

from ggsched.backend.plugin_calls import plugin_call
from ggsched.backend.plugins import (
    REPORT,
    EntryPointLike,
    Plugin,
    WrongVersion,
    find_plugins,
    guarded,
    in_time,
    open_checked,
)
from ggsched.backend.probe import checked_facts
from ggsched.backend.protocols import Backend, Device
from ggsched.errors import BackendBroken, BackendUnavailable, GgschedError, UsageError
from ggsched.topology.caps import DeviceFacts

State = Literal["ready", "unavailable", "broken", "blocked", "wrong version"]
_LOG: Final = logging.getLogger("ggsched")
MAX_DEVICES: Final = 1024
_BLOCKED: Final = ("GGSCHED_BACKENDS does not name it", "add it there")
_SPEC: Final = re.compile(
    r"(?P<name>[A-Za-z_][\w.-]*)"
    r"(:(?P<index>[0-9]{1,6}|[A-Za-z_][\w.:\[\]-]*)(/(?P<part>[0-9]{1,6}))?)?",
    re.ASCII,
)
_ELSEWHERE: Final = re.compile(r"(?P<name>[A-Za-z_][\w.-]*)://.*", re.ASCII)


@dataclass(frozen=True, slots=True)
class DeviceStatus:
    """A device that a backend offers.

    Attributes:
        name: As on the command line, e.g. ``"opencl:0"``.
        state: ``ready``; ``unavailable`` on this machine; ``broken``, a defect of the plug-in.
        facts: What it can do, or None where it is not ready.
        reason: Why it cannot be opened, or "".
        hint: What to do about that, or "".
    """

    name: str
    state: State
    facts: DeviceFacts | None
    reason: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class BackendStatus:
    """What is known about one installed plug-in.

    Attributes:
        name: Name of the backend.
        distribution: Distribution that brings it, or "".
        version: Version of that distribution, or "".
        state: ``ready``; ``unavailable`` on this machine; ``broken``, a defect of the plug-in;
            ``blocked`` by ``GGSCHED_BACKENDS``; of a ``wrong version`` of the contract.
        reason: Why it is not ready, or "".
        hint: What to do about that, or "".
        devices: The devices that it offers, also those that cannot be opened.
        traceback: The traceback that a broken plug-in left, or "".
        notes: What the backend says of its choice of devices: its attribute ``notes``, if any.
    """

    name: str
    distribution: str
    version: str
    state: State
    reason: str = ""
    hint: str = ""
    devices: tuple[DeviceStatus, ...] = ()
    traceback: str = ""
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the status as plain JSON data."""
        data = asdict(self)
        for device in data["devices"]:
            if device["facts"]:
                for name, value in device["facts"].items():
                    if isinstance(value, frozenset):
                        device["facts"][name] = sorted(value)
        return data


def discover(
    *,
    allow: Sequence[str] | None = None,
    entry_points: Iterable[EntryPointLike] | None = None,
) -> tuple[BackendStatus, ...]:
    """Return the status of every installed plug-in, and of every device that it offers.

    Each plug-in is loaded and each of its devices opened and closed again.

    Args:
        allow: Backends that may be used, in order of preference; the others are not loaded.
        entry_points: Take the place of the installed plug-ins.

    Raises:
        UsageError: ``allow`` names a backend that is not installed.

    Examples:
        >>> from ggsched import discover
        >>> [status.name for status in discover(allow=["cpu"]) if status.devices]
        ['cpu']
    """
    allowed, blocked = _allowed(find_plugins(entry_points), allow)
    statuses = [_status(plugin, taken) for plugin, taken in allowed]
    statuses += [_describe(plugin, "blocked", *_BLOCKED) for plugin in blocked]
    return tuple(statuses)


def offered(*, besides: Sequence[str] = ()) -> dict[str, int]:
    """Return how many devices each usable backend offers; none is opened.

    Args:
        besides: Backends that are not loaded for this.
    """
    found: dict[str, int] = {}
    for plugin, taken in _allowed(find_plugins(), None)[0]:
        if not taken and plugin.name not in besides:
            with contextlib.suppress(GgschedError):
                found[plugin.name] = _count(plugin.load())
    return found


def open_devices(
    specs: Sequence[str] | None = None,
    *,
    allow: Sequence[str] | None = None,
    entry_points: Iterable[EntryPointLike] | None = None,
    on_skip: Callable[[GgschedError], None] | None = None,
) -> list[Device]:
    """Open devices by name; the order is their priority. The caller closes them.

    Args:
        specs: Names such as ``"opencl:0"``; a name without index stands for all devices that the
            backend offers. None stands for every usable device.
        allow: Backends that may be used, in order of preference; None for all, host CPUs last.
        entry_points: Take the place of the installed plug-ins.
        on_skip: Called with the reason for each backend or device that is left out, which
            happens where ``specs`` is None only.

    Raises:
        UsageError: a name that is malformed, unknown or given twice, with what there is; ``allow``
            names an unknown backend.
        BackendUnavailable: a backend or device that is installed cannot be used here.
        BackendBroken: the plug-in is defective or of another version.
        OutOfDeviceMemory: a device cannot be opened for want of memory.

    Examples:
        >>> from ggsched import open_devices
        >>> (device,) = open_devices(["cpu:0"])
        >>> device.facts.name
        'cpu:0'
        >>> device.close()
    """
    allowed, blocked = _allowed(find_plugins(entry_points), allow)
    if specs is None:
        devices = _open_usable([plugin for plugin, taken in allowed if not taken], on_skip)
        if allow is None:
            devices.sort(key=lambda d: (d.facts.kind == "cpu", d.facts.is_host))
        return devices
    elsewhere = _elsewhere(specs)
    if elsewhere is not None:
        usable = {plugin.name: plugin for plugin, taken in allowed if not taken}
        found = _pick(elsewhere, usable, {plugin.name for plugin in blocked}).load()
        return _open_named(found, [spec.strip() for spec in specs])
    wanted = [parsed(spec) for spec in specs]
    if not wanted:
        raise UsageError("no device is named", hint="write e.g. opencl:0,cpu:0")
    usable = {plugin.name: plugin for plugin, taken in allowed if not taken}
    with _closing_on_error() as opened:
        backends: dict[str, Backend] = {}
        for name, which, part in wanted:
            if name not in backends:
                backends[name] = _pick(name, usable, {plugin.name for plugin in blocked}).load()
                _warn_of_rivals(name, allowed)
            found = backends[name]
            for i in range(_count(found)) if which is None else (index_of(found, which),):
                _refuse_twice(_name_of(found, i, part), opened)
                opened.append(_open(found, i, part))
        if not opened:
            raise BackendUnavailable(
                "it offers no device unless one is named",
                where=", ".join(specs),
                hint=_example_of(backends[wanted[0][0]]),
            )
        return list(opened)


def _allowed(
    plugins: Sequence[Plugin], allow: Sequence[str] | None
) -> tuple[list[tuple[Plugin, str]], list[Plugin]]:
    """Return the usable plug-ins, each with the owner of its name, and the blocked ones."""
    names = [plugin.name for plugin in plugins]
    for name in allow or ():
        if name not in names:
            raise UsageError(
                f"no backend {name!r} is installed",
                where="GGSCHED_BACKENDS",
                hint=_suggest(name, names, "installed"),
            )
    order = list(dict.fromkeys(names if allow is None else allow))
    first: dict[str, Plugin] = {}
    for plugin in plugins:
        first.setdefault(plugin.name, plugin)
    usable = [
        (plugin, "" if first[name] is plugin else first[name].brought_by)
        for name in order
        for plugin in plugins
        if plugin.name == name
    ]
    return usable, [plugin for plugin in plugins if plugin.name not in order]


def _describe(
    plugin: Plugin,
    state: State,
    reason: str = "",
    hint: str = "",
    devices: tuple[DeviceStatus, ...] = (),
    report: str = "",
) -> BackendStatus:
    return BackendStatus(
        plugin.name, plugin.distribution, plugin.version, state, reason, hint, devices, report
    )


def _status(plugin: Plugin, taken: str) -> BackendStatus:
    if taken:
        return _describe(
            plugin,
            "broken",
            f"its name belongs to {taken}, and {plugin.brought_by} brings one of that name too",
            "uninstall one of them",
        )
    try:
        backend = plugin.load()
        count = in_time(backend.name, partial(_count, backend), doing="counting its devices")
        devices = tuple(_device_status(backend, i) for i in range(count))
    except GgschedError as error:
        return _failure(plugin, error)
    if not devices:
        return _describe(
            plugin, "ready", "it offers no device unless one is named", _example_of(backend)
        )
    failed = [device for device in devices if device.state != "ready"]
    state: State = "ready"
    if len(failed) == len(devices):
        state = "broken" if any(d.state == "broken" for d in failed) else "unavailable"
    reason, hint = (failed[0].reason, failed[0].hint) if state != "ready" else ("", "")
    notes = tuple(str(note) for note in getattr(backend, "notes", ()))
    return replace(_describe(plugin, state, reason, hint, devices), notes=notes)


def _failure(plugin: Plugin, error: GgschedError) -> BackendStatus:
    state, cause = _state(error), error.__cause__
    lines = traceback.format_exception(cause) if state == "broken" and cause else []
    return _describe(plugin, state, _reason(error), error.hint, report="".join(lines))


def _state(error: GgschedError) -> State:
    if isinstance(error, WrongVersion):
        return "wrong version"
    return "broken" if isinstance(error, BackendBroken) else "unavailable"


def _reason(error: GgschedError) -> str:
    return " ".join(f"{error.what}: {error.why}".split()) if error.why else error.what


def _device_status(backend: Backend, index: int) -> DeviceStatus:
    name = _name_of(backend, index, None)

    def opened_and_closed() -> DeviceFacts:
        device = _open(backend, index)
        facts = device.facts
        guarded(name, "closing the device", device.close)
        return facts

    try:
        facts = in_time(name, opened_and_closed, doing="opening the device")
    except GgschedError as error:
        return DeviceStatus(name, _state(error), None, _reason(error), error.hint)
    return DeviceStatus(name, "ready", facts)


def _count(backend: Backend) -> int:
    count: Any = guarded(backend.name, "counting its devices", backend.device_count)
    if type(count) is not int or count < 0:
        raise BackendBroken(
            f"device_count returns {count!r} instead of a number", where=backend.name, hint=REPORT
        )
    if count > MAX_DEVICES:
        raise BackendBroken(
            f"device_count returns {count}",
            where=backend.name,
            why=f"no machine has more than {MAX_DEVICES} devices",
            hint=REPORT,
        )
    return count


def _open(backend: Backend, index: int, part: int | None = None) -> Device:
    """Open a device whose facts can be true and belong to it."""
    name = _name_of(backend, index, part)
    try:
        device = open_checked(backend, index, part)
    except BackendUnavailable as error:
        if part is None and index < max(_count(backend), len(_names_of(backend))):
            raise
        # Nobody promised that index: it is the name that is wrong, not the machine.
        raise UsageError(error.what, where=name, why=error.why, hint=error.hint) from error
    with _closing_on_error() as opened:
        opened.append(device)
        facts = guarded(name, "asking for its facts", lambda: checked_facts(device))
        if (facts.name, facts.backend) != (name, backend.name):
            raise BackendBroken(
                f"it calls itself {facts.name!r} of {facts.backend!r}", where=name, hint=REPORT
            )
    return device


def _open_usable(
    plugins: Sequence[Plugin], on_skip: Callable[[GgschedError], None] | None
) -> list[Device]:
    """Open every device that can be opened; report each one that cannot."""
    skipped: list[GgschedError] = []

    def skip(error: GgschedError) -> None:
        skipped.append(error)
        if on_skip:
            on_skip(error)

    with _closing_on_error() as opened:
        for plugin in plugins:
            try:
                backend = plugin.load()
                count = _count(backend)
            except GgschedError as error:
                skip(error)
                continue
            for index in range(count):
                try:
                    opened.append(_open(backend, index))
                except GgschedError as error:
                    skip(error)
        if not opened:
            raise BackendUnavailable(
                "no device can be used",
                why="; ".join(e.one_line() for e in skipped) or "no backend is installed",
                hint="see: ggsched devices",
            )
        return opened


@contextlib.contextmanager
def _closing_on_error() -> Iterator[list[Device]]:
    """Give a list for open devices; close what is in it if the body fails."""
    opened: list[Device] = []
    try:
        yield opened
    except BaseException as error:
        for device in reversed(opened):
            try:
                device.close()
            except (Exception, SystemExit) as second:
                error.add_note(f"closing a device failed as well: {second}")
        raise


def _elsewhere(specs: Sequence[str]) -> str | None:
    """Return the backend of devices of other machines; None for devices of this one."""
    matches = [_ELSEWHERE.fullmatch(spec.strip()) for spec in specs]
    names = {match["name"] if match else "" for match in matches}
    if names <= {""}:
        return None
    if len(names) > 1:
        raise UsageError(
            "devices of this machine and of others in one list",
            where=", ".join(specs),
            hint="this machine is one of the cluster too: name its devices there",
        )
    return names.pop()


def _open_named(backend: Backend, specs: Sequence[str]) -> list[Device]:
    """Open devices of other machines."""
    opener = getattr(backend, "open_named", None)
    if opener is None:
        raise UsageError(
            "its devices are those of this machine",
            where=backend.name,
            hint=f"write {backend.name}:0",
        )
    devices: list[Device] = plugin_call(backend.name, "open_named", lambda: opener(specs))
    return devices


def _example_of(backend: Backend) -> str:
    """Return how a device of a backend is named that offers none."""
    return f"write {getattr(backend, 'example', f'{backend.name}:0')}"


def _names_of(backend: Backend) -> Sequence[str]:
    """Return what a backend calls its devices, in the order of their indices; mostly nothing."""
    own: Any = backend
    if not hasattr(type(own), "device_names"):
        return ()
    names: Sequence[str] = guarded(
        own.name, "asking for the names of its devices", lambda: tuple(own.device_names)
    )
    return names


def _name_of(backend: Backend, index: int, part: int | None) -> str:
    names = _names_of(backend)
    which = names[index] if index < len(names) else index
    return f"{backend.name}:{which}" if part is None else f"{backend.name}:{which}/{part}"


def index_of(backend: Backend, which: str) -> int:
    """Return the index of a device that is named by index or by name."""
    if which.isdigit():
        return int(which)
    names = _names_of(backend)
    if which in names:
        return names.index(which)
    if not names:
        raise _malformed(f"{backend.name}:{which}")
    raise UsageError(
        f"there is no device {backend.name}:{which}", hint=_suggest(which, names, "there are")
    )


def parsed(spec: str) -> tuple[str, str | None, int | None]:
    """Return backend, index or name, and part of the name of a device, as far as it has them.

    Raises:
        UsageError: it is not one.
    """
    match = _SPEC.fullmatch(spec.strip())
    if not match:
        raise _malformed(spec)
    return match["name"], match["index"], None if match["part"] is None else int(match["part"])


def _malformed(spec: str) -> UsageError:
    return UsageError(
        f"{spec!r} is not a device", hint="write a backend and a number, as in opencl:0 or cpu:0"
    )


def _warn_of_rivals(name: str, allowed: Sequence[tuple[Plugin, str]]) -> None:
    for plugin, taken in allowed:
        if plugin.name == name and taken:
            text = "the name %s belongs to %s, and %s brings one of that name too"
            _LOG.warning(text, name, taken, plugin.brought_by)


def _pick(name: str, usable: dict[str, Plugin], blocked: set[str]) -> Plugin:
    if name in usable:
        return usable[name]
    if name in blocked:
        raise BackendUnavailable(
            f"the backend {name!r} is blocked",
            why=_BLOCKED[0],
            hint=_BLOCKED[1],
        )
    raise UsageError(
        f"no backend {name!r} is installed", hint=_suggest(name, list(usable), "installed")
    )


def _refuse_twice(name: str, opened: Sequence[Device]) -> None:
    if any(device.facts.name == name for device in opened):
        raise UsageError("a device is named twice", where=name, hint="name each device once")


def _suggest(name: str, known: Sequence[str], what: str) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    there = f"{what}: {', '.join(dict.fromkeys(known)) or 'none'}"
    return f"did you mean {near[0]}? {there}" if near else there
