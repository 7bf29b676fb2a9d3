"""Programs of kinds that were once judged wrongly, each broken and mended, by the simulation."""

import ctypes
import hashlib
import io
import pickle
import struct
import sys
from collections import namedtuple
from contextlib import nullcontext
from copy import copy, deepcopy
from operator import methodcaller

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is in the extra 'torch'")

from ggsched.errors import UsageError  # noqa: E402
from ggsched_race.foreign_array import shared_array  # noqa: E402
from ggsched_race.watch import declare, watch  # noqa: E402

CUDA = torch.device("cuda")
Shape = namedtuple("Shape", "rows columns")


def verdict(program, mended):
    with watch("kinds", simulate=True, raises=False) as watched:
        program(mended)
    assert watched.report.is_clean == mended, watched.report.to_text()


def settle():
    torch.cuda.synchronize()


def here():
    return torch.cuda.current_stream()


# --- the host and arrays of numpy -----------------------------------------------------------------

READS = {
    **{
        name: methodcaller(name)
        for name in (
            *("argmax", "argmin", "argsort", "copy", "cumprod", "cumsum", "dumps", "flatten"),
            *("max", "mean", "min", "nonzero", "prod", "round", "std", "sum", "tobytes", "tolist"),
        )
    },
    "item with a place": lambda a: a.item(2),
    "repeat": lambda a: a.repeat(2),
    "take": lambda a: a.take([1, 2]),
    "dot with itself": lambda a: a.dot(a),
    "trace of a matrix": lambda a: a.reshape(2, 4).trace(),
    "copy that ravel makes": lambda a: a.reshape(2, 4).T.ravel(),
    "searchsorted": lambda a: a.searchsorted(3),
    "compress": lambda a: a.compress([1, 0, 1]),
    "choose": lambda a: (a % 2).choose([1, 2]),
    "np.array": lambda a: np.array(a),
    "np.asarray, then a sum": lambda a: np.asarray(a).sum(),
    "np.ascontiguousarray": lambda a: np.ascontiguousarray(a[::2]),
    "np.asarray by name, then a sum": lambda a: np.asarray(a=a).sum(),
    "np.array of a list": lambda a: np.array([a, a]),
    "a mask of a function": lambda a: np.add(1, 2, where=a.view(bool)[:8], out=np.zeros(8, int)),
    "np.transpose, then a sum": lambda a: np.transpose(a).sum(),
    "np.split, then an element": lambda a: np.split(a, 2)[1][0],
    "np.full_like of an element": lambda a: np.full_like(np.zeros(8), a),
    "bytes": bytes,
    "pickle": pickle.dumps,
    "copy": copy,
    "deepcopy": deepcopy,
    "in": lambda a: 3 in a,
    "list": list,
    "text": lambda a: f"{a}",
    "an element as an index": lambda a: range(8)[a[2]],
    "ids as a key": lambda a: a[[1, 2]],
    "a mask as a key": lambda a: a[np.arange(8) > 5],
    "flat": lambda a: a.flat[3],
    "a view of another type": lambda a: a.view(np.int32)[2],
    "torch.from_numpy": lambda a: torch.from_numpy(a).sum(),
    "torch.tensor": torch.tensor,
    "torch.save": lambda a: torch.save(torch.from_numpy(a), io.BytesIO()),
    "torch.frombuffer": lambda a: torch.frombuffer(a, dtype=torch.long).sum(),
    "np.frombuffer": lambda a: np.frombuffer(a, np.int32)[2],
    "np.from_dlpack": lambda a: np.from_dlpack(a)[2],
    "np.from_dlpack of a tensor": lambda a: np.from_dlpack(torch.from_numpy(a))[2],
    "as_strided": lambda a: np.lib.stride_tricks.as_strided(a, (4,), (16,)).sum(),
    "as ids of another one": lambda a: a[::-1][np.asarray(a)[:1]],
    "memoryview": lambda a: memoryview(a)[2],
    "a part of a memoryview": lambda a: bytes(memoryview(a)[2:4]),
    "a memoryview of bytes": lambda a: memoryview(a).cast("B")[3],
    "a memoryview as a list": lambda a: memoryview(a).tolist(),
    "data": lambda a: 3 in a.data,
    "struct": lambda a: struct.unpack_from("q", a, 8),
    "struct of a memoryview": lambda a: struct.unpack_from("q", a.data, 8),
    "ctypes.string_at": lambda a: ctypes.string_at(a.ctypes.data, 8),
    "ctypes.memmove": lambda a: ctypes.memmove(
        ctypes.create_string_buffer(64), a.ctypes.data_as(ctypes.c_void_p), 64
    ),
    "an array by its address": lambda a: np.ctypeslib.as_array(
        (ctypes.c_int64 * 8).from_address(a.ctypes.data)
    ).sum(),
}
if sys.version_info >= (3, 12):  # before, no class of Python can say what buffer it has
    READS |= {
        "hashlib": hashlib.sha1,
        "hashlib of a memoryview": lambda a: hashlib.sha1(a.data),
        "BytesIO": lambda a: io.BytesIO().write(a),
        "bytes.join": lambda a: b"".join([a]),
        "struct.Struct": lambda a: struct.Struct("q").unpack_from(a),
    }
WRITES = {
    "setitem": lambda a: a.__setitem__(2, 1),
    "sort": lambda a: a.sort(),
    "sort of a part": lambda a: a[2:5].sort(),
    "put": lambda a: a.put([0], [3]),
    "partition": lambda a: a.partition(2),
    "fill": lambda a: a.fill(2),
    "byteswap": lambda a: a.byteswap(inplace=True),
    "flat": lambda a: setattr(a, "flat", 3),
    "flat with a key": lambda a: a.flat.__setitem__(0, 5),
    "out of a method": lambda a: np.arange(9).take([1] * 8, out=a),
    "out of a function": lambda a: np.cumsum(np.ones(8, int), out=a),
    "np.add.at": lambda a: np.add.at(a, [0], 1),
    "np.copyto": lambda a: np.copyto(a, 1),
    "np.asarray, then setitem": lambda a: np.asarray(a).__setitem__(0, 5),
    "a view of another type": lambda a: a.view(np.int32).__setitem__(3, 1),
    "shuffle": lambda a: np.random.default_rng(0).shuffle(a),
    "torch.from_numpy": lambda a: torch.from_numpy(a).fill_(3),
    "np.frombuffer": lambda a: np.frombuffer(a, np.int32).__setitem__(2, 66),
    "memoryview": lambda a: memoryview(a).__setitem__(2, 77),
    "a part of a memoryview": lambda a: a.data.cast("B").__setitem__(slice(4), b"abcd"),
    "struct": lambda a: struct.pack_into("q", a, 8, 99),
    "readinto": lambda a: io.BytesIO(b"x" * 64).readinto(a),
    "ctypes.memset": lambda a: ctypes.memset(a.ctypes.data, 3, 64),
    "ctypes.memmove": lambda a: ctypes.memmove(a.ctypes.data, b"x" * 64, 64),
}


@pytest.mark.parametrize("mended", [False, True], ids=["broken", "mended"])
@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_host_reads_a_download_before_it_has_landed(read, mended):
    def program(mended):
        landing = torch.empty(8, dtype=torch.long).pin_memory()
        array = landing.numpy()
        landing.copy_(torch.arange(8, device=CUDA), non_blocking=True)
        if mended:
            settle()
        read(array)

    verdict(program, mended)


@pytest.mark.parametrize("mended", [False, True], ids=["broken", "mended"])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_host_writes_under_an_upload_that_nothing_follows(write, mended):
    kept = []

    def program(mended):
        ids = torch.arange(8).flip(0).contiguous().pin_memory()
        kept.append(ids)  # or the change shows in nothing
        array = ids.numpy()
        kept.append(ids.to(CUDA, non_blocking=True))
        if mended:
            settle()
        write(array)

    verdict(program, mended)


@pytest.mark.parametrize("mended", [False, True], ids=["broken", "mended"])
def test_views_are_made_before_the_wait(mended):
    def program(mended):
        landing = torch.empty(8, dtype=torch.long).pin_memory()
        landing.copy_(torch.arange(8, device=CUDA), non_blocking=True)
        array = np.asarray(landing)
        views = array.reshape(2, 4).T, array.view(np.int32), array.ravel(), array[None, 2:]
        views += np.reshape(array, (2, 4)), np.flip(array), *np.split(array, 2)
        views += np.broadcast_to(array, Shape(2, 8)), np.zeros_like(array, shape=Shape(2, 4))
        memory = memoryview(array), array.data[2:], memoryview(array).cast("B"), memoryview(b"12")
        assert all(isinstance(m, memoryview) and len(m) == m.shape[0] for m in memory)
        views += np.frombuffer(array, np.int64), np.from_dlpack(landing)
        if mended:
            settle()
        sum(int(v.sum()) for v in (*views, *map(np.asarray, memory)))

    verdict(program, mended)


@pytest.mark.parametrize(
    "use",
    [
        len, list, bytes, bytearray, bool, hash, sum, lambda m: m[2], lambda m: m[-3:].tolist(),
        lambda m: (m.format, m.shape, m.strides, m.nbytes, m.readonly, m.contiguous, m.suboffsets),
        lambda m: m.cast("B").cast("i", shape=[4, 4])[1, 2], lambda m: m.toreadonly().readonly,
        lambda m: (m == m, m != b"x", 3 in m, m[::2].tolist(), m.hex(), list(reversed(m))),
        lambda m: (m.__setitem__(slice(2), m[4:6]), m.tolist()), lambda m: m[99], lambda m: m["x"],
        lambda m: bytearray(m[:1]), lambda m: np.asarray(m).dtype, lambda m: np.add(m, 1).tolist(),
        lambda m: memoryview(m).tolist(), lambda m: isinstance(m, memoryview),
    ],
)  # fmt: skip
def test_memoryview_of_pinned_memory_is_as_any_other(use):
    def used(view):
        with view as memory:
            try:
                return use(memory)
            except Exception as error:
                return repr(error)

    plain = used(memoryview(np.arange(8)))
    with watch("memory", simulate=True):
        pinned = used(memoryview(torch.arange(8).pin_memory().numpy()))
    assert pinned == plain


# --- memory and ops -------------------------------------------------------------------------------


def part_by_dlpack(mended):
    """A part of a tensor is handed over; another stream reads what is written, or else."""
    x = torch.arange(16.0, device=CUDA)
    side = torch.cuda.Stream()
    settle()
    part = torch.from_dlpack(x[4:12])
    x[: 4 if mended else 5].mul_(2)
    with torch.cuda.stream(side):
        part.mul(2)


class Shared:
    """An array of another library."""

    def __init__(self, array, address):
        facts = {"shape": array.shape, "typestr": "<f4", "data": (address, False), "version": 3}
        self.__cuda_array_interface__ = facts | {"strides": array.strides}


def kernel_of_another_library(mended):
    """A kernel on a part of a tensor, and on memory of its own, on a stream that is a handle."""
    x = torch.arange(16.0, device=CUDA)
    own, side = Shared(np.ones((2, 4), np.float32), 1 << 50), torch.cuda.Stream()
    settle()
    part = Shared(np.ones(16, np.float32)[11:3:-1], x[11].data_ptr())
    declare("kernel", reads=[own], writes=[part], stream=side.cuda_stream)
    x[: 4 if mended else 5].mul_(2)
    declare("next kernel", writes=[own], stream=side)


def block_that_a_resize_leaves(mended):
    """The block that a tensor had before it grew is given out while another stream reads it."""
    x = torch.ones(64, device=CUDA)
    side = torch.cuda.Stream()
    side.wait_stream(here())
    with torch.cuda.stream(side):
        x.mul(2)
    if mended:
        here().wait_stream(side)
    x.resize_(256).zero_()
    torch.zeros(64, device=CUDA)


def statistics_of_a_batch(mended):
    """Another stream copies statistics while a batch in training updates them."""
    norm = torch.nn.BatchNorm1d(4, device=CUDA)
    side = torch.cuda.Stream()
    settle()
    norm.train(not mended)(torch.ones(3, 4, device=CUDA))
    with torch.cuda.stream(side):
        norm.running_mean.clone()


def gradients_that_are_sparse(mended):
    """Rows of an embedding are updated by a sparse gradient of another stream."""
    table = torch.nn.Embedding(8, 4, sparse=True, device=CUDA)
    side = torch.cuda.Stream()
    settle()
    with torch.cuda.stream(side):
        table(torch.tensor([1, 2], device=CUDA)).sum().backward()
        if not mended:
            torch.optim.SparseAdam(table.parameters()).step()
    table.weight.sum()


def storage_that_is_emptied_and_filled_again(mended):
    """Weights are gathered into a storage that is resized to nothing after their use."""
    gather = torch.cuda.Stream()
    weights = torch.empty(64, device=CUDA)
    for _ in range(2):
        weights.untyped_storage().resize_(0)
        if mended:
            gather.wait_stream(here())
        with torch.cuda.stream(gather):
            weights.untyped_storage().resize_(256)
            weights.fill_(1)
        here().wait_stream(gather)
        weights.sum()


def block_of_a_pool(mended):
    """A freed block is given out again in its pool only."""
    pool, side = torch.cuda.MemPool(), torch.cuda.Stream()
    with torch.cuda.use_mem_pool(pool):
        x = torch.ones(64, device=CUDA)
    side.wait_stream(here())
    with torch.cuda.stream(side):
        x.mul(2)
    del x
    with nullcontext() if mended else torch.cuda.use_mem_pool(pool):
        torch.zeros(64, device=CUDA)


def registered_memory(mended):
    """Pageable memory is pinned where it is, so that uploads read it later."""
    runtime, host = torch.cuda.cudart(), torch.zeros(1024)
    runtime.cudaHostRegister(host.data_ptr(), 4096, 0)
    for step in range(2):
        host.fill_(step)
        kept = host.to(CUDA, non_blocking=True)
        if mended:
            settle()
    runtime.cudaHostUnregister(host.data_ptr())
    kept.sum()


def any_accelerator(mended):
    """A program that names no vendor."""
    x = torch.zeros(8, device=CUDA)
    side = torch.Stream(device="cuda")
    torch.accelerator.synchronize()
    with side:
        x.add_(1)
    if mended:
        torch.accelerator.current_stream().wait_stream(side)
    x.sum()


def ops_that_wait(mended):
    """The host has the answer of an op, so that what was queued before it is done."""
    x, landing = torch.ones(8, device=CUDA), torch.zeros(8, pin_memory=True)
    for op in (lambda: torch.allclose(x, x), lambda: torch.save(x, io.BytesIO())):
        landing.copy_(x, non_blocking=True)
        if mended:
            op()
        landing.sum()


def made_pinned_from_a_tensor_of_the_device(mended):
    landing = torch.ones(8, device=CUDA).new_zeros(8, device="cpu", pin_memory=True)
    landing.copy_(torch.ones(8, device=CUDA), non_blocking=True)
    if mended:
        settle()
    landing.sum()


PROGRAMS = (
    part_by_dlpack, kernel_of_another_library, block_that_a_resize_leaves,
    statistics_of_a_batch, storage_that_is_emptied_and_filled_again, block_of_a_pool,
    gradients_that_are_sparse, registered_memory, any_accelerator, ops_that_wait,
    made_pinned_from_a_tensor_of_the_device,
)  # fmt: skip


@pytest.mark.parametrize("mended", [False, True], ids=["broken", "mended"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_verdict(program, mended):
    verdict(program, mended)


@pytest.mark.parametrize("part", [np.s_[:], np.s_[::2], np.s_[::-1, 1:], np.s_[:0], np.s_[1]])
def test_array_of_another_library_is_where_its_elements_are(part):
    array = np.zeros((4, 6), np.float32)
    view = array[part]
    found = shared_array(Shared(view, 4096 + view.ctypes.data - array.ctypes.data))
    touched = {
        found.address - 4096 + b for start, end in found.runs.runs for b in range(start, end)
    }
    array.view(np.uint8)[...] = 0
    view[...] = np.frombuffer(b"\1" * 4, np.float32)
    assert touched == set(np.flatnonzero(array.view(np.uint8)))


def test_what_is_no_array_of_a_device_cannot_be_declared():
    with watch("declared", simulate=True), pytest.raises(UsageError, match="a list is declared"):
        declare("kernel", reads=[[1, 2]])
    declare("kernel", reads=[[1, 2]])  # nothing is recorded, and nothing is done
