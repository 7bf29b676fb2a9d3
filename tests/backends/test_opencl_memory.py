"""Memory of OpenCL devices, what they say about themselves, and their absence."""

import re
import subprocess
import sys
import threading
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest

from ggsched import GraphBuilder, Scheduler
from ggsched.backend.protocols import Backend, Buffer, Device, Event, Program, Stream
from ggsched.errors import BackendUnavailable, OutOfDeviceMemory, UsageError
from tests.backends.device_settings import cpu_device, download, node, upload, vector
from tests.backends.opencl_devices import TIMEOUT_S, opencl_device
from tests.support.errors import refused

pytestmark = pytest.mark.opencl


@pytest.fixture
def device():
    made = opencl_device()
    yield made
    made.close()


def test_facts(device):
    facts = device.facts
    assert facts.backend == "opencl"
    assert facts.name == "opencl:0"
    assert facts.kind != "cpu"
    assert facts.alignment >= 64
    assert 0 < facts.max_allocation_nbytes <= facts.memory_nbytes
    assert not facts.is_host


def test_protocols(device):
    stream, buffer = device.create_stream(), device.allocate(16)
    x = vector(buffer, 4)
    assert isinstance(device, Device)
    assert isinstance(stream, Stream)
    assert isinstance(buffer, Buffer)
    assert isinstance(device.create_event(), Event)
    assert isinstance(device.compile([node("silu", [x], x)], stream), Program)


def test_backend(device):
    from ggsched_opencl import open_backend

    backend = open_backend()
    assert isinstance(backend, Backend)
    assert backend.device_count() >= 1
    logical = backend.open_device(backend.device_count() + 1)
    assert logical.facts.name == f"opencl:{backend.device_count() + 1}"
    logical.close()
    for index in (-1, 64):
        with pytest.raises(BackendUnavailable, match=f"opencl:{index}"):
            backend.open_device(index)


def test_empty_buffers(device):
    stream = device.create_stream()
    a, b = device.allocate(0), device.allocate(0)
    stream.upload(memoryview(b""), a, 0)
    stream.copy(a, 0, b, 0, 0)
    stream.sync(TIMEOUT_S)
    assert a.nbytes == 0


def test_too_much_memory(device):
    free = device.free_nbytes
    for nbytes in (device.facts.max_allocation_nbytes + 1, 2**60):
        with pytest.raises(OutOfDeviceMemory, match=f"requested {nbytes} bytes, {free} of"):
            device.allocate(nbytes)
    most = device.facts.max_allocation_nbytes
    held = [device.allocate(most) for _ in range(free // most)]
    held.append(device.allocate(device.free_nbytes))
    with pytest.raises(OutOfDeviceMemory, match="0 of"):
        device.allocate(1)
    for buffer in held:
        buffer.close()
    assert device.free_nbytes == free
    stream = device.create_stream()
    buffer = device.allocate(16)
    upload(stream, buffer, np.ones(4, np.float32))
    assert (download(stream, buffer, 4) == 1).all()


@pytest.mark.parametrize("first", [0, 1, 2, 3])
@pytest.mark.parametrize("nbytes", [1, 2, 3, 4, 5, 1023, 200_001])
def test_fills_by_a_kernel(device, first, nbytes, monkeypatch):
    """Bytes of whole words, and of words that are filled in part."""
    monkeypatch.setattr("ggsched_opencl.queue.FILL_END", 0)
    stream, length = device.create_stream(), first + nbytes + 9
    buffer = device.allocate(length)
    before = np.arange(length, dtype=np.uint8)
    stream.upload(before.data, buffer, 0)
    stream.fill(buffer, first, nbytes, b"\x5a")
    before[first : first + nbytes] = 0x5A
    seen = np.zeros(length, np.uint8)
    stream.download(buffer, 0, seen.data)
    stream.sync(TIMEOUT_S)
    np.testing.assert_array_equal(seen, before)


def test_too_many_streams(device):
    streams = [device.create_stream() for _ in range(device.facts.max_streams)]
    with pytest.raises(UsageError, match="streams"):
        device.create_stream()
    streams[0].close()
    device.create_stream()


def test_imported_memory_is_read_in_place_and_never_written(device):
    if not device.facts.imports_host_memory:
        pytest.skip("the device does not share the memory of the host")
    stream = device.create_stream()
    for data in (np.arange(8, dtype=np.float32).tobytes(), bytearray(32), b""):
        memory = memoryview(data).toreadonly()
        buffer = device.import_host(memory)
        out = device.allocate(len(data))
        stream.copy(buffer, 0, out, 0, len(data))
        got = download(stream, out, len(data) // 4)
        np.testing.assert_array_equal(got, np.frombuffer(data, np.float32))
        with pytest.raises(UsageError, match="read-only"):
            stream.copy(out, 0, buffer, 0, len(data))
        with pytest.raises(UsageError, match="read-only"):
            stream.upload(memory, buffer, 0)
        x = vector(buffer, len(data) // 4)
        with pytest.raises(UsageError, match="read-only"):
            device.compile([node("silu", [x], x)], stream)
        y = vector(out, len(data) // 4)
        stream.launch(device.compile([node("add", [x, x], y)], stream))
        got = download(stream, out, len(data) // 4)
        np.testing.assert_array_equal(got, 2 * np.frombuffer(data, np.float32))
        buffer.close()
    assert device.free_nbytes <= device.facts.memory_nbytes


@pytest.mark.parametrize("ahead", [0, 1, 32, 100, 4096 + 64])
def test_imports_are_the_memory_of_the_host_wherever_it_lies(device, ahead):
    """Intel's runtime made a copy where the address was no multiple of 128."""
    if not device.facts.imports_host_memory:
        pytest.skip("the device does not share the memory of the host")
    n = 1 << 18
    raw = np.zeros(4 * n + (3 << 12), np.uint8)
    first = -raw.ctypes.data % 4096 + ahead
    host = raw[first : first + 4 * n]
    imported, stream = device.import_host(host.data.toreadonly()), device.create_stream()
    near, out = device.allocate(64), device.allocate(64)
    x, y = vector(imported, 16, 4 * 1000), vector(out, 16)
    numbers = np.arange(16, dtype=np.float32)
    is_whole = not ahead % 4  # kernels read elements at multiples of their size
    program = device.compile([node("add", [x, x], y)], stream) if is_whole else None
    host[x.offset : x.offset + 64] = numbers.view(np.uint8)  # behind the import and the compilation
    stream.copy(imported, x.offset, near, 0, 64)
    np.testing.assert_array_equal(download(stream, near, 16), numbers)
    seen = bytearray(64)
    stream.download(imported, x.offset, memoryview(seen))
    stream.sync(TIMEOUT_S)
    assert seen == numbers.tobytes()
    if program is None:
        with pytest.raises(UsageError, match="multiples of 4 bytes"):
            device.compile([node("add", [x, x], y)], stream)
    else:
        stream.launch(program)
        np.testing.assert_array_equal(download(stream, out, 16), 2 * numbers)


def test_a_weight_that_is_larger_than_one_buffer_is_refused_in_one_line(device, monkeypatch):
    """It was an error of the plug-in: ``import_host raised LogicError``."""
    from ggsched_opencl import driver

    if not device.facts.imports_host_memory:
        pytest.skip("the device does not share the memory of the host")

    def refuse(*arguments, **named):
        raise driver.cl.LogicError("create_buffer failed: INVALID_BUFFER_SIZE")

    monkeypatch.setattr(driver, "import_buffer", refuse)
    device.facts = replace(device.facts, max_allocation_nbytes=1 << 10)
    g = GraphBuilder()
    graph = g.build(g.mul_mat(g.weight("wide", (64, 64)), g.input("x", (1, 64))))
    weights = {"wide": np.ones((64, 64), np.float32)}
    x = np.ones((1, 64), np.float32)
    scheduled = Scheduler([device], weights=weights)
    with scheduled as scheduler, pytest.raises(OutOfDeviceMemory) as caught:
        scheduler.run(graph, {"x": x})
    line = str(caught.value)
    assert line.startswith("opencl:0: requested 16384 bytes, ")
    assert "for weight 'wide'; one buffer holds at most 1024 bytes" in line
    assert "\n" not in line


def test_a_driver_that_copies_imports_in_silence_declares_none(device, monkeypatch):
    from ggsched_opencl import driver
    from ggsched_opencl.device import facts_of

    def copied(context, memory, alignment):
        flags = driver.cl.mem_flags.READ_ONLY | driver.cl.mem_flags.COPY_HOST_PTR
        return driver.Imported(driver.cl.Buffer(context, flags, hostbuf=bytes(memory)), 0)

    found = driver.find_devices().devices[0]
    monkeypatch.setattr(driver, "import_buffer", copied)
    assert not driver._maps.__wrapped__(found.handle)
    assert not facts_of(0, replace(found, maps_host_memory=False)).imports_host_memory


def test_host_memory(device):
    view = device.allocate_host(1000)
    assert view.nbytes == 1000
    assert not view.readonly
    view[:4] = b"abcd"
    with pytest.raises(UsageError, match="not host memory"):
        device.allocate(4).host_view()


def test_copies_between_host_and_device(device):
    cpu = cpu_device(sync=True)
    stream, host, buffer = device.create_stream(), cpu.allocate(64), device.allocate(64)
    view = np.frombuffer(host.host_view(), np.float32)
    view[:] = range(16)
    stream.copy(host, 16, buffer, 32, 16)
    stream.copy(buffer, 32, host, 0, 16)
    stream.sync(TIMEOUT_S)
    np.testing.assert_array_equal(view[:8], [4, 5, 6, 7, 4, 5, 6, 7])
    fixed = cpu.import_host(memoryview(bytes(16)))
    with pytest.raises(UsageError, match="read-only"):
        stream.copy(buffer, 0, fixed, 0, 16)
    with refused("BUF-3"):
        stream.copy(host, 56, buffer, 0, 16)
    cpu.close()


def test_scratch_counts_as_memory(device):
    stream, free = device.create_stream(), device.free_nbytes
    x = device.allocate(4 * 5000)
    out = device.allocate(4 * 5000)
    from ggsched.backend.program import Operand
    from ggsched.ir.dtype import I32

    result = Operand(out, 0, out.nbytes, I32, (5000,), (4,))
    program = device.compile([node("argsort", [vector(x, 5000)], result)], stream)
    assert device.free_nbytes < free - 3 * 4 * 5000
    program.close()
    assert device.free_nbytes == free - 2 * 4 * 5000


def test_without_pyopencl(monkeypatch):
    from ggsched_opencl import open_backend

    for name in ("driver", "backend", "device", "event", "program", "queue", "times"):
        monkeypatch.delitem(sys.modules, f"ggsched_opencl.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "pyopencl", None)
    with pytest.raises(BackendUnavailable, match=r'pip install "ggsched\[opencl\]"'):
        open_backend()


def test_without_a_platform_or_a_device(device, monkeypatch):
    from ggsched_opencl import driver

    class Platform:
        name, version = "Empty", "1"

        def get_devices(self):
            raise driver.cl.RuntimeError("no device")

    monkeypatch.setattr(driver.cl, "get_platforms", lambda: [Platform(), Platform()])
    with pytest.raises(BackendUnavailable, match="none of 2 OpenCL platforms"):
        driver.find_devices()

    def none():
        raise driver.cl.LogicError("no platform")

    monkeypatch.setattr(driver.cl, "get_platforms", none)
    with pytest.raises(BackendUnavailable, match="no OpenCL platform"):
        driver.find_devices()


def test_devices_keep_their_order(device, monkeypatch):
    """Two installations of one platform come in any order."""
    from ggsched_opencl import driver

    class Chip:
        type = driver.cl.device_type.GPU
        global_mem_size, max_mem_alloc_size, mem_base_addr_align = 2**30, 2**28, 8
        max_compute_units = 4
        max_parameter_size = 1024
        max_work_group_size = 256
        extensions, host_unified_memory = "", False

        def __init__(self, name):
            self.name = name

    class Platform:
        name = "PoCL"

        def __init__(self, version, *names):
            self.version = version
            self._names = names

        def get_devices(self):
            return [Chip(name) for name in self._names]

    old, new = Platform("3.0 ", "b", "a"), Platform("3.1", "b")
    for platforms in ([old, new], [new, old]):
        monkeypatch.setattr(driver.cl, "get_platforms", lambda given=platforms: given)
        found = driver.find_devices().devices
        names = [(f.version, f.name) for f in found]
        assert names == [("3.0", "b"), ("3.0", "a"), ("3.1", "b")]
    assert found[0].alignment == 64
    assert not found[0].is_cpu


def test_a_processor_that_the_compiler_does_not_know_is_left_out(device, monkeypatch):
    """As PoCL 3.0 does with processors that are newer than its LLVM."""
    from ggsched_opencl import driver

    texts = defaultdict(list)

    class Program:
        def __init__(self, context, text):
            (asked,) = context.devices
            texts[asked].append(text)

        def build(self, *options):
            raise driver.cl.RuntimeError("failed:\n\nerror: unknown target CPU 'generic'\nmore")

    describe = driver._describe
    monkeypatch.setattr(driver, "_describe", lambda *of: replace(describe(*of), is_cpu=True))
    monkeypatch.setattr(driver.cl, "Program", Program)
    driver._compile_something.cache_clear()  # it has compiled for the fixture
    with pytest.raises(BackendUnavailable) as caught:
        driver.find_devices()
    assert texts
    for tried in texts.values():
        assert len(set(tried)) == len(tried) == 2, "another text, in case a cache is damaged"
    assert str(caught.value).count("unknown target CPU 'generic'") == len(texts)
    assert "the backend cpu" in caught.value.hint


@pytest.mark.parametrize(
    ("processor", "advice"),
    [("x86_64", r'pip install "ggsched\[opencl-intel\]"'), ("aarch64", "opencl-without-pocl")],
)
def test_advice_where_the_compiler_refuses_is_for_the_processor(
    device, monkeypatch, processor, advice
):
    from ggsched_opencl import driver

    monkeypatch.setattr(driver, "_compiler_error", lambda device: "unknown target CPU 'generic'")
    monkeypatch.setattr(driver.machine, "machine", lambda: processor)
    with pytest.raises(BackendUnavailable, match="does not support the processor") as caught:
        driver.find_devices()
    assert re.search(advice, caught.value.hint)


def test_timeout_from_the_environment(device, monkeypatch):
    from ggsched_opencl import open_backend

    monkeypatch.setenv("GGSCHED_TIMEOUT_S", "0.5")
    other = open_backend().open_device(0)
    assert other.event_timeout_s == 0.5
    other.close()
    monkeypatch.setenv("GGSCHED_TIMEOUT_S", "soon")
    with pytest.raises(UsageError, match="GGSCHED_TIMEOUT_S"):
        open_backend().open_device(0)


FIRST_COMMANDS = "from tests.backends import test_opencl_memory as t; t.first_commands()"


def first_commands(threads=4, buffers=1500, n=256):
    """Upload to each buffer from several threads at once, on a stream each."""
    device = opencl_device()
    streams = [device.create_stream() for _ in range(threads)]
    made = [device.allocate(4 * n * threads) for _ in range(buffers)]
    begin = threading.Barrier(threads)

    def work(i):
        data = memoryview(np.full(n, i, np.int32)).cast("B")
        for buffer in made:
            begin.wait(TIMEOUT_S)
            streams[i].upload(data, buffer, 4 * n * i)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for stream in streams:
        stream.sync(TIMEOUT_S)
    out = np.zeros(n * threads, np.int32)
    for buffer in made[::100]:
        streams[0].download(buffer, 0, memoryview(out).cast("B"))
        streams[0].sync(TIMEOUT_S)
        assert out.tolist() == np.repeat(np.arange(threads), n).tolist()
    device.close()


def test_first_commands_of_a_buffer_from_several_threads(device):
    """PoCL 3.0 crashed where they came at once; in a process of its own, therefore."""
    done = subprocess.run(
        [sys.executable, "-c", FIRST_COMMANDS], check=False, timeout=TIMEOUT_S, capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]


@pytest.mark.parametrize(
    ("is_cpu", "is_integrated", "kind", "processor"),
    [
        (True, False, "accelerator", "host"),
        (False, True, "integrated", ""),
        (False, False, "gpu", ""),
    ],
)
def test_kinds_of_devices(device, is_cpu, is_integrated, kind, processor):
    from ggsched_opencl import driver
    from ggsched_opencl.device import facts_of

    found = driver.find_devices().devices[0]
    facts = facts_of(0, replace(found, is_cpu=is_cpu, is_integrated=is_integrated))
    assert (facts.kind, facts.processor) == (kind, processor)
