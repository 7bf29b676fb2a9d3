"""NaN is a value (LCH-3), on the base and on what is built on it."""

import warnings

import numpy as np
import pytest

from ggsched.backend.timing import take_times
from tests.backends.device_settings import KINDS, download, node, upload, vector


@pytest.fixture(params=KINDS)
def device(request):
    made = KINDS[request.param]()
    yield made
    made.close()


@pytest.mark.parametrize("is_timed", [False, True])
def test_infinities_are_no_fault_where_warnings_are_errors(device, is_timed):
    stream = device.create_stream()
    if is_timed:
        assert take_times(stream) is not None
    a, b = device.allocate(16), device.allocate(16)
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        upload(stream, a, np.array([3e38, -3e38, np.inf, np.nan], np.float32))
        add = node("add", [vector(a, 4), vector(a, 4)], vector(b, 4))
        stream.launch(device.compile([add], stream))
        found = download(stream, b, 4)
    np.testing.assert_array_equal(found, [np.inf, -np.inf, np.inf, np.nan])
