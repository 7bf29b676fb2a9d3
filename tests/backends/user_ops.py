"""User-defined ops for tests: right ones for several backends, and wrong ones."""

from contextlib import contextmanager

import numpy as np

from ggsched.ir.user_ops import Sample, SourceKernel, register_op, unregister_op

OPENCL = """
void affine(__global const float *x, __global const float *w, __global float *out, long n, long k,
            float gain, int shift) {
  long i = get_global_id(0);
  if (i < n) out[i] = x[i] * w[i % k] * gain + shift;
}"""

CUDA = """
__device__ void affine(const float *x, const float *w, float *out, long long n, long long k,
                       float gain, int shift) {
  long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = x[i] * w[i % k] * gain + shift;
}"""

ARGS = ("x", "w", "out", "size:out", "extent:w:-1", "gain", "shift")


def affine(x, w, *, out, gain, shift):
    np.multiply(x, w, out=out)
    out *= np.float32(gain)
    out += np.float32(shift)


def take(table, ids, *, out):
    np.take(table, ids, axis=0, out=out)


AFFINE = {
    "operands": ("x", "w"),
    "params": {"gain": 1.0, "shift": 0},
    "in_place": (0,),
    "reference": lambda x, w, gain, shift: x * w * gain + shift,
    "kernels": {
        "cpu": affine,
        "opencl": SourceKernel(OPENCL, "affine", ARGS),
        "cuda": SourceKernel(CUDA, "affine", ARGS),
    },
    "magnitude": lambda x, w: x * w + 1,
    "flops": lambda x, w, gain, shift: 3.0 * np.prod(x),
    "samples": [
        Sample([(3, 8), (8,)], {"gain": 0.5, "shift": 1}),
        Sample([(40, 7), (7,)], {"gain": 0.25}),
        Sample([(0, 4), (4,)]),
    ],
}

TAKE = {
    "operands": ("table", "ids:i32"),
    "shape": lambda table, ids: (*ids, table[1]),
    "reference": lambda table, ids: table[ids],
    "rows": (0, 1),
    "kernels": {"cpu": take},
    "samples": [Sample([(9, 4), (3,)], bounds={"ids": 9})],
}

RIGHT = {"affine": AFFINE, "take": TAKE}


@contextmanager
def registered(name, definition, **changes):
    """Have an op while the block runs."""
    register_op(name, **{"version": "1", **definition, **changes})
    try:
        yield
    finally:
        unregister_op(name)
