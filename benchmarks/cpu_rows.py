"""What one thread reads of a weight with one row of activations: ``python -m benchmarks.cpu_rows``.

The kernels of the backend ``cpu`` for this processor by themselves, in GB/s, best of some rounds
in an order drawn for each round: rates of memory change from minute to minute.

    python -m benchmarks.cpu_rows --types f32,f16,bf16 --columns 1024,8192 --mib 160
"""

import argparse
import ctypes
import mmap
import random
import sys
from collections.abc import Callable
from itertools import product
from time import perf_counter
from typing import Any, Final

import numpy as np

from ggsched.ir.dtype import BF16, DType, dtype_by_name
from ggsched_cpu.kernels import gemv
from ggsched_cpu.kernels.compiler import Linker, host_target, object_code
from ggsched_cpu.kernels.emit import module_text

KERNEL: Final = ctypes.CFUNCTYPE(
    ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p
)


def reader(linker: Linker, dtype: DType, columns: int, memory: Any) -> Callable[[], object]:
    """Return a call that multiplies all of some memory, as rows of a weight, with a row."""
    target = host_target()
    in_pairs = dtype is BF16 and target.has("avx512bf16") and columns % 32 == 0
    kernel = gemv.gemv("rows", target, dtype, "bf16" if in_pairs else "f32", 1, "batch")
    code = object_code(module_text(kernel), target)
    function = KERNEL(linker.load(code, [kernel.name])[kernel.name])
    rows = memory.nbytes // dtype.row_nbytes(columns)
    x, out = np.zeros(columns, np.float32), np.zeros(rows, np.float32)
    values = {
        "w": memory.ctypes.data, "x": x.ctypes.data, "out": out.ctypes.data,
        "rows": rows, "columns": columns, "w_row": dtype.row_nbytes(columns), "vectors": 1,
        "x_row": x.nbytes, "out_row": out.nbytes, "chunks": 1, "chunk_rows": rows, "inner": 1,
        "w_outer_share": 1, "w_inner_share": 1,
    }  # fmt: skip
    slots = np.array([values.get(name, 0) for name in gemv.SLOTS], np.int64)
    keep = x, out, slots

    def read() -> object:
        return function(keep[2].ctypes.data, 0, 1, None)

    return read


def main() -> int:
    """Measure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cpu_rows", description=__doc__)
    parser.add_argument("--types", default="f32,f16,bf16")
    parser.add_argument("--columns", default="512,1024,2048,2816,4096,8192")
    parser.add_argument("--mib", type=int, default=160, help="of weights")
    parser.add_argument("--rounds", type=int, default=12)
    asked = parser.parse_args()
    memory = np.frombuffer(mmap.mmap(-1, asked.mib << 20), np.uint8)
    memory[:] = 0x3C
    cases = [*product(asked.types.split(","), map(int, asked.columns.split(",")))]
    linker = Linker()
    calls = {(t, n): reader(linker, dtype_by_name(t), n, memory) for t, n in cases}
    best = dict.fromkeys(cases, float("inf"))
    for _ in range(asked.rounds):
        for case in random.sample(cases, len(cases)):
            began = perf_counter()
            calls[case]()
            best[case] = min(best[case], perf_counter() - began)
    sys.stdout.write(f"{host_target().title}, {asked.mib} MiB of weights\n")
    for (name, columns), seconds in best.items():
        sys.stdout.write(
            f"{name:5} {columns:6} columns {memory.nbytes / seconds / 1e9:6.1f} GB/s\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
