"""BUF-5, BUF-6: imported host memory, and host memory that a device gives out."""

import gc

import numpy as np

from ggsched.errors import OutOfDeviceMemory, UsageError
from ggsched_testing.conformance.case import case
from ggsched_testing.conformance.context import NBYTES, TestContext

LARGE = (1 << 20) + 64

# --- BUF-5 ------------------------------------------------------------------------------------


@case("BUF-5", "What the host writes into imported memory is seen by later commands.", "import")
def buf5_host_writes_are_seen(w: TestContext) -> None:
    q = w.stream()
    for nbytes in (4096, LARGE):
        host, mine = _aligned(w, nbytes), w.buffer(nbytes)
        w.log(f"b = {w.name(w.device)}.import_host({nbytes} host bytes)")
        imported = w.device.import_host(host.data)
        for _ in range(3):
            w.copy(q, imported, 0, mine, 0, nbytes)
            w.equal(w.get(q, mine), host, "copied out of imported memory")
            host[:] = w.bytes(nbytes)
            w.log("the host rewrites it")
        imported.close()


@case("BUF-5", "Imports are the host's own memory at any address, of any length.", "import")
def buf5_any_address(w: TestContext) -> None:
    q, near = w.stream(), w.buffer()
    for start in (1, 4, 32, 64, 96, 100, 160, 4096 - 32, 4096 + 8):
        for nbytes in (NBYTES, 4096, 4097, LARGE):
            host = _aligned(w, start + nbytes)[start:]
            w.log(f"{nbytes} host bytes, {start} behind a multiple of a page, are imported")
            imported = w.device.import_host(host.data)
            for at in (0, nbytes - NBYTES):
                host[at : at + NBYTES] = w.bytes()
                w.copy(q, imported, at, near, 0, NBYTES)
                w.equal(w.get(q, near), host[at : at + NBYTES], "copied out of imported memory")
            w.equal(w.get(q, imported, 0, NBYTES), host[:NBYTES], "downloaded")
            imported.close()


@case("BUF-5", "Parts of one piece of memory are imported as they lie.", "import")
def buf5_parts(w: TestContext) -> None:
    q, unit = w.stream(), max(4096, w.device.facts.alignment)
    host = _aligned(w, 4 * unit)
    parts = [(0, 2 * unit), (unit, 2 * unit), (unit, 2 * unit), (2 * unit, unit + 4)]
    imports = [w.device.import_host(host[a : a + n].data) for a, n in parts]
    w.log("parts of host memory are imported, which overlap")
    host[:] = w.bytes(4 * unit)
    for i in (1, 2, 0, 3):
        a, n = parts[i]
        w.equal(w.get(q, imports[i]), host[a : a + n], f"bytes {a} to {a + n} of host memory")
        imports[i].close()
    w.device.import_host(host[:0].data).close()


@case("BUF-5", "Closing an import leaves host memory alone, and other imports of it.", "import")
def buf5_closed(w: TestContext) -> None:
    q, host = w.stream(), _aligned(w, 4096)
    before = host.copy()
    first, second = (w.device.import_host(host.data) for _ in range(2))
    w.log("the same host memory is imported twice; the first import is closed twice")
    first.close()
    first.close()
    w.equal(host, before, "host memory after its import was closed")
    w.equal(w.get(q, second), before, "a second import of the same memory")
    w.refused(UsageError, lambda: w.download(q, first))
    second.close()
    w.equal(host, before, "host memory after its imports were closed")


@case("BUF-5", "An import keeps host memory alive.", "import")
def buf5_kept(w: TestContext) -> None:
    q, host = w.stream(), _aligned(w, 4096)
    expected = host.copy()
    imported = w.device.import_host(host.data)
    del host
    gc.collect()
    litter = [_aligned(w, 4096) for _ in range(16)]
    w.equal(w.get(q, imported), expected, "imported memory that nobody else refers to")
    imported.close()
    del litter


@case("BUF-5", "Imports are none of the device's memory.", "import", "little memory")
def buf5_no_memory_of_the_device(w: TestContext) -> None:
    facts = w.device.facts
    host = _aligned(w, facts.memory_nbytes // 4)
    imports = [w.device.import_host(host.data) for _ in range(6)]
    w.log("more is imported than the device has memory")
    left = facts.memory_nbytes
    while left:
        n = min(left, facts.max_allocation_nbytes)
        w.buffer(n)
        left -= n
    for imported in imports:
        imported.close()


@case("BUF-5", "Host memory that is not contiguous is refused.", "import")
def buf5_refused(w: TestContext) -> None:
    w.refused(UsageError, w.device.import_host, memoryview(bytes(64))[::2])
    w.refused(UsageError, w.device.import_host, w.numbers().data)


def _aligned(w: TestContext, nbytes: int) -> np.ndarray:
    """Return random host bytes at a multiple of the alignment, as an import may need."""
    step = max(4096, w.device.facts.alignment)
    raw = np.zeros(nbytes + step, np.uint8)
    start = -raw.ctypes.data % step
    host = raw[start : start + nbytes]
    host[:] = w.bytes(nbytes)
    return host


# --- BUF-6 ------------------------------------------------------------------------------------


@case("BUF-6", "Host memory of a device has its length, is aligned, writable and apart.")
def buf6_lengths(w: TestContext) -> None:
    lengths = [0, 1, 63, NBYTES, 4097, NBYTES, 1 << 16, LARGE]
    views = [w.device.allocate_host(n) for n in lengths]
    w.log(f"host memory of {lengths} bytes")
    content = [w.bytes(n) for n in lengths]
    for view, n, data in zip(views, lengths, content, strict=True):
        w.require(view.nbytes == n, f"{view.nbytes} bytes instead of {n}")
        w.require(not view.readonly, "the view is read-only")
        view[:] = data.data
        if n:
            wrong = np.frombuffer(view, np.uint8).ctypes.data % w.device.facts.alignment
            w.require(not wrong, f"{n} bytes are {wrong} bytes off the alignment")
    for view, data in zip(views, content, strict=True):
        w.equal(np.frombuffer(view, np.uint8) if view.nbytes else data, data, "host memory")


@case("BUF-6", "Commands use host memory of a device as any other.")
def buf6_transfers(w: TestContext) -> None:
    q, x = w.stream(), w.buffer()
    for _ in range(3):
        source, target = w.device.allocate_host(NBYTES), w.device.allocate_host(NBYTES)
        data = w.bytes()
        source[:] = data.data
        w.log("upload and download by way of host memory of the device")
        q.upload(source, x, 0)
        q.download(x, 0, target)
        w.sync(q)
        w.equal(np.frombuffer(target, np.uint8), data, "downloaded to host memory of the device")


@case("BUF-6", "It is not reused while a command or a view made of it is left.")
def buf6_not_reused_early(w: TestContext) -> None:
    part, kept = w.device.allocate_host(NBYTES)[16:32], w.bytes(16)
    part[:] = kept.data
    _allocate_others(w)
    w.equal(np.frombuffer(part, np.uint8), kept, "a part of a view that is forgotten")
    array, own = np.frombuffer(w.device.allocate_host(NBYTES), np.uint8)[16:32], w.bytes(16)
    array[:] = own
    _allocate_others(w)
    w.equal(array, own, "an array of a view that is forgotten")
    q, x = w.stream(), w.buffer()
    w.put(q, x, w.bytes())
    hold = w.hold(q)
    view, data = w.device.allocate_host(NBYTES), w.bytes()
    view[:] = data.data
    w.log("an upload from host memory of the device, to which nobody else refers")
    q.upload(view, x, 0)
    del view
    _allocate_others(w)
    hold.release()
    w.equal(w.get(q, x), data, "uploaded from memory that only the command refers to")


def _allocate_others(w: TestContext) -> None:
    """Allocate and write more host memory, which is given back at once."""
    gc.collect()
    for other in [w.device.allocate_host(NBYTES) for _ in range(8)]:
        other[:] = w.bytes().data


@case("BUF-6", "It outlives its device.")
def buf6_outlives_its_device(w: TestContext) -> None:
    view = w.device.allocate_host(NBYTES)
    data = w.bytes()
    view[:] = data.data
    w.close(w.device)
    w.equal(np.frombuffer(view, np.uint8), data, "host memory of a device that was closed")
    view[:4] = data[4:8].data


@case("BUF-6", "A negative length is refused, and so is too much.")
def buf6_refused(w: TestContext) -> None:
    w.refused(UsageError, w.device.allocate_host, -1)
    w.refused(OutOfDeviceMemory, w.device.allocate_host, 1 << 60)
    w.require(w.device.allocate_host(16).nbytes == 16, "nothing is left after too much")
