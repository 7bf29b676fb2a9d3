"""Kernels for a GPU in software: those of the sources, on the host, and the plug-in's helpers."""

import ctypes
import gc
import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

from tests.backends.fake_cuda import install
from tests.backends.software_blas import SoftwareBlas

LOOK_S = 5e-5


class Helper:
    """A kernel of the plug-in itself, as the host does it."""

    name = "helper"

    def __init__(self, do, *types):
        self._do, self._types = do, types

    def taken(self, params):
        places = (ctypes.c_void_p * len(self._types)).from_address(params)
        return [
            t.from_buffer_copy(t.from_address(p)) for t, p in zip(self._types, places, strict=True)
        ]

    def run(self, taken, launch, rooms):
        self._do(*taken)


Moves = ctypes.c_int64 * 24


def _move(words):
    for to, source, nbytes in np.array(words).reshape(8, 3).tolist():
        if nbytes:
            ctypes.memmove(to, source, nbytes)


def _hold(word, ns):
    word, ends = ctypes.c_int32.from_address(word.value), time.monotonic() + ns.value / 1e9
    while not word.value and time.monotonic() < ends:
        time.sleep(LOOK_S)


HELPERS = {
    "move": Helper(_move, Moves),
    "hold": Helper(_hold, ctypes.c_uint64, ctypes.c_int64),
    "snapshot": Helper(
        lambda a, b: ctypes.memmove(b.value, a.value, 12), ctypes.c_uint64, ctypes.c_uint64
    ),
}


class Compiled:
    """A kernel that is compiled for the host when it is first launched, and run lane by lane."""

    lock = threading.RLock()  # lanes of one kernel at a time

    def __init__(self, runner, source, defines, kernel):
        self._runner, self.name, self.defines = runner, kernel, defines
        self._call = SimpleNamespace(source=source, defines=defines, kernel=kernel)

    def taken(self, params):
        with self.lock:
            library = self._runner._library(self._call)
            library.sizes.restype = ctypes.POINTER(ctypes.c_size_t)
            sizes = library.sizes()[: library.parameters()]
        places = (ctypes.c_void_p * len(sizes)).from_address(params)
        return [ctypes.string_at(p, n) for p, n in zip(places, sizes, strict=True)]

    def run(self, taken, launch, rooms):
        kept = [np.frombuffer(value, np.uint8).copy() for value in taken]
        pointers = (ctypes.c_void_p * len(kept))(*(v.ctypes.data for v in kept))
        (x, y, z), together = launch.grid, launch.cluster
        with self.lock:
            library = self._runner._library(self._call)
            library.begin_run(0)
            library.set_grid(x, y, z)
            for address, nbytes in rooms.items():
                library.may_be_copied(ctypes.c_void_p(address), nbytes)
            for k, j, i in np.ndindex(z, y, x // together):
                place = (i * together, together, j, k)
                done = library.run(pointers, *place, launch.lanes, launch.shared)
                assert done, self._call.kernel


def kernels_on_host(runner):
    """Return where a ``SoftwareDriver`` gets its kernels from."""
    from ggsched_cuda_kernels.sources import OWN

    def kernel(source, defines, name):
        return HELPERS[name] if source == OWN else Compiled(runner, source, defines, name)

    return kernel


@contextmanager
def in_software(runner, seed=0, arch=80, **gpus):
    """Let the plug-in find GPUs in software, whose kernels somebody compiles and runs."""
    from ggsched_cuda.programs import ProgramCache
    from ggsched_cuda_kernels.blas import driver as blas
    from tests.backends.software_cuda import SoftwareDriver

    made, patch = SoftwareDriver(kernels_on_host(runner), seed, arch, **gpus), pytest.MonkeyPatch()
    install(made, patch)
    patch.setattr(ProgramCache, "function", lambda *a, **more: made.function(*a, **more))
    patch.setattr(ProgramCache, "prepare", lambda *a, **more: None)
    cublas = SoftwareBlas(made)
    patch.setattr(blas, "_cublas", lambda: cublas)
    try:
        yield made
    finally:
        gc.collect()  # what is collected later would ask another driver for events of this one
        made.end()
        patch.undo()
