"""Finds plug-ins by entry point and turns one into a ``Backend``, or says why not.

Finding reads metadata only; nothing of a plug-in is imported before it is opened. What a plug-in
does wrong is distinguished here: it cannot be used on this machine (``BackendUnavailable``), or it
is defective (``BackendBroken``), which is never hidden.
"""

import contextlib
import importlib.metadata
import os
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Protocol, TypeVar

from ggsched.backend.interrupts import is_interrupt
from ggsched.backend.protocols import CONTRACT_VERSION, MEMBERS_SINCE, Backend, Device, Version
from ggsched.backend.timeouts import event_timeout, start_thread
from ggsched.errors import BackendBroken, BackendUnavailable, OutOfDeviceMemory

GROUP: Final = "ggsched.backends"
REPORT: Final = "report this to the author of the plug-in"
T = TypeVar("T")


class EntryPointLike(Protocol):
    """What is needed of an entry point; tests pass their own."""

    @property
    def name(self) -> str:
        """Short name of the backend."""

    def load(self) -> Any:
        """Import the plug-in and return its function."""


class WrongVersion(BackendBroken):
    """A plug-in that was written against another major version of the contract."""


@dataclass(frozen=True, slots=True)
class Plugin:
    """A plug-in that was found, not loaded.

    Attributes:
        name: Name of its entry point, which is the backend's name.
        entry_point: What loads it.
    """

    name: str
    entry_point: EntryPointLike

    @property
    def distribution(self) -> str:
        """Name of the installed distribution that brings it, or "": parsed from its metadata."""
        return self._distributed("name")

    @property
    def version(self) -> str:
        """Version of that distribution, or ""; parsed as well."""
        return self._distributed("version")

    def _distributed(self, what: str) -> str:
        return getattr(getattr(self.entry_point, "dist", None), what, "")

    @property
    def brought_by(self) -> str:
        """The distribution with its version, and what of it is imported."""
        place = str(getattr(self.entry_point, "value", ""))
        words = (self.distribution or "an unknown distribution", self.version)
        return " ".join(w for w in (*words, place and f"({place})") if w)

    def load(self) -> Backend:
        """Import the plug-in, call its function, and check what comes back.

        Raises:
            BackendUnavailable: it cannot be used on this machine.
            BackendBroken: it raised something else, returned no backend, or is of another version.
        """
        opener = guarded(self.name, "importing it", lambda: in_time(self.name, self._import))
        if not callable(opener):
            raise BackendBroken(
                f"its entry point names {type(opener).__name__} instead of a function",
                where=self.name,
                hint=REPORT,
            )
        backend = guarded(self.name, "opening it", opener)
        guarded(self.name, "asking for its name and version", lambda: self._check(backend))
        return backend  # type: ignore[no-any-return]  # _check has seen that it is one

    def _import(self) -> Any:
        try:
            return self.entry_point.load()
        except ModuleNotFoundError as error:
            own = getattr(self.entry_point, "value", "").partition(":")[0].partition(".")[0]
            missing = error.name or str(error)
            if missing.partition(".")[0] == own:
                raise BackendBroken(
                    f"its entry point names the module {missing!r}, which is not there",
                    where=self.name,
                    hint=f"install {self.distribution or 'its distribution'} again",
                ) from error
            raise BackendUnavailable(
                f"the module {missing!r} is not installed",
                where=self.name,
                hint=f"install what {self.distribution or self.name} requires",
            ) from error

    def _check(self, backend: Any) -> None:
        require_members(self.name, "the backend", backend, Backend)
        version = backend.contract_version
        pair = isinstance(version, tuple) and [type(n) for n in version] == [int, int]
        if not pair:
            raise BackendBroken(
                f"its contract_version is {version!r} instead of two numbers",
                where=self.name,
                hint=REPORT,
            )
        if version[0] != CONTRACT_VERSION[0]:
            theirs, ours = (".".join(map(str, v)) for v in (version, CONTRACT_VERSION))
            side = "the plug-in" if version[0] < CONTRACT_VERSION[0] else "ggsched"
            raise WrongVersion(
                f"it is written for contract {theirs}, and this ggsched has contract {ours}",
                where=self.name,
                hint=f"install a newer version of {side}",
            )
        if backend.name != self.name:
            raise BackendBroken(
                f"it calls itself {backend.name!r}, and its entry point {self.name!r}",
                where=self.name,
                hint=REPORT,
            )


def find_plugins(entry_points: Iterable[EntryPointLike] | None = None) -> tuple[Plugin, ...]:
    """List the plug-ins that are installed, without importing any of them.

    Args:
        entry_points: Takes the place of the installed ones.
    """
    found: dict[tuple[str, str], Plugin] = {}
    given = _installed(_places()) if entry_points is None else entry_points
    for point in given:
        # The same distribution can be seen twice, e.g. installed and in the current folder.
        key = point.name, getattr(point, "value", str(id(point)))
        found.setdefault(key, Plugin(point.name, point))
    return tuple(found.values())


@lru_cache(1)
def _installed(_places: object) -> tuple[EntryPointLike, ...]:
    """Return the installed entry points; metadata is read for 10 ms, so only after a change."""
    return tuple(importlib.metadata.entry_points(group=GROUP))


def _places() -> tuple[tuple[str, int], ...]:
    """Return where distributions are looked for, and when each place last changed."""
    places = []
    for path in sys.path:
        try:
            places.append((path, os.stat(path or ".").st_mtime_ns))
        except OSError:
            places.append((path, 0))
    return tuple(places)


def in_time(
    name: str, call: Callable[[], T], timeout_s: float | None = None, doing: str = "importing it"
) -> T:
    """Return what a call returns; it is given up if it takes longer than waits for devices may.

    It has a thread of its own, which cannot be ended: it goes on, and ends with the process.

    Raises:
        BackendBroken: it does not end in time.
    """
    timeout_s = event_timeout() if timeout_s is None else timeout_s
    result: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            result.append(call())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run, name=f"ggsched: {name}: {doing}", daemon=True)
    start_thread(thread, name)
    thread.join(timeout_s)
    if failure:
        raise failure[0]
    if not result:
        raise BackendBroken(
            f"{doing} takes longer than {timeout_s:g} s",
            where=name,
            hint=f"{REPORT}; or wait longer: GGSCHED_TIMEOUT_S",
        )
    return result[0]


def guarded(where: str, doing: str, call: Callable[[], T]) -> T:
    """Call into a plug-in; whatever it raises becomes one of our errors.

    Raises:
        BackendUnavailable: the plug-in says so.
        BackendBroken: it raised something that the contract does not name.
        OutOfDeviceMemory: the plug-in says so.
    """
    try:
        return call()
    except (BackendUnavailable, BackendBroken, OutOfDeviceMemory) as error:
        if not error.where:
            error.where = where
            error.args = (error.one_line(),)
        raise
    except BaseException as error:
        if is_interrupt(error):  # SystemExit of a handler of SIGTERM, for example
            raise
        text = " ".join(str(error).split())
        raise BackendBroken(
            f"{doing} raised {type(error).__name__}" + (f": {text}" if text else ""),
            where=where,
            hint=REPORT,
        ) from error


def require_members(where: str, what: str, thing: object, protocol: type) -> None:
    """Refuse an object that lacks a member of a protocol.

    Raises:
        BackendBroken: naming the members.
    """
    flaws = member_flaws(thing, protocol)
    if flaws:
        raise BackendBroken(
            f"{what} is not a {protocol.__name__}",
            where=where,
            why=f"{type(thing).__name__} {flaws}",
            hint=REPORT,
        )


def member_flaws(thing: object, protocol: type, version: Version = CONTRACT_VERSION) -> str:
    """Return which members of a protocol an object lacks or cannot be called, or an empty text.

    Args:
        protocol: Of the contract.
        version: Of the contract that the object was written against; later members are left out.
    """
    since = {
        name: MEMBERS_SINCE.get(f"{protocol.__name__}.{name}", version) for name in vars(protocol)
    }
    names = [name for name, v in since.items() if not name.startswith("_") and v <= version]
    missing = [name for name in names if not hasattr(thing, name)]
    methods = [n for n in names if callable(vars(protocol)[n]) and n not in missing]
    no_call = [name for name in methods if not callable(getattr(thing, name))]
    flaws = [f"lacks {', '.join(missing)}"] if missing else []
    flaws += [f"cannot be called: {', '.join(no_call)}"] if no_call else []
    return " and ".join(flaws)


def _opener(backend: Backend, part: int | None) -> Callable[[int], Device]:
    """Return what opens a device of a backend, or a part of one."""
    if part is None:
        return backend.open_device
    opener = getattr(backend, "open_part", None)
    if opener is None:
        raise BackendUnavailable(
            "it has no logical devices named by a part", hint=f"write {backend.name}:0"
        )
    return lambda index: opener(index, part)


def open_checked(backend: Backend, index: int, part: int | None = None) -> Device:
    """Open a device of a backend, or a logical device on it, and check that it is one.

    Raises:
        BackendUnavailable: there is no such device.
        BackendBroken: what comes back is not a device.
        OutOfDeviceMemory: it cannot be opened for want of memory.
    """
    where = f"{backend.name}:{index}" if part is None else f"{backend.name}:{index}/{part}"
    device = guarded(where, "opening the device", lambda: _opener(backend, part)(index))
    try:
        guarded(
            where,
            "looking at the device",
            lambda: require_members(where, "the device", device, Device),
        )
    except BackendBroken:
        close = getattr(device, "close", None)
        if callable(close):
            with contextlib.suppress(Exception, SystemExit):
                close()
        raise
    return device
