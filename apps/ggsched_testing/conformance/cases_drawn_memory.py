"""BUF-1, BUF-5, CPY-6: buffers of drawn sizes, imports, and the memory of another backend."""

import mmap
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import numpy as np

from ggsched.backend.protocols import Buffer
from ggsched.errors import OutOfDeviceMemory, UsageError
from ggsched_testing.conformance.call_trace import Bytes
from ggsched_testing.conformance.case import case
from ggsched_testing.conformance.context import TestContext
from ggsched_testing.conformance.latch import HostEvent

MAX_NBYTES: Final = 70_000
MIB: Final = 1 << 20


@case("BUF-1", "Buffers of drawn sizes keep their bytes while others come and go.")
def buf1_drawn_sizes(w: TestContext) -> None:
    q, most = w.stream(), min(MIB, w.device.facts.max_allocation_nbytes)
    pool, live = w.bytes(most), dict[Buffer, Bytes]()
    for _ in range(w.draws(160, 60)):
        if live and w.rng.random() < 0.4:
            buffer = list(live)[int(w.rng.integers(len(live)))]
            w.equal(w.get(q, buffer), live.pop(buffer), "a buffer after others were closed")
            w.close(buffer)
        else:
            n = int(most ** w.rng.random())
            buffer, first = w.buffer(n), int(w.rng.integers(most - n + 1))
            live[buffer] = pool[first : first + n]
            w.upload(q, live[buffer], buffer)
    for buffer, content in live.items():
        w.equal(w.get(q, buffer), content, "a buffer among others of drawn sizes")
    for _ in range(w.draws(640, 40)):
        w.close(closed := w.buffer(int(w.rng.integers(1, 300))))
        w.refused(UsageError, w.upload, q, pool[:1], closed)
        del w.program[24:]


@case("BUF-1", "In whatever order buffers are closed, all memory can be had again at once.",
      "little memory")  # fmt: skip
def buf1_drawn_fragments(w: TestContext) -> None:
    facts = w.device.facts
    unit = max(facts.alignment, facts.memory_nbytes // 64)
    for _ in range(w.draws(6, 3)):
        held, left = list[Buffer](), facts.memory_nbytes
        while left >= unit:
            n = min(int(w.rng.integers(1, 5)) * unit, left // unit * unit)
            held.append(w.buffer(n))
            left -= n
        w.refused(OutOfDeviceMemory, w.buffer, left + 1)
        for i in w.rng.permutation(len(held)):
            w.close(held[i], held[i])
        w.close(w.buffer(min(facts.max_allocation_nbytes, facts.memory_nbytes)))


def _map(data: Bytes) -> memoryview:
    made = mmap.mmap(-1, max(1, data.size))
    made[: data.size] = data.tobytes()
    return memoryview(made)[: data.size]


OWNERS: Final[tuple[Callable[[Bytes], memoryview], ...]] = (
    lambda data: memoryview(data.tobytes()),  # read-only
    lambda data: memoryview(bytearray(data.tobytes())),
    lambda data: data.copy().data,
    lambda data: memoryview(data.tobytes()).toreadonly(),
    _map,
)
"""What the host's memory may belong to."""


@case("BUF-5", "Imports of drawn places in memory of any owner are its bytes, and are not written.",
      "import")  # fmt: skip
def buf5_drawn_imports(w: TestContext) -> None:
    q, near = w.stream(), w.buffer(MAX_NBYTES)
    for _ in range(w.draws(20, 6)):
        whole = w.bytes(int(MAX_NBYTES ** w.rng.random()) + 64)
        owner = OWNERS[int(w.rng.integers(len(OWNERS)))](whole)
        made: list[tuple[Buffer, int, int]] = []
        for _ in range(int(w.rng.integers(1, 4))):
            at = int(w.rng.integers(whole.size))
            n = int(w.rng.integers(whole.size - at + 1))
            with suppress(UsageError):  # empty memory, and odd addresses on some devices
                made.append((w.device.import_host(owner[at : at + n]), at, n))
        w.log(f"{len(made)} parts of {whole.size} host bytes are imported")
        del owner
        hold = w.hold(q)
        seen: list[tuple[Bytes, Bytes]] = []
        for x, at, n in made:
            first = int(w.rng.integers(n + 1))
            length = int(w.rng.integers(n - first + 1))
            expected = whole[at + first : at + first + length]
            w.copy(q, x, first, near, 0, length)
            seen.append((w.download(q, near, 0, length), expected))
            seen.append((w.download(q, x, first, length), expected))
            w.refused(UsageError, w.fill, q, x, 0, n, b"\0")
            w.refused(UsageError, w.upload, q, w.bytes(length), x, first)
            w.refused(UsageError, w.copy, q, near, 0, x, first, length)
        hold.release()
        w.sync(q)
        for target, expected in seen:
            w.equal(target, expected, "of an import whose owner has no other reference")
        for i in w.rng.permutation(len(made)):
            x, at, n = made[int(i)]
            w.equal(w.get(q, x), whole[at : at + n], "an import among others")
            x.close()
        del w.program[:-24]


@case("CPY-6", "Copies with another backend's memory run in their turn, behind its event.",
      "foreign copy", "foreign wait")  # fmt: skip
def cpy6_drawn_foreign_copies(w: TestContext) -> None:
    q, foreign = w.stream(), w.foreign()
    for _ in range(w.draws(12, 4)):
        n = int(MAX_NBYTES ** w.rng.random())
        theirs, mine, event = foreign.allocate(n), w.buffer(n), HostEvent()
        view = np.frombuffer(theirs.host_view(), np.uint8)
        view[:] = w.bytes(n)
        old, data = w.bytes(n), w.bytes(n)
        w.put(q, mine, old)
        at, to = (int(i) for i in w.rng.integers(n, size=2))
        length = int(w.rng.integers(n - max(at, to) + 1))
        if not w.device.facts.is_async:
            view[:] = data
            event.release()
        w.log("e = an event of another backend")
        w.wait(q, event)
        w.copy(q, theirs, at, mine, to, length)
        if w.rng.integers(2):
            w.pause()
        view[:] = data
        w.log("the other backend writes its memory, and its event is done")
        event.release()
        expected = old.copy()
        expected[to : to + length] = data[at : at + length]
        w.equal(w.get(q, mine), expected, "copied behind another backend's event")
        w.copy(q, mine, 0, theirs, 0, n)
        w.sync(q)
        w.equal(view, expected, "copied to another backend")
        theirs.close()
        w.close(mine)
        del w.program[:-24]
