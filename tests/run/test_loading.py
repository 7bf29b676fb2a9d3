"""Loading: weights in pieces, over a ring of host memory, from files that are mapped."""

import os
import sys
import threading

import numpy as np
import pytest

from ggsched.backend.protocols import HostMemory
from ggsched.config import Settings
from ggsched.errors import DeviceFault, ModelError, OutOfDeviceMemory
from ggsched.files.mapping import map_file
from ggsched.ir.builder import GraphBuilder
from ggsched.run import loading
from ggsched.run.loading import IN_UPLOAD, MAX_READERS, RING, Loader, reader_count
from ggsched.run.store import TensorStore
from ggsched.run.weight_rows import rows_of
from ggsched.sanitize import check_trace
from ggsched.scheduler import Scheduler
from ggsched.trace.recorder import Recorder
from tests.run.devices import TestDevice

PIECE = 4096
SIZE = PIECE * (3 * RING) + 100


def far_device(**facts):
    """A device with memory of its own, to which bytes are uploaded."""
    return TestDevice(**{"is_async": True, "is_host": False, "alignment": 64, **facts})


def on_disk(tmp_path, nbytes=SIZE):
    data = np.random.default_rng(3).integers(0, 256, nbytes, np.uint8)
    data.tofile(tmp_path / "w.bin")
    return data, map_file(str(tmp_path / "w.bin"))


@pytest.fixture(params=[False, True], ids=["caller", "own thread"])
def how(request):
    """Who uploads long weights."""
    return {"own_thread": request.param}


def loaded(device, sources, **how):
    """Return what the buffers of a device hold after loading; everything is released."""
    stream = device.create_stream()
    loader = Loader((device,), lambda d: stream, timeout_s=5.0, piece_nbytes=PIECE, **how)
    buffers = [device.allocate(source.nbytes) for source in sources]
    try:
        for buffer, source in zip(buffers, sources, strict=True):
            is_array = isinstance(source, np.ndarray)
            loader.upload(0, buffer, source.data.toreadonly() if is_array else source)
        loader.begin()
        loader.close()
        held = [b.memory.copy() for b in buffers]
        assert device.open_events == []
    finally:
        loader.close()
        stream.close()
    return held


@pytest.mark.parametrize(
    "facts",
    [{}, {"has_events": False}, {"is_async": False, "snapshots_uploads": True}, {"is_host": True}],
    ids=["events", "no events", "snapshots", "host"],
)
def test_bytes_arrive(tmp_path, facts, how):
    data, mapped = on_disk(tmp_path)
    sources = [np.asarray(mapped)[7 : 7 + PIECE + 1], np.asarray(mapped), data[:50], data]
    for held, source in zip(loaded(far_device(**facts), sources, **how), sources, strict=True):
        assert np.array_equal(held, source)


@pytest.mark.parametrize("width", [24, PIECE - 8, 3 * PIECE])
@pytest.mark.parametrize("facts", [{}, {"is_host": True}], ids=["far", "host"])
def test_columns_arrive(tmp_path, facts, width, how):
    """Rows that are apart, in a file and in memory; pieces begin and end anywhere in them."""
    data, mapped = on_disk(tmp_path, 40 * (width + 16))
    wanted = data.reshape(40, width + 16)[:, 8:-8]
    sources = [rows_of(a.reshape(40, width + 16)[:, 8:-8]) for a in (np.asarray(mapped), data)]
    for held in loaded(far_device(**facts), sources, **how):
        assert np.array_equal(held, wanted.reshape(-1))


def test_columns_of_a_file_that_became_shorter(tmp_path, how):
    _, mapped = on_disk(tmp_path, 16 * PIECE)
    columns = rows_of(np.asarray(mapped).reshape(16, PIECE)[:, :1024])
    os.truncate(tmp_path / "w.bin", 15 * PIECE)
    with pytest.raises(ModelError, match=r"w\.bin: the file was truncated"):
        loaded(far_device(), [columns], **how)


@pytest.mark.parametrize(
    ("index", "shape"),
    [
        (np.s_[:, 3:5], (6, 16)),
        (np.s_[:, :, 1:3], (24, 16)),
        (np.s_[:, 1:3], (6, 128)),
        (np.s_[1:3, :, 1:3], (8, 16)),
        (np.s_[1:3, 1:2, 1:3], (2, 16)),
        (np.s_[1:3], None),
        (np.s_[..., ::2], None),
        (np.s_[::2, 1:3, 1:3], None),
    ],
)
def test_rows_of_arrays(index, shape):
    """As long as they can be; none where elements are apart, or rows in two ways."""
    whole = np.arange(6 * 4 * 8, dtype=np.float64).reshape(6, 4, 8)
    if shape == (6, 16):
        whole = whole[:, 0]
    found = rows_of(whole[index])
    assert (found and found.rows.shape) == shape
    if found:
        assert bytes(found.joined()) == whole[index].tobytes()


def test_the_next_weight_is_read_while_the_last_pieces_of_one_are(tmp_path, monkeypatch, how):
    """The first piece of the second weight is there before the last one of the first is."""
    data, mapped = on_disk(tmp_path)
    mapped = np.asarray(mapped)
    sources = [mapped[: 2 * PIECE], mapped[2 * PIECE : 4 * PIECE]]
    began, order = threading.Event(), []
    read = loading.read_bytes

    def late(source, target):
        at = (np.frombuffer(source, np.uint8).ctypes.data - mapped.ctypes.data) // PIECE
        if at == 1:
            order.append(began.wait(5))
        if at == 2:
            began.set()
        read(source, target)

    monkeypatch.setattr(loading, "read_bytes", late)
    monkeypatch.setattr(loading, "reader_count", lambda: 2)
    held = loaded(far_device(), sources, **how)
    assert order == [True]
    assert np.array_equal(np.concatenate(held), data[: 4 * PIECE])


def test_host_memory_is_that_of_a_ring(tmp_path, how):
    data, _ = on_disk(tmp_path)
    device, taken = far_device(), []

    def allocate(nbytes: int) -> HostMemory:
        taken.append(nbytes)
        return TestDevice.allocate_host(device, nbytes)

    device.allocate_host = allocate
    loaded(device, [data, data], **how)
    assert taken == [PIECE] * RING


@pytest.mark.parametrize("most", [1, 2, 5])
def test_a_ring_is_as_long_as_there_is_memory(tmp_path, most, how):
    """What is being read into is not taken again when it turns out that there is no more."""
    data, mapped = on_disk(tmp_path)
    device, taken = far_device(), []

    def allocate(nbytes: int) -> HostMemory:
        if len(taken) == most:
            raise OutOfDeviceMemory("no more host memory")
        taken.append(nbytes)
        return TestDevice.allocate_host(device, nbytes)

    device.allocate_host = allocate
    for held, source in zip(loaded(device, [mapped, data], **how), [data, data], strict=True):
        assert np.array_equal(held, source)
    assert len(taken) == most


def test_a_buffer_of_the_ring_is_not_written_before_its_upload_is_done(tmp_path, how):
    """The device holds all uploads back; the loader may read as far as the ring and no further."""
    data, _ = on_disk(tmp_path)
    device, may_write, written = far_device(), threading.Event(), []
    write = device.write_memory

    def late(memory, offset, source):
        assert may_write.wait(5)
        write(memory, offset, source)

    device.write_memory = late

    def note(memory):
        written.append(memory.nbytes)
        if len(written) == IN_UPLOAD + 1:  # the next buffer is one that the device reads
            may_write.set()

    (held,) = loaded(device, [data], note=note, **how)
    assert np.array_equal(held, data)
    assert len(written) == -(-SIZE // PIECE)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_pages_of_the_mapping_are_not_touched(tmp_path, how):
    _, mapped = on_disk(tmp_path, 4 << 20)
    loaded(far_device(), [np.asarray(mapped)], **how)
    start = mapped.__array_interface__["data"][0]
    with open("/proc/self/smaps") as file:
        lines = iter(file.read().splitlines())
    assert any(line.startswith(f"{start:x}-") for line in lines)
    resident = next(line for line in lines if line.startswith("Rss:"))
    assert int(resident.split()[1]) < 1024, resident


def test_a_file_that_became_shorter_is_named(tmp_path, how):
    _, mapped = on_disk(tmp_path)
    os.truncate(tmp_path / "w.bin", PIECE)
    with pytest.raises(ModelError, match=r"w\.bin: the file was truncated"):
        loaded(far_device(), [np.asarray(mapped)], **how)


def test_an_upload_that_fails(tmp_path, how):
    data, _ = on_disk(tmp_path)
    device = far_device()

    def bad(memory, offset, source):
        raise OSError("bus error")

    device.write_memory = bad
    with pytest.raises(DeviceFault, match="bus error"):
        loaded(device, [data], **how)
    assert device.open_events == []
    assert not [t for t in threading.enumerate() if t.name.startswith("ggsched reader")]
    assert not [t for t in threading.enumerate() if t.name == "ggsched uploads"]


def test_host_memory_for_another_device_is_read_by_threads(tmp_path):
    data, mapped = on_disk(tmp_path)
    device = far_device()
    loader = Loader((device,), lambda d: device.create_stream(), timeout_s=5, piece_nbytes=PIECE)
    target = np.zeros(SIZE, np.uint8)
    loader.read(np.asarray(mapped).data.toreadonly(), target.data)
    loader.close()
    assert np.array_equal(target, data)
    assert 1 <= reader_count() <= MAX_READERS


def big_sum():
    g = GraphBuilder("big")
    w = g.weight("w", (3 << 20,))
    return g.build(g.add(g.input("x", (3 << 20,)), w))


def test_a_trace_of_a_long_weight_is_clean():
    device, recorder, graph = far_device(), Recorder(), big_sum()
    w = np.arange(3 << 20, dtype=np.float32)
    settings = Settings(checked=True)
    with Scheduler([device], weights={"w": w}, settings=settings, recorder=recorder) as scheduler:
        (y,) = scheduler.run(graph, {"x": np.ones_like(w)}).values()
        assert np.array_equal(y, w + 1)
        report = check_trace(recorder.trace("loading"))
    assert report.is_clean, report.to_text()


@pytest.mark.parametrize("when", ["before", "during"])
def test_a_run_names_the_mapped_file_that_changed(tmp_path, when):
    values = np.ones(3 << 20, np.float32)
    values.tofile(tmp_path / "w.bin")
    mapped = map_file(str(tmp_path / "w.bin"))
    cuts = []

    def kernel(out, inputs, params):
        for cut in cuts:
            cut()
        np.copyto(out, inputs[0])

    g = GraphBuilder("big")
    w = g.weight("w", values.shape)
    graph = g.build(g.add(g.gelu(g.input("x", values.shape)), w))
    device = TestDevice(gelu=kernel, imports_host_memory=True)
    with Scheduler([device], weights={"w": mapped.view(np.float32)}) as scheduler:
        scheduler.run(graph, {"x": values})
        taken = device.facts.memory_nbytes - device.free_nbytes
        assert taken == values.nbytes, "the result; the weight is where it is mapped"

        def cut():
            os.truncate(tmp_path / "w.bin", 4096)

        if when == "before":
            cut()
        else:
            cuts.append(cut)
        with pytest.raises(ModelError, match=r"w\.bin: the file was truncated"):
            scheduler.run(graph, {"x": values})


def test_the_weight_that_cannot_be_read_is_named_and_none_stays(tmp_path):
    """It is found when the next one is requested, whose fault it is not."""
    values = np.ones(3 << 20, np.float32)
    values.tofile(tmp_path / "w.bin")
    mapped = map_file(str(tmp_path / "w.bin"))
    os.truncate(tmp_path / "w.bin", 4096)
    g, device = GraphBuilder("two"), far_device()
    x, a, b = g.input("x", values.shape), g.weight("a", values.shape), g.weight("b", values.shape)
    graph = g.build(g.add(g.add(x, a), b))
    weights = {"a": mapped.view(np.float32), "b": values}
    with Scheduler([device], weights=weights) as scheduler:
        with pytest.raises(ModelError, match="truncated") as caught:
            scheduler.run(graph, {"x": values})
        assert caught.value.__notes__ == ["while filling 'a'"]
        assert device.open_buffers == []
        assert scheduler._store.names == frozenset()


def test_a_store_is_released_when_a_file_cannot_be_read(tmp_path):
    values = np.ones(3 << 20, np.float32)
    values.tofile(tmp_path / "w.bin")
    mapped = map_file(str(tmp_path / "w.bin"))
    device = far_device()
    os.truncate(tmp_path / "w.bin", 4096)
    with Scheduler([device], weights={"w": mapped.view(np.float32)}) as scheduler:
        with pytest.raises(ModelError, match="truncated") as caught:
            scheduler.run(big_sum(), {"x": values})
        assert "while filling 'w'" in caught.value.__notes__
        assert device.open_buffers == []


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("imports", [False, True])
def test_nothing_stays_when_loading_is_cut_short(error, imports):
    """By Ctrl-C for instance, or by the caller's own code."""

    def progress(name, nbytes):
        raise error

    device = far_device(imports_host_memory=imports)
    values = np.ones(8, np.float32)
    g = GraphBuilder("sum")
    graph = g.build(g.add(g.input("x", (8,)), g.weight("w", (8,))))
    with Scheduler([device], weights={"w": values}, progress=progress) as scheduler:
        with pytest.raises(error) as caught:  # the traceback keeps what is not closed
            scheduler.run(graph, {"x": values})
        assert device.open_buffers == []
        assert scheduler._store.names == frozenset()
        assert caught.value.__traceback__ is not None


def test_the_file_is_not_asked_for_when_nothing_is_mapped():
    store = TensorStore([far_device()], {}, timeout_s=1)
    store.require_files()
    store.close()
