"""What tests of kernels share."""

import pytest


@pytest.fixture(autouse=True, scope="session")
def nvrtc_results(compiled_kernels):
    """Let results of NVRTC be kept, so that each program is compiled once."""
    from tests.kernels.nvrtc import Compiler

    Compiler.folder = compiled_kernels


@pytest.fixture(scope="module")
def runner(compiled_kernels):
    """Return what compiles kernels for the host, and runs them."""
    from tests.kernels.test_fibers import Runner

    return Runner(compiled_kernels)
