"""CUDA devices to test with; tests are skipped where there are none."""

import pytest

from ggsched.errors import BackendUnavailable


def cuda_parts(count):
    """Return logical devices of the first GPU."""
    try:
        from ggsched_cuda.backend import CudaBackend

        backend = CudaBackend()
    except BackendUnavailable as error:
        pytest.skip(error.one_line())
    return [backend.open_part(0, i) for i in range(count)]
