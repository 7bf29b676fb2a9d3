"""Kernels of Triton, for ``library_programs``."""

import triton
import triton.language as tl


@triton.jit
def double(x_ptr, out_ptr, n, B: tl.constexpr):
    offs = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=offs < n) * 2, mask=offs < n)


tuned = triton.autotune([triton.Config({"B": 64}), triton.Config({"B": 256})], key=["n"])(double)
