"""Mutants made by operators: what a stream does with one kind of call under one condition.

    for mutant in operator_mutants(SIM, count=100, seed=7):
        print(mutant.name)  # e.g. "copy is cut short from 65536 bytes on"

No mutant is written for a case. An operator changes a call, a trigger selects the calls that are
changed, and the bound of a trigger is drawn. Calls that a device has to refuse reach it unchanged.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Final

import numpy as np

from ggsched.backend import checks
from ggsched.errors import GgschedError
from ggsched_testing.conformance import Harness
from tests.mutants.baselines import Baseline
from tests.mutants.mutant import CASE_TIMEOUT_S, broken, graft, hook

TRANSFERS: Final = ("upload", "download", "copy", "fill")
COMMANDS: Final = (*TRANSFERS, "launch", "replay", "record", "wait", "barrier")
MAX_EXPONENT: Final = 22
MAX_STREAM: Final = 4
MAX_CALLS: Final = 600


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a stream, as triggers see it.

    Attributes:
        nbytes: Bytes that a transfer moves; 0 for other commands.
        offsets: Offsets of a transfer.
        devices: Devices of its buffers.
        number: Calls of the same method before it.
        depth: Commands of the stream since the last ``sync``.
        waits: Waits of the stream before it.
        stream: Streams of the device that were made before this one.
    """

    nbytes: int
    offsets: tuple[int, ...]
    devices: tuple[object, ...]
    number: int
    depth: int
    waits: int
    stream: int


Trigger = Callable[[Any, Call, int], bool]
"""Whether a call of a stream is changed, by a bound."""

TRIGGERS: Final[Mapping[str, tuple[str, Trigger]]] = {
    "always": ("", lambda q, c, bound: True),
    "size": ("from {} bytes on", lambda q, c, bound: c.nbytes >= bound),
    "offset": ("at offsets from {} on", lambda q, c, bound: max(c.offsets, default=0) >= bound),
    "unaligned": (
        "at bytes that are no multiple of {}",
        lambda q, c, bound: any(n % bound for n in (c.nbytes, *c.offsets)),
    ),
    "count": ("behind {} such calls", lambda q, c, bound: c.number >= bound),
    "depth": ("with {} commands in flight", lambda q, c, bound: c.depth >= bound),
    "waits": ("behind {} waits", lambda q, c, bound: c.waits >= bound),
    "stream": ("on all streams behind the first {}", lambda q, c, bound: c.stream >= bound),
    "peer": (
        "with a buffer of a peer",
        lambda q, c, bound: any(d is not q.device for d in c.devices),
    ),
}
"""By class: how a mutant's name says it, and the condition."""

EXCHANGED: Final = "is exchanged with the next"
BEFORE: Final = "returns the one before"

OPERATORS: Final[Mapping[str, tuple[str, ...]]] = {
    "is dropped": (*TRANSFERS, "launch", "replay", "wait", "buffer.close"),
    "is cut short": (*TRANSFERS, "device.allocate", "device.compile"),
    "is shifted": TRANSFERS,
    EXCHANGED: (*TRANSFERS, "launch"),
    "is put off until sync": (*TRANSFERS, "launch"),
    "runs on another stream": (*TRANSFERS,),
    "does not block": ("sync", "event.sync"),
    "is said to be done": ("is_done", "event.is_done"),
    BEFORE: ("device.allocate", "device.create_event", "device.create_stream"),
}
"""By operator, the methods to which it applies: a stream's, unless they name another owner."""


@dataclass(frozen=True, slots=True)
class OperatorMutant:
    """A device of which one method does something else under a condition.

    Attributes:
        baseline: The good device.
        method: Method of a stream; or of events, buffers or the device, with that in front.
        operator: Name in ``OPERATORS``.
        trigger: Name in ``TRIGGERS``: the class of the mutant.
        bound: Of the trigger.
    """

    baseline: Baseline
    method: str
    operator: str
    trigger: str
    bound: int

    @property
    def name(self) -> str:
        """What is wrong with it."""
        when = TRIGGERS[self.trigger][0].format(self.bound)
        return " ".join(f"{self.method} {self.operator} {when}".split())

    def meets(self, stream: Any, call: Call) -> bool:
        """Whether a call meets the condition."""
        return TRIGGERS[self.trigger][1](stream, call, self.bound)

    def harness(self) -> Harness:
        """Return what the conformance kit needs to run on it."""
        return replace(broken(self.baseline.harness(), self.name, self.mutate), repeats=1)

    def mutate(self, device: Any) -> None:
        """Break an open device of the baseline's kind."""
        if hasattr(device, "event_timeout_s"):
            device.event_timeout_s = CASE_TIMEOUT_S
        if "." in self.method:
            _lay_over_objects(self, device)
            return
        made: list[Any] = []
        parts: list[type] = []
        create = device.create_stream

        def create_stream() -> Any:
            stream = create()
            if not parts:
                parts.append(_part(self, made, [m for m in COMMANDS if hasattr(stream, m)]))
            made.append(graft(stream, parts[0]))
            return stream

        device.create_stream = create_stream


def operator_mutants(baseline: Baseline, number: int, seed: int) -> list[OperatorMutant]:
    """Draw different mutants, equally many of each trigger."""
    rng = np.random.default_rng(seed)
    pairs = {t: [(o, m) for o, ms in OPERATORS.items() for m in ms if _fits(o, m, t)]
             for t in TRIGGERS}  # fmt: skip
    found: dict[str, OperatorMutant] = {}
    for i in range(4 * number):
        trigger = list(TRIGGERS)[i % len(TRIGGERS)]
        operator, method = pairs[trigger][int(rng.integers(len(pairs[trigger])))]
        mutant = OperatorMutant(baseline, method, operator, trigger, _bound(trigger, rng))
        if len(found) < number:
            found.setdefault(mutant.name, mutant)
    return list(found.values())


def _fits(operator: str, method: str, trigger: str) -> bool:
    match trigger:
        case "size":
            return method in (*TRANSFERS, "device.allocate", "buffer.close")
        case "offset" | "unaligned":
            return method in TRANSFERS
        case "peer":
            return method == "copy"
        case "count":
            return method not in ("sync", "is_done")
        case "always":
            return True
        case _:
            return "." not in method


def _bound(trigger: str, rng: np.random.Generator) -> int:
    match trigger:
        case "size" | "offset":
            return 1 << int(rng.integers(8, MAX_EXPONENT + 1))
        case "unaligned":
            return int(rng.choice([2, 4, 8, 16]))
        case "count" | "depth":
            return int(MAX_CALLS ** rng.random())
        case "waits":
            return int(64 ** rng.random())
        case "stream":
            return int(rng.integers(1, MAX_STREAM))
        case _:
            return 0


class Operated:
    """Laid over the streams of a device: calls that meet the condition are changed."""

    mutant: OperatorMutant
    made: list[Any]

    def begin(self: Any) -> None:
        """Count from zero."""
        self.number, self.depth, self.waits, self.place = 0, 0, 0, len(self.made)
        self.late = list[tuple[str, tuple[Any, ...]]]()

    def sync(self: Any, timeout_s: float) -> None:
        """Wait, after what was put off."""
        self._flush()
        is_changed = self.mutant.method == "sync" and self._is_triggered()
        self.depth = 0
        if not is_changed:
            self._plain("sync", (timeout_s,))

    @property
    def is_done(self: Any) -> bool:
        """Whether all is complete, or said to be."""
        if self.mutant.operator == EXCHANGED:
            self._flush()
        done = bool(getattr(super(), "is_done"))  # noqa: B009
        return done or (self.mutant.method == "is_done" and self._is_triggered())

    def close(self: Any) -> None:
        """Enqueue what was put off, and close."""
        if not self.is_closed:
            with suppress(GgschedError):  # the stream may have failed
                self._flush()
        self._plain("close", ())

    def _is_triggered(self: Any) -> bool:
        return not self.is_closed and self.mutant.meets(self, _seen(self, "", ()))

    def _flush(self: Any) -> None:
        late, self.late = self.late, []
        for method, args in late:
            self._plain(method, args)

    def _plain(self: Any, method: str, args: tuple[Any, ...]) -> Any:
        return getattr(super(), method)(*args)

    def _call(self: Any, method: str, args: tuple[Any, ...]) -> Any:
        """Make a call, changed if the operator is about it; see what was put off."""
        mutant, seen = self.mutant, _seen(self, method, args)
        is_changed = method == mutant.method and mutant.meets(self, seen)
        is_changed = is_changed and _is_legal(self, method, args)
        exchanges = mutant.operator == EXCHANGED
        if exchanges and self.late:
            is_changed = False  # this call is the next one
        self.number += method == mutant.method
        self.depth += 1
        self.waits += method == "wait"
        if is_changed:
            return self._changed(method, args)
        if exchanges and method not in (*TRANSFERS, "launch"):
            self._flush()  # only transfers and launches are exchanged
        result = self._plain(method, args)
        if exchanges:
            self._flush()
        return result

    def _changed(self: Any, method: str, args: tuple[Any, ...]) -> Any:
        match self.mutant.operator:
            case "is dropped":
                return None
            case "is exchanged with the next" | "is put off until sync":
                self.late.append((method, args))
                return None
            case "runs on another stream":
                others = (s for s in self.made if s is not self and not s.is_closed)
                return next(others, self)._plain(method, args)
            case "is cut short":
                return self._plain(method, _shorter(method, args))
            case _:
                return self._plain(method, _shifted(method, args))


def _lay_over_objects(mutant: OperatorMutant, device: Any) -> None:
    """Break the method of a device, or of the events or buffers that it makes."""
    owner, _, method = mutant.method.partition(".")
    calls = count()

    def is_changed(nbytes: int = 0) -> bool:
        return mutant.meets(None, Call(nbytes, (), (), next(calls), 0, 0, 0))

    class Event:
        if not hasattr(device.create_event(), "__dict__"):
            __slots__ = ()  # as those that it is laid over

        def sync(self: Any, timeout_s: float) -> None:
            if method != "sync" or not self.is_recorded or not is_changed():
                super().sync(timeout_s)  # type: ignore[misc]

        @property
        def is_done(self: Any) -> bool:
            done = bool(getattr(super(), "is_done"))  # noqa: B009
            return done or (method == "is_done" and self.is_recorded and is_changed())

    class Buffer:
        def close(self: Any) -> None:
            if self.is_closed or device.is_closed or not is_changed(self.nbytes):
                super().close()  # type: ignore[misc]

    match owner:
        case "event":
            hook(device, "create_event", Event)
        case "buffer":
            hook(device, "allocate", Buffer)
        case _:
            _change_maker(mutant, device, method, is_changed)


def _change_maker(
    mutant: OperatorMutant, device: Any, method: str, is_changed: Callable[[int], bool]
) -> None:
    make, made = getattr(device, method), list[tuple[tuple[Any, ...], Any]]()

    def changed(*args: Any) -> Any:
        nbytes = args[0] if method == "allocate" else 0
        if nbytes < 0 or device.is_closed or not is_changed(nbytes):
            made[:] = [(args, make(*args))]
        elif mutant.operator == BEFORE:
            if not made or made[0][0] != args or _is_closed(made[0][1]):
                made[:] = [(args, make(*args))]
        elif method == "compile":
            return make(args[0][:-1], *args[1:])
        else:
            return make(max(0, nbytes - 4))
        return made[0][1]

    setattr(device, method, changed)


def _is_closed(thing: Any) -> bool:
    return bool(getattr(thing, "is_closed", getattr(thing, "_is_closed", False)))


def _part(mutant: OperatorMutant, made: list[Any], commands: Sequence[str]) -> type:
    """Return the class that is laid over the streams of a device."""

    def command(method: str) -> Callable[..., Any]:
        return lambda self, *args: self._call(method, args)

    members = {name: command(name) for name in commands}
    return type("Operated", (Operated,), {"mutant": mutant, "made": made, **members})


def _seen(stream: Any, method: str, args: tuple[Any, ...]) -> Call:
    nbytes = 0
    offsets: tuple[int, ...] = ()
    buffers: tuple[Any, ...] = ()
    match method:
        case "upload":
            source, buffer, offset = args
            nbytes, offsets, buffers = _length(source), (offset,), (buffer,)
        case "download":
            buffer, offset, target = args
            nbytes, offsets, buffers = _length(target), (offset,), (buffer,)
        case "copy":
            src, a, dst, b, nbytes = args
            offsets, buffers = (a, b), (src, dst)
        case "fill":
            buffer, offset, nbytes, _ = args
            offsets, buffers = (offset,), (buffer,)
    devices = tuple(getattr(b, "device", None) for b in buffers)
    return Call(nbytes, offsets, devices, stream.number, stream.depth, stream.waits, stream.place)


def _length(memory: Any) -> int:
    return int(getattr(memory, "nbytes", 0))


_CHECKS: Final[Mapping[str, Callable[..., Any]]] = {
    "upload": checks.check_upload,
    "download": checks.check_download,
    "copy": checks.check_copy,
    "fill": checks.check_fill,
    "wait": checks.check_wait,
    "record": checks.check_record,
}


def _is_legal(stream: Any, method: str, args: tuple[Any, ...]) -> bool:
    """Whether a device may accept a call; what it has to refuse is no matter of an operator."""
    if stream.is_closed or getattr(stream.device, "is_closed", False):
        return False
    try:
        stream._require_usable()
        if method in _CHECKS:
            _CHECKS[method](stream.device, *args)
    except GgschedError:
        return False
    if method == "launch" and args[0].stream is not stream:
        return False
    return not any(getattr(thing, "is_closed", False) for thing in args)


def _shorter(method: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the call without its last bytes; four of them, which are a whole pattern."""
    match method:
        case "upload":
            return (args[0][: max(0, args[0].nbytes - 4)], *args[1:])
        case "download":
            return (*args[:2], args[2][: max(0, args[2].nbytes - 4)])
        case "copy":
            return (*args[:4], max(0, args[4] - 4))
        case _:
            return (*args[:2], max(0, args[2] - 4), args[3])


def _shifted(method: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the call four bytes further on, if they are there, else as it is."""
    match method:
        case "upload":
            moved = args[2] + 4 + args[0].nbytes <= args[1].nbytes
            return (*args[:2], args[2] + 4 * moved)
        case "download":
            moved = args[1] + 4 + args[2].nbytes <= args[0].nbytes
            return (args[0], args[1] + 4 * moved, args[2])
        case "copy":
            src, a, dst, b, n = args
            moved = a + 4 + n <= src.nbytes and src is not dst
            return (src, a + 4 * moved, dst, b, n)
        case _:
            moved = args[1] + 4 + args[2] <= args[0].nbytes
            return (args[0], args[1] + 4 * moved, *args[2:])
