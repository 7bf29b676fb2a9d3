"""TRU-1: facts, in both directions."""

from typing import Any

import numpy as np

from ggsched.backend.plugins import member_flaws
from ggsched.backend.probe import checked_facts, probe
from ggsched.backend.program import BoundNode, Operand
from ggsched.backend.protocols import Buffer, Device, Event, Stream
from ggsched.errors import GgschedError, OutOfDeviceMemory, UsageError
from ggsched.ir.dtype import F32
from ggsched.ir.ops import OPS
from ggsched.topology.caps import op_key, reads_peer
from ggsched_testing.conformance.case import case
from ggsched_testing.conformance.context import TestContext

MANY_STREAMS = 64


@case("TRU-1", "Facts have the declared types, make sense, and do not change.")
def tru1_facts_make_sense(w: TestContext) -> None:
    for device in w.devices:
        checked_facts(device)
    probe(w.devices)
    before = w.device.facts
    q = w.stream()
    w.put(q, w.buffer(), w.bytes())
    w.require(w.device.facts == before, "facts changed while the device was used")


@case("TRU-1", "What the device makes is what the protocols say, and belongs to it.")
def tru1_protocols(w: TestContext) -> None:
    q, x = w.stream(), w.buffer()
    made: list[tuple[Any, type]] = [(w.device, Device), (q, Stream), (x, Buffer)]
    if w.device.facts.has_events:
        made.append((w.event(), Event))
    for thing, kind in made:
        flaws = member_flaws(thing, kind, w.harness.contract)
        w.require(not flaws, f"{w.name(thing)} is not a {kind.__name__}: it {flaws}")
        if kind is not Device:
            w.require(thing.device is w.device, f"the device of {w.name(thing)} is another object")


@case("TRU-1", "An op that is not declared is refused when it is compiled.")
def tru1_ops_not_declared(w: TestContext) -> None:
    q, x = w.stream(), w.buffer(4096)
    vector = Operand(x, 0, 64, F32, (16,), (4,))
    missing = [op for op in OPS if op_key(op, "f32") not in w.device.facts.ops]
    for op in (*missing, "no_such_op"):
        node = BoundNode(0, op, (vector, vector), vector, {}, f"n0 {op}")
        w.refused(UsageError, w.compile, [node], q)


@case("TRU-1", "Without declared events there are none.", "no events")
def tru1_no_events(w: TestContext) -> None:
    w.refused(GgschedError, w.event)


@case("TRU-1", "As many streams as declared can be had at once, and no more.")
def tru1_stream_count(w: TestContext) -> None:
    most = w.device.facts.max_streams
    streams = [w.stream() for _ in range(min(most, MANY_STREAMS))]
    x, data = w.buffer(), w.bytes()
    for q in streams:
        w.upload(q, data, x)
        w.sync(q)
    if most <= MANY_STREAMS:
        w.refused(UsageError, w.stream)
        w.close(streams[0])
        w.put(w.stream(), x, data)


@case("TRU-1", "host memory is imported where that is declared, and read-only.", "import")
def tru1_import(w: TestContext) -> None:
    q = w.stream()
    data = w.bytes(4096)
    w.log(f"{w.name(w.device)}.import_host(host bytes)")
    imported = w.device.import_host(data.data)
    mine = w.buffer(4096)
    w.copy(q, imported, 0, mine, 0, 4096)
    w.equal(w.get(q, mine), data, "copied out of imported memory")
    w.equal(w.get(q, imported, 16, 64), data[16:80], "downloaded from imported memory")
    w.refused(UsageError, w.upload, q, w.bytes(16), imported)
    w.refused(UsageError, w.copy, q, mine, 0, imported, 0, 16)
    imported.close()
    imported.close()


@case("TRU-1", "Programs read imported memory.", "import", "launch")
def tru1_import_and_launch(w: TestContext) -> None:
    q, y = w.stream(), w.buffer()
    raw = np.zeros(4096, np.float32)
    raw[:] = w.numbers(4096)
    w.log(f"{w.name(w.device)}.import_host(host bytes)")
    imported = w.device.import_host(raw.view(np.uint8).data)
    w.launch(q, w.compute(q, [(imported, 0)], (y, 0)))
    w.equal(w.get(q, y), w.result(raw[:64]), "computed from imported memory")
    w.refused(UsageError, w.compute, q, [(y, 0)], (imported, 0))
    w.sync(q)
    imported.close()


@case("TRU-1", "Import is refused where it is not declared.", "no import")
def tru1_no_import(w: TestContext) -> None:
    data = w.bytes(64)
    w.refused(UsageError, lambda: w.device.import_host(data.data))


@case("TRU-1", "More memory than declared is refused, as much as declared is not refused lightly.")
def tru1_memory(w: TestContext) -> None:
    facts = w.device.facts
    w.require(
        facts.max_allocation_nbytes <= facts.memory_nbytes, "one buffer may exceed all memory"
    )
    w.refused(OutOfDeviceMemory, w.buffer, facts.max_allocation_nbytes + 1)
    nbytes = min(facts.max_allocation_nbytes, 1 << 24)
    w.require(w.buffer(nbytes).nbytes == nbytes, "a buffer of another length")


@case("TRU-1", "Copy paths and wait paths to other devices are answers of the declared kind.")
def tru1_paths(w: TestContext) -> None:
    others = [w.foreign(), w.foreign(is_host=False), *w.devices]
    for other in others:
        answer = w.device.copies_with(other.facts)
        w.require(isinstance(answer, bool), f"copies_with returns {answer!r}")
        path = w.device.wait_path(other.facts)
        w.require(path in ("native", "thread", "host"), f"wait_path returns {path!r}")


@case("TRU-1", "Streams of another device are refused by compile.", "pair")
def tru1_compile_for_a_foreign_stream(w: TestContext) -> None:
    theirs = w.stream(w.other)
    w.refused(UsageError, w.device.compile, [], theirs)


@case("TRU-1", "Operands of another device are refused by compile.", "pair", "launch")
def tru1_compile_with_foreign_operands(w: TestContext) -> None:
    q, mine, theirs = w.stream(), w.buffer(), w.buffer(256, w.other)
    if not reads_peer(w.device.facts, w.other.facts):  # COL-1
        w.refused(UsageError, w.compute, q, [(theirs, 0)], (mine, 0))
    w.refused(UsageError, w.compute, q, [(mine, 0)], (theirs, 0))
