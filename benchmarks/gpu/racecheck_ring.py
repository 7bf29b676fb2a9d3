"""What racecheck says of a ring of stages that one lane fills by bulk copies, in its smallest form.

One lane of a producer warp announces the bytes of a stage at the stage's gate ``full``, and bulk
copies bring them to two places of the stage. The warps wait for the gate, read both places, and
lane 0 of each arrives at the gate ``empty``, for which the producer waits before it fills the stage
again. The instructions and fences are those of ``warp_cuda.h`` and ``gemv_jobs.h``.

- ``one``: one copy for the whole stage, the control
- ``two``: two copies that arrive at one gate, announced together
- ``expect``: the same, announced one by one
- ``gates``: two copies, each with a gate of its own
- ``torn``: as ``two``, but the producer does not wait: a real race, with wrong sums

To be run as ``compute-sanitizer --tool racecheck --racecheck-report all python -m
benchmarks.gpu.racecheck_ring one``. For each variant a line says whether the sums are right.
Without a name all run but ``torn``; ``compile`` needs no GPU.
"""

import ctypes
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ggsched_cuda.compiler.driver import compile_text, compiler_version

VARIANTS = {"one": 0, "two": 1, "expect": 2, "gates": 3, "torn": 4}
WARPS, STAGES, ROUNDS, GROUPS = 4, 3, 64, 4
SIDE_NBYTES = 1024  # of one of the two places of a stage


class Kernel:
    """A kernel in some variants.

    Args:
        path: Its source.
        name: In the source.
        variants: What ``VARIANT`` is in each.
        shape: What is defined besides.
    """

    def __init__(
        self, path: Path, name: str, variants: Mapping[str, int], shape: Mapping[str, int]
    ) -> None:
        self.path, self.name, self.variants, self.shape = path, name, variants, shape

    def compiled(self, variant: str, arch: str) -> bytes:
        """Return machine code, with lines for the tool."""
        defines = [f"-D{name}={value}" for name, value in self.shape.items()]
        options = [f"--gpu-architecture={arch}", "-std=c++17", "--generate-line-info", *defines]
        text = self.path.read_text("utf-8")
        return compile_text(text, [*options, f"-DVARIANT={self.variants[variant]}"])

    def launch(
        self, variant: str, arrays: Sequence[np.ndarray], groups: int, lanes: int, shared: int
    ) -> str:
        """Run it over copies of arrays, the last of which is filled; return the architecture."""
        from cuda.bindings import driver as cu

        def check(result: Any) -> Any:
            if result[0]:
                raise SystemExit(f"{variant}: {result[0]!s}")
            return result[1] if len(result) == 2 else result[1:]

        check(cu.cuInit(0))
        device = check(cu.cuDeviceGet(0))
        which = cu.CUdevice_attribute
        major, minor = (
            check(cu.cuDeviceGetAttribute(a, device))
            for a in (
                which.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                which.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            )
        )
        if major < 9:
            raise SystemExit(
                f"{self.name} needs compute capability 9.0, this GPU has {major}.{minor}"
            )
        arch = f"sm_{major}{minor}" + ("a" if (major, minor) in ((9, 0), (10, 0), (12, 0)) else "")
        context = check(cu.cuDevicePrimaryCtxRetain(device))
        check(cu.cuCtxSetCurrent(context))
        module = check(cu.cuModuleLoadData(self.compiled(variant, arch)))
        function = check(cu.cuModuleGetFunction(module, self.name.encode()))
        places = [check(cu.cuMemAlloc(a.nbytes)) for a in arrays]
        for place, array in zip(places, arrays, strict=True):
            check(cu.cuMemcpyHtoD(place, np.ascontiguousarray(array).ctypes.data, array.nbytes))
        values = [ctypes.c_uint64(int(place)) for place in places]
        params = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        at = ctypes.addressof(params)
        check(cu.cuLaunchKernel(function, groups, 1, 1, lanes, 1, 1, shared, 0, at, 0))
        check(cu.cuCtxSynchronize())
        check(cu.cuMemcpyDtoH(arrays[-1].ctypes.data, places[-1], arrays[-1].nbytes))
        for place in places:
            check(cu.cuMemFree(place))
        return arch


def run(variant: str) -> bool:
    """Launch a variant; say whether the sums are those of the host."""
    rng = np.random.default_rng(1)
    w, v = (rng.integers(0, 1 << 32, (GROUPS, ROUNDS, SIDE_NBYTES // 4), np.uint32) for _ in "wv")
    sent = np.concatenate([w, v], axis=2) if variant == "one" else w
    found = np.zeros((GROUPS, 32 * WARPS), np.uint32)
    shared = STAGES * 2 * SIDE_NBYTES
    began = time.perf_counter()
    arch = KERNEL.launch(variant, [sent, v, found], GROUPS, 32 * WARPS + 32, shared)
    seconds = time.perf_counter() - began
    each = (w + 3 * v).reshape(GROUPS, ROUNDS, -1, 32 * WARPS)
    wrong = int((each.sum(axis=(1, 2), dtype=np.uint32) != found).sum())
    result = "sums ok" if not wrong else f"{wrong} of {found.size} sums WRONG"
    shape = f"{GROUPS} groups, {WARPS} warps, {STAGES} stages of 2 x {SIDE_NBYTES} bytes"
    sys.stdout.write(f"{variant}: {result}; {arch}, {shape}, {seconds:.3f} s\n")
    sys.stdout.flush()
    return not wrong or variant == "torn"


KERNEL = Kernel(
    Path(__file__).with_suffix(".cu"),
    "ring",
    VARIANTS,
    {"WARPS": WARPS, "STAGES": STAGES, "ROUNDS": ROUNDS, "SIDE_NBYTES": SIDE_NBYTES},
)


def main_of(kernel: Kernel, run: Callable[[str], bool]) -> int:
    """Compile, or run the variants that are named, or all but ``torn``."""
    wanted = sys.argv[1:] or [name for name in kernel.variants if name != "torn"]
    if wanted[0] == "compile":
        sys.stdout.write(f"NVRTC {compiler_version()}\n")
        for arch in wanted[1:] or ["sm_90", "sm_90a"]:
            for variant in kernel.variants:
                nbytes = len(kernel.compiled(variant, arch))
                sys.stdout.write(f"{variant} for {arch}: {nbytes} bytes\n")
        return 0
    unknown = [name for name in wanted if name not in kernel.variants]
    if unknown:
        known = ", ".join(kernel.variants)
        raise SystemExit(f"no variant {unknown[0]!r}; there are {known}, and compile")
    results = [run(name) for name in wanted]  # all of them, whatever the first ones say
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main_of(KERNEL, run))
