"""What tests of kernels share."""

import pytest


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    """Return what compiles kernels for the host, and runs them."""
    from tests.kernels.test_fibers import Runner

    return Runner(tmp_path_factory.mktemp("fibers"))
