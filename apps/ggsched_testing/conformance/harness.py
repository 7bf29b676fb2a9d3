"""What the author of a backend supplies, with defaults for all of it.

    ggsched conform mine            # no harness: devices by name, latches by foreign events
    run_conformance(Harness("mine", open=lambda count, seed: [MyDevice(i) for i in range(count)]))

A plug-in that wants more names an object ``conformance_harness`` on its backend or in the module
of its entry point. Whatever of ``open``, ``latch``, ``fault``, ``waivers``, ``timeout_s``,
``case_timeout_s``, ``grace_s`` and ``repeats`` it has takes the place of the default. It may be a
function without arguments that returns such an object, so that a plug-in imports nothing of this
package, and a mapping will do as well.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal

from ggsched.backend.plugins import REPORT, EntryPointLike, Plugin, find_plugins
from ggsched.backend.protocols import CONTRACT_VERSION, Backend, Device, Stream, Version
from ggsched.backend.registry import index_of, open_devices, parsed
from ggsched.errors import BackendBroken, BackendUnavailable, OutOfDeviceMemory, UsageError
from ggsched_testing.conformance.c_program import CLibrary
from ggsched_testing.conformance.latch import Latch, can_wait_for_host_events, hold_by_event
from ggsched_testing.conformance.watchdog import Hung, guarded

ATTRIBUTE: Final = "conformance_harness"
OPENING_TIMEOUT_S: Final = 120.0

Opener = Callable[[int, int], Sequence[Device]]
"""``open(count, seed)`` returns up to ``count`` fresh devices that can be used together."""

Fault = Callable[[Stream], str]
"""Enqueues a command that is accepted and fails later; returns a text that names it."""


@dataclass(frozen=True, slots=True)
class Waiver:
    """Something that a backend is known not to do.

    Attributes:
        match: A rule id, the name of a case, or a pattern of either (``EVT-*``).
        reason: Why; it is mandatory.
        kind: ``xfail``: the cases run, and one that passes is an error. ``unsupported``: they do
            not run; a waiver for cases that are skipped anyway is an error.
    """

    match: str
    reason: str
    kind: Literal["unsupported", "xfail"] = "xfail"

    def __post_init__(self) -> None:
        if not self.reason.strip():
            raise UsageError("a waiver needs a reason", where=self.match)
        if self.kind not in ("unsupported", "xfail"):
            raise UsageError(f"{self.kind!r} is not a kind of waiver", where=self.match)


@dataclass(frozen=True, slots=True)
class Harness:
    """How to open a backend's devices and how to hold them.

    Attributes:
        name: For people, e.g. ``"opencl:0"``.
        open: Opens fresh devices; the kit closes them. Fewer than requested is legal, and then
            cases of two devices are skipped. The seed is for backends that make choices.
        latch: Holds a stream until it is released, without blocking the caller, or None if that
            cannot be done. By default a foreign event, where the device waits for those.
        fault: Makes a command that fails later. By default an id out of range, or a foreign event
            that fails.
        waivers: What is known not to work.
        timeout_s: How long to wait for what has to come; the kit never waits without it.
        case_timeout_s: A case that makes no call for so long counts as hanging.
        grace_s: For how long a held stream is watched. The verdict on a correct device does not
            depend on it; a broken one needs a moment to show itself.
        repeats: How often each case runs, with seeds that follow each other.
        far_offsets: Whether buffers of gigabytes may be made, of which some bytes are used.
        is_isolated: Whether cases run in a process of their own, because the backend may end it.
        c_library: The library as programs in C call it, if failures can be shown in C.
        contract: Version of the contract that the backend was written against; later cases are
            skipped. An installed backend's own unless given.
    """

    name: str
    open: Opener
    latch: Callable[[Stream], Latch | None] | None = None
    fault: Fault | None = None
    waivers: tuple[Waiver, ...] = ()
    timeout_s: float = 10.0
    case_timeout_s: float = 60.0
    grace_s: float = 0.01
    repeats: int = 1
    far_offsets: bool = True
    is_isolated: bool = False
    c_library: CLibrary | None = None
    contract: Version = CONTRACT_VERSION

    @classmethod
    def named(
        cls,
        spec: str,
        *,
        allow: Sequence[str] | None = None,
        entry_points: Sequence[EntryPointLike] | None = None,
    ) -> "Harness":
        """Return the harness of an installed backend, its own or the default.

        Args:
            spec: ``backend``, ``backend:index`` or ``backend:name``.
            allow: Backends that may be used.
            entry_points: Take the place of the installed ones.

        Raises:
            UsageError: the name makes no sense, or nothing of that name is installed.
            BackendUnavailable: it cannot be used here.
            BackendBroken: the plug-in is defective.
        """
        name, which, part = parsed(spec)
        plugins = find_plugins(entry_points)
        known = sorted({plugin.name for plugin in plugins})
        if name not in known:
            raise UsageError(
                f"no backend {name!r} is installed", hint=f"installed: {', '.join(known) or 'none'}"
            )
        which = which or "0"

        def spec_of(i: int) -> str:
            """Return the name of another device: by number, or on the same one by part."""
            if part is None and which.isdigit():
                return f"{name}:{int(which) + i}"
            other = i if part is None else part + i
            return f"{name}:{which}" if part is None and not i else f"{name}:{which}/{other}"

        # Each case opens devices; what is installed is looked up once for all of them.
        points = [plugin.entry_point for plugin in plugins]

        def open_named(count: int, seed: int) -> Sequence[Device]:
            specs = [spec_of(i) for i in range(count)]
            while True:
                try:
                    return open_devices(specs, allow=allow, entry_points=points)
                except (BackendUnavailable, OutOfDeviceMemory, UsageError):
                    if len(specs) == 1:
                        raise
                    specs.pop()  # cases that need a second device are skipped without it

        plugin = next(p for p in plugins if p.name == name)
        backend = _loaded(plugin)
        index_of(backend, which)  # refuses other names
        plain = cls(spec_of(0), open_named, contract=backend.contract_version)
        return adapted(plain, _own(plugin, backend))

    def hold(self, stream: Stream) -> Latch | None:
        """Hold a stream, or return None if there is no way."""
        if self.latch is not None:
            return self.latch(stream)
        return hold_by_event(stream) if can_wait_for_host_events(stream.device) else None


def adapted(harness: Harness, own: Any) -> Harness:
    """Return a harness with whatever a plug-in's own object has in place of the defaults.

    Raises:
        UsageError: a waiver that is none.
    """
    if own is None:
        return harness
    if callable(own) and not isinstance(own, Harness | Mapping):
        own = own()
    names = [f.name for f in fields(Harness) if f.name != "name"]
    changes: dict[str, Any] = {}
    for name in names:
        value = own.get(name) if isinstance(own, Mapping) else getattr(own, name, None)
        if value is not None:
            changes[name] = value
    if "waivers" in changes:
        changes["waivers"] = tuple(map(_waiver, changes["waivers"]))
    return replace(harness, **changes)


def _waiver(given: Any) -> Waiver:
    """Read a waiver, also from plain data: (match, reason) or (match, reason, kind)."""
    if isinstance(given, Waiver):
        return given
    try:
        return Waiver(*given)
    except TypeError as error:
        raise UsageError(
            f"{given!r} is not a waiver", hint="write (rule or case, reason, 'xfail')"
        ) from error


def _loaded(plugin: Plugin) -> Backend:
    """Return the backend of a plug-in, unless opening it takes too long."""
    name = plugin.name
    loaded: list[Backend] = []
    try:
        error = guarded(lambda: loaded.append(plugin.load()), OPENING_TIMEOUT_S, f"opens {name}")
    except Hung as hung:
        raise BackendBroken(f"opening it hangs: {hung}", where=name, hint=REPORT) from hung
    if error is not None:
        raise error
    return loaded[0]


def _own(plugin: Plugin, backend: Backend) -> Any:
    """Return what a plug-in has under ``conformance_harness``, or None."""
    own = getattr(backend, ATTRIBUTE, None)
    if own is not None:
        return own
    opener = plugin.entry_point.load()
    module = sys.modules.get(getattr(opener, "__module__", ""))
    return getattr(module, ATTRIBUTE, None)
