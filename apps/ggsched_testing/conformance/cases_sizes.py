"""BUF, CPY, FIL: any length at any offset, many buffers, and the last byte of the memory."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import numpy as np

from ggsched.backend.protocols import Buffer
from ggsched.errors import DeviceFault, OutOfDeviceMemory, UsageError
from ggsched_testing.conformance.case import case
from ggsched_testing.conformance.context import NBYTES, TestContext
from ggsched_testing.conformance.faults import make_fail

LARGE: Final = (1 << 21) + 4093
"""Length of a buffer in which lengths and offsets beyond 2^16 and 2^20 have room."""

STEPS: Final = 14

# --- regions of any length --------------------------------------------------------------------


def _regions(w: TestContext, room: int, unit: int = 1) -> Iterator[tuple[int, int]]:
    """Yield (offset, length) pairs around powers of two, in random order."""
    powers = [1 << k for k in (12, 16, 16, 17, 20, 20)]
    for i in range(STEPS):
        base = powers[i % len(powers)]
        nbytes = base + int(w.rng.integers(-3, 4)) if i % 3 else int(w.rng.integers(1, base))
        most = room - nbytes
        offset = int(w.rng.choice([0, *(p for p in powers if p < most)])) if i % 2 else most
        offset = min(max(0, offset + int(w.rng.integers(-5, 6))), most)
        yield offset // unit * unit, max(nbytes // unit * unit, unit)


@case("CPY-2", "Uploads, copies and downloads of any length at any offset move their bytes.")
def cpy2_any_length_and_offset(w: TestContext) -> None:
    q = w.stream()
    x, y = w.buffer(LARGE), w.buffer(LARGE)
    source, model = w.bytes(LARGE), w.bytes(LARGE)
    w.put(q, x, source)
    w.put(q, y, model.copy())
    source = source.copy()
    for i, (a, n) in enumerate(_regions(w, LARGE)):
        b = int(w.rng.choice([0, a, LARGE - n, min(LARGE - n, (1 << 20) + 1)]))
        match i % 3:
            case 0:
                w.copy(q, x, a, y, b, n)
                model[b : b + n] = source[a : a + n]
            case 1:
                data = w.bytes(n)
                w.upload(q, data, x, b)
                source[b : b + n] = data
            case _:
                seen = w.download(q, y, a, n)
                w.sync(q)
                w.equal(seen, model[a : a + n], f"{n} bytes at {a} of the destination")
    w.sync(q)
    w.equal(w.get(q, y), model, "the destination of copies")
    w.equal(w.get(q, x), source, "the destination of uploads")


@case("CPY-2", "A long copy within a buffer moves its bytes and no others.")
def cpy2_long_within_a_buffer(w: TestContext) -> None:
    q = w.stream()
    x, model = w.buffer(LARGE), w.bytes(LARGE)
    w.put(q, x, model.copy())
    for n in (1 << 16, (1 << 16) + 1, (1 << 20) - 1, 1 << 20):
        a, b = (0, LARGE - n) if w.rng.integers(2) else (LARGE - n, 0)
        w.copy(q, x, a, x, b, n)
        model[b : b + n] = model[a : a + n].copy()
    w.equal(w.get(q, x), model, "after long copies within a buffer")


@case("CPY-3", "Overlap is refused at any length.")
def cpy3_long_overlap(w: TestContext) -> None:
    q = w.stream()
    x, content = w.buffer(LARGE), w.bytes(LARGE)
    w.put(q, x, content.copy())
    for n in (4096, (1 << 16) - 1, 1 << 16, (1 << 16) + 1, 1 << 20):
        for shift in (0, 1, n // 2, n - 1):
            a = int(w.rng.integers(0, LARGE - n - shift))
            first, second = (a, a + shift) if w.rng.integers(2) else (a + shift, a)
            w.refused(UsageError, w.copy, q, x, first, x, second, n)
    w.equal(w.get(q, x), content, "after copies that were refused")


@case("CPY-5", "A large target is complete with its download, and is not touched later.")
def cpy5_large_targets(w: TestContext) -> None:
    q = w.stream()
    x, content = w.buffer(LARGE), w.bytes(LARGE)
    w.put(q, x, content)
    for n in ((1 << 16) + 1, 1 << 20, LARGE):
        seen = w.download(q, x, LARGE - n, n)
        w.sync(q)
        w.equal(seen, content[LARGE - n :], f"a target of {n} bytes after sync")
        w.log(f"the host rewrites {w.name(seen)}")
        seen[:] = mine = w.bytes(n)
        w.put(q, x, content[:16])
        w.equal(seen, mine, f"a target of {n} bytes after it was rewritten")


@case("FIL-1", "Fills of any length at any offset set their bytes and no others.")
def fil1_any_length_and_offset(w: TestContext) -> None:
    q = w.stream()
    x, model = w.buffer(LARGE), w.bytes(LARGE)
    w.put(q, x, model.copy())
    for i in range(3):
        unit = (1, 2, 4)[i]
        for offset, nbytes in _regions(w, LARGE - 4, unit):
            pattern = w.bytes(unit).tobytes()
            w.fill(q, x, offset, nbytes, pattern)
            model[offset : offset + nbytes] = np.frombuffer(pattern * (nbytes // unit), np.uint8)
        w.equal(w.get(q, x), model, f"after fills with patterns of {unit} bytes")


# --- regions outside --------------------------------------------------------------------------


@case("BUF-3", "Offsets and lengths that wrap in 31, 32, 63 or 64 bits are refused.")
def buf3_regions_that_wrap(w: TestContext) -> None:
    q = w.stream()
    x, y, content = w.buffer(), w.buffer(), w.bytes()
    w.put(q, x, content)
    w.put(q, y, content)
    for bits in (31, 32, 63, 64):
        edge = 1 << bits
        for offset in (edge - 4, edge, edge + 4, -edge):
            w.refused(UsageError, w.upload, q, w.bytes(8), x, offset)
            w.refused(UsageError, w.download, q, x, offset, 8)
            w.refused(UsageError, w.copy, q, x, offset, y, 0, 8)
            w.refused(UsageError, w.copy, q, y, 0, x, offset, 8)
            w.refused(UsageError, w.fill, q, x, offset, 8, b"\0")
        for nbytes in (edge - 4, edge + 8):
            w.refused(UsageError, w.copy, q, x, 0, y, 0, nbytes)
            w.refused(UsageError, w.fill, q, x, 0, nbytes, b"\0")
    w.equal(w.get(q, x), content, "after regions that were refused")
    w.equal(w.get(q, y), content, "after regions that were refused")


# --- memory -----------------------------------------------------------------------------------


@case("BUF-1", "Hundreds of buffers are apart, also where some were closed twice.")
def buf1_many_buffers(w: TestContext) -> None:
    q = w.stream()
    lines = len(w.program)
    buffers = [w.buffer(64) for _ in range(300)]
    content = [w.bytes(64) for _ in buffers]
    for buffer, data in zip(buffers, content, strict=True):
        w.upload(q, data, buffer)
    w.sync(q)
    for i in sorted(map(int, w.rng.choice(len(buffers), 40, replace=False))):
        w.close(buffers[i], buffers[i])
        buffers[i] = w.buffer(64)
        content[i] = w.bytes(64)
        w.upload(q, content[i], buffers[i])
    again = [w.buffer(64) for _ in range(40)]
    for buffer in again:
        w.upload(q, w.bytes(64), buffer)
    seen = [w.download(q, buffer) for buffer in buffers]
    w.sync(q)
    w.program[lines:] = ["300 buffers of 64 bytes, 40 of them closed twice and replaced, 40 more"]
    for i, (target, data) in enumerate(zip(seen, content, strict=True)):
        w.equal(target, data, f"buffer {i} of 300")


@case("BUF-1", "The error about too much says how much is free, what is held aside.")
def buf1_free_bytes(w: TestContext) -> None:
    held = min(w.device.facts.max_allocation_nbytes, 1 << 20)
    w.buffer(held)
    text = w.refused(OutOfDeviceMemory, w.buffer, 1 << 60).one_line()
    numbers = [int(word) for word in text.replace(",", " ").split() if word.isdigit()]
    most = w.device.facts.memory_nbytes - held
    said = numbers[1] if len(numbers) > 1 else -1
    w.require(0 <= said <= most, f"at most {most} bytes are free, and the error says: {text}")


@case("BUF-1", "All memory can be had, and not a byte more; empty buffers cost none.",
      "little memory")  # fmt: skip
def buf1_last_byte(w: TestContext) -> None:
    for _ in range(2):
        held = _all_memory(w)
        w.refused(OutOfDeviceMemory, w.buffer, 1)
        held += [w.buffer(0) for _ in range(3)]
        for buffer in held:
            w.close(buffer, buffer)


@case("BUF-1", "After a fault the memory of closed buffers can be had again.", "little memory",
      "fault")  # fmt: skip
def buf1_memory_after_a_fault(w: TestContext) -> None:
    q = w.stream()
    make_fail(w, q)
    with suppress(DeviceFault):
        w.sync(q)
    unit = w.device.facts.alignment
    half = w.device.facts.memory_nbytes // 4 // unit * unit
    for _ in range(8):
        w.close(w.buffer(half))


def _all_memory(w: TestContext) -> list[Buffer]:
    """Allocate every byte, after asking for one too many."""
    facts = w.device.facts
    left, held = facts.memory_nbytes, [w.buffer(0), w.buffer(0)]
    while left:
        n = min(left, facts.max_allocation_nbytes)
        if n == left:
            w.refused(OutOfDeviceMemory, w.buffer, n + 1)
            if n > 4 * facts.alignment:
                n = n // 2 // facts.alignment * facts.alignment
        held.append(w.buffer(n))
        left -= n
    return held


@case("BUF-4", "The view of a large buffer is its memory.", "host memory")
def buf4_view_of_a_large_buffer(w: TestContext) -> None:
    q = w.stream()
    x, data = w.buffer(LARGE), w.bytes(LARGE)
    view = x.host_view()
    w.put(q, x, data)
    w.equal(np.frombuffer(view, np.uint8), data, "a view from before the upload")
    mine = w.bytes(4)
    view[LARGE - 4 :] = mine.data
    w.equal(w.get(q, x, LARGE - NBYTES)[-4:], mine, "downloaded after writing through the view")
