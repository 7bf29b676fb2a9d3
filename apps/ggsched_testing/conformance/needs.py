"""What cases need of a device. A case whose need is not met is skipped, with the reason."""

import importlib.util
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from ggsched.backend.capture import offers_capture, offers_update
from ggsched.topology.caps import capabilities, reads_peer
from ggsched_testing.conformance.context import TestContext
from ggsched_testing.conformance.exact import exact_op
from ggsched_testing.conformance.faults import can_fail
from ggsched_testing.conformance.latch import elsewhere_facts
from ggsched_testing.conformance.rules import BrokenRule

LITTLE: Final = 1 << 26
"""Bytes of memory up to which a case allocates all of it."""

THREE: Final = 3

Need = Callable[[TestContext], str]
"""Returns why a need is not met, or an empty text."""


def _declared() -> dict[str, Need]:
    """Return the needs that capabilities declare."""
    return {
        name: _fact(capability.name, value, otherwise)
        for capability in capabilities().values()
        for name, (value, otherwise) in capability.needs.items()
    }


def _events(w: TestContext) -> str:
    return NEEDS["events"](w)


def _streams(count: int) -> Need:
    def need(w: TestContext) -> str:
        most = w.device.facts.max_streams
        return "" if most >= count else f"it declares {most} streams, not {count}"

    return need


def _pair(w: TestContext) -> str:
    return "" if len(w.devices) > 1 else "there is no second device"


def _peer(w: TestContext) -> str:
    if _pair(w):
        return _pair(w)
    able = w.device.copies_with(w.other.facts)
    return "" if able else "it declares no copy path to a second one"


def _reads_peers(w: TestContext) -> str:
    if _pair(w):
        return _pair(w)
    able = reads_peer(w.device.facts, w.other.facts)
    return "" if able else "it does not read buffers of a second one"


def _third_peer(w: TestContext) -> str:
    if len(w.devices) < THREE:
        return "there is no third device"
    able = all(reads_peer(a.facts, b.facts) for a in w.devices for b in w.devices if a is not b)
    return "" if able else "three devices do not read each other's buffers"


def _no_peer(w: TestContext) -> str:
    return _pair(w) or ("" if _peer(w) else "it declares a copy path to a second one")


def _peer_wait(w: TestContext) -> str:
    if _pair(w):
        return _pair(w)
    if not (w.device.facts.has_events and w.other.facts.has_events):
        return "one of the two devices has no events"
    path = w.device.wait_path(w.other.facts)
    return "" if path != "host" else "it waits for events of a second one by the host only"


def _no_peer_wait(w: TestContext) -> str:
    return _events(w) or _pair(w) or ("" if _peer_wait(w) else "it waits for the other's events")


def _foreign_wait(w: TestContext) -> str:
    if not w.device.facts.has_events:
        return "it declares no events"
    path = w.device.wait_path(elsewhere_facts())
    return "" if path != "host" else "it declares the wait path 'host' for other backends"


def _no_foreign_wait(w: TestContext) -> str:
    return _events(w) or ("" if _foreign_wait(w) else "it waits for events of other backends")


def _foreign_copy(w: TestContext) -> str:
    able = w.device.copies_with(elsewhere_facts())
    return "" if able else "it declares no copy path to other host memory"


def _launch(w: TestContext) -> str:
    return "" if exact_op(w.device.facts) else "it declares no op that is exact on whole numbers"


def _far_offsets(w: TestContext) -> str:
    facts = w.device.facts
    if not w.harness.far_offsets:
        return "its harness makes no large buffers"
    able = min(facts.max_allocation_nbytes, facts.memory_nbytes // 4) > 1 << 31
    return "" if able else "it has too little memory for offsets beyond 2 GiB"


def _little_memory(w: TestContext) -> str:
    """Look whether a case may allocate all of it, in multiples of the alignment."""
    facts = w.device.facts
    able = facts.memory_nbytes <= LITTLE and facts.memory_nbytes % facts.alignment == 0
    return "" if able else "it has too much memory to allocate all of it"


def _update(w: TestContext) -> str:
    if not offers_capture(w.device):
        return "it offers no capture"
    stream = w.stream()
    capture = w.capture(stream)
    able = offers_update(capture)
    capture.abort()
    return "" if able else "its captures update no graph"


def _fact(name: str, value: object, otherwise: str) -> Need:
    return lambda w: "" if getattr(w.device.facts, name) == value else otherwise


def _hypothesis(w: TestContext) -> str:
    there = importlib.util.find_spec("hypothesis")
    return "" if there else "Hypothesis is not installed: pip install 'ggsched[test]'"


def _hold(w: TestContext) -> str:
    """Look for a latch only; for cases about what a stream does while it is held."""
    stream = w.stream()
    hold = w.hold(stream)
    hold.release()
    return "" if hold.is_real else "nothing can hold its streams"


def _latch(w: TestContext) -> str:
    """A latch that does not hold is a finding of EVT-4; other cases do not repeat it."""
    stream = w.stream()
    hold = w.hold(stream)
    if not hold.is_real:
        return "nothing can hold its streams"
    w.upload(stream, w.bytes(16), w.buffer(16))
    try:
        w.still_held(hold, stream)
    except BrokenRule:
        return "its streams do not stay held (see EVT-4)"
    finally:
        hold.release()
    w.sync(stream)
    return ""


def _offers(kind: str, *names: str) -> Need:
    def need(w: TestContext) -> str:
        thing = w.stream() if kind == "stream" else w.buffer(16)
        missing = [n for n in names if not hasattr(thing, n)]
        w.close(thing)
        return f"its {kind}s offer no {missing[0]}" if missing else ""

    return need


def devices_for(needs: Iterable[str]) -> int:
    """Return how many devices needs take."""
    names = tuple(needs)
    if any(n.startswith("third") for n in names):
        return THREE
    return 2 if any(n.startswith(("pair", "peer", "no peer")) for n in names) else 1


NEEDS: Final[Mapping[str, Need]] = {
    **_declared(),
    "two streams": _streams(2),
    "three streams": _streams(3),
    "pair": _pair,
    "peer copy": _peer,
    "no peer copy": _no_peer,
    "peer reads": _reads_peers,
    "third peer": _third_peer,
    "peer wait": _peer_wait,
    "no peer wait": _no_peer_wait,
    "foreign wait": _foreign_wait,
    "no foreign wait": _no_foreign_wait,
    "foreign copy": _foreign_copy,
    "launch": _launch,
    "hold": _hold,
    "latch": _latch,
    "fault": lambda w: "" if can_fail(w) else "nothing makes its commands fail",
    "hypothesis": _hypothesis,
    "fusions": lambda w: "" if w.device.facts.fusions else "it declares no patterns",
    "far offsets": _far_offsets,
    "little memory": _little_memory,
    "capture": lambda w: "" if offers_capture(w.device) else "it offers no capture",
    "update": _update,
    "dlpack": _offers("buffer", "__dlpack__", "__dlpack_device__"),
    "cuda array": _offers("buffer", "__cuda_array_interface__"),
    "cuda stream": _offers("stream", "__cuda_stream__"),
}


def need(name: str) -> Need:
    """Return a need by name; ``op NAME`` is met where any type of that op is declared."""
    kind, _, op = name.partition(" ")
    if kind != "op":
        return NEEDS[name]

    def declared(w: TestContext) -> str:
        keys = w.device.facts.ops
        return "" if any(k.partition(":")[0] == op for k in keys) else f"it declares no {op}"

    return declared
