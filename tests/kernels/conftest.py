"""What tests of kernels share."""

import pytest


@pytest.fixture(scope="module")
def runner(compiled_kernels):
    """Return what compiles kernels for the host, and runs them."""
    from tests.kernels.test_fibers import Runner

    return Runner(compiled_kernels)
