"""Making a command that is accepted and fails later (ERR-2, EVT-6)."""

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ggsched.backend.program import BoundNode, Operand
from ggsched.backend.protocols import Buffer, Event, Program, Stream
from ggsched.errors import DeviceFault
from ggsched.ir.dtype import F32, I32
from ggsched_testing.conformance.latch import HostEvent, can_wait_for_host_events

if TYPE_CHECKING:
    from ggsched_testing.conformance.context import Floats, TestContext

LABEL: Final = "n7 get_rows 'bad'"
_FAR: Final = 1000


def can_fail(w: "TestContext") -> bool:
    """Whether there is a way."""
    facts = w.device.facts
    by_rows = "get_rows:f32" in facts.ops
    return w.harness.fault is not None or by_rows or can_wait_for_host_events(w.device)


def make_fail(w: "TestContext", stream: Stream) -> str:
    """Enqueue a command that fails later; return a text that its error has to contain.

    Where enqueueing takes as long as the work, the call itself may raise the fault.
    """
    if w.harness.fault is not None:
        w.log(f"{w.name(stream)}: a command that fails")
        return w.harness.fault(stream)
    if "get_rows:f32" in w.device.facts.ops:
        return bad_rows(w, stream)
    event = HostEvent()
    with suppress(DeviceFault):
        w.wait(stream, event)
    w.log("the event of another backend fails")
    event.release(DeviceFault("made to fail", where="elsewhere"))
    return "wait"


def fails_by_name(w: "TestContext", label: str, call: Callable[..., object], *args: Any) -> None:
    """Insist that a call raises a fault that names what has failed."""
    text = w.refused(DeviceFault, call, *args).one_line()
    w.require(label in text, f"the fault does not name {label!r}: {text}")


def recorded(w: "TestContext", stream: Stream) -> Event:
    """Return an event behind a failure; the record may raise, and records nevertheless (EVT-6)."""
    event = w.event(stream.device)
    with suppress(DeviceFault):
        w.record(stream, event)
    w.require(event.is_recorded, "record on a stream with a fault did not record the event")
    return event


def bad_rows(w: "TestContext", stream: Stream) -> str:
    """Launch a lookup of a row that is not there; an id out of range is a fault (LCH-3)."""
    table, ids, out = w.buffer(64), w.buffer(4), w.buffer(16)
    w.upload(stream, np.array([_FAR], np.int32).view(np.uint8), ids)
    w.upload(stream, np.zeros(16, np.float32), table)
    w.order(stream)
    program = w.compile([lookup(table, ids, out)], stream)
    with suppress(DeviceFault):  # legal where the work is done before the call returns
        w.launch(stream, program)
    return LABEL


def compiled_lookup(
    w: "TestContext", stream: Stream, rows: "Floats", row: int
) -> tuple[Buffer, Buffer, Program]:
    """Return a program that takes one of four rows of four numbers, behind its id and result."""
    table, ids, out = (w.buffer(nbytes, stream.device) for nbytes in (64, 4, 16))
    w.put(stream, table, rows)
    w.put(stream, ids, np.array([row], np.int32).view(np.uint8))
    return ids, out, w.compile([lookup(table, ids, out)], stream)


def lookup(
    table: Buffer, ids: Buffer, out: Buffer, rows: int = 4, width: int = 4, count: int = 1
) -> BoundNode:
    """Return a node that takes rows of a table."""
    strides = (4 * width, 4)
    return BoundNode(
        7,
        "get_rows",
        (
            Operand(table, 0, 4 * rows * width, F32, (rows, width), strides),
            Operand(ids, 0, 4 * count, I32, (count,), (4,)),
        ),
        Operand(out, 0, 4 * count * width, F32, (count, width), strides),
        {},
        LABEL,
    )
