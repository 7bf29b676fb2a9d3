"""cuBLAS for a GPU in software: products by numpy, in the order of a handle's stream."""

import ctypes
from itertools import count

import numpy as np


class SoftwareBlas:
    """What ``ggsched_cuda_kernels.blas.driver`` asks of ``nvmath.bindings.cublas``."""

    def __init__(self, driver):
        self._driver, self._streams, self._numbers = driver, {}, count(1)

    def create(self):
        return next(self._numbers)

    def set_math_mode(self, handle, mode):
        pass

    def set_stream(self, handle, stream):
        self._streams[handle] = stream

    def set_workspace(self, handle, workspace, nbytes):
        pass

    def gemm_strided_batched_ex(self, handle, w_turned, _n, n, m, k, _one, *rest):
        """As cuBLAS has it, columns first: y^T = w x^T."""
        w, kind, w_row, w_step, x, _kind, x_row, x_step, beta, y, y_kind, *rest = rest
        y_row, y_step, batches, compute, *_how = rest
        adds = ctypes.c_float.from_address(beta).value

        def run():
            for b in range(batches):
                size, place = ((n, k), (k, n))[not w_turned], b * w_step
                a = _rounded(_matrix(w, kind, *size, w_row, place), compute)
                a = a if w_turned else a.T
                c = _rounded(_matrix(x, kind, m, k, x_row, b * x_step), compute)
                is_narrow = y_kind == kind != 0
                itemsize, held = (2, np.uint16) if is_narrow else (4, np.float32)
                target = _rows_at(y + itemsize * b * y_step, held, m, n, y_row)
                with np.errstate(all="ignore"):  # of infinities and NaN
                    made = c @ a.T + (target if adds else 0)
                    target[...] = _rounded(made, 75).view(np.uint32) >> 16 if is_narrow else made

        self._driver.give(self._streams[handle], "kernel", run)


def _rounded(array, compute):
    """Return floats with as many bits as a type of computing keeps: TF32, bf16 or all."""
    lost = {77: 13, 75: 16}.get(compute)
    if lost is None:
        return array
    bits = array.view(np.uint32)
    kept = (bits + ((1 << lost - 1) - 1 + (bits >> lost & 1))) >> lost << lost
    return kept.astype(np.uint32).view(np.float32)


def _rows_at(address, dtype, rows, columns, step):
    itemsize = np.dtype(dtype).itemsize
    room = (ctypes.c_uint8 * (itemsize * ((rows - 1) * step + columns))).from_address(address)
    return np.ndarray((rows, columns), dtype, room, 0, (itemsize * step, itemsize))


def _matrix(address, kind, rows, columns, step, skip):
    """Return a factor of type ``kind`` of cuBLAS as f32."""
    from ggsched_cuda_kernels.blas.driver import BF16, F16, F32

    if kind == F32:
        return _rows_at(address + 4 * skip, np.float32, rows, columns, step)
    if kind == F16:
        halves = _rows_at(address + 2 * skip, np.float16, rows, columns, step)
        return halves.astype(np.float32)
    assert kind == BF16
    bits = _rows_at(address + 2 * skip, np.uint16, rows, columns, step)
    return (bits.astype(np.uint32) << 16).view(np.float32)
