"""OpenCL devices to test with; tests are skipped where there are none."""

import threading

import numpy as np
import pytest

from ggsched.errors import BackendUnavailable
from ggsched.ir.dtype import F32, Q8_0
from ggsched.testing.direct import run_direct
from ggsched.testing.oracle import run_oracle
from ggsched.testing.values import ATOL, RTOL, DrawnGraph, values_for
from ggsched_kernels import CPU, GPU
from tests.backends.places import node, vector

TIMEOUT_S = 60.0
PROFILES = {"cpu": CPU, "gpu": GPU}

# Every type of weight is a program of its own and takes a second to compile.
GPU_DTYPES = (F32, Q8_0)


def on_profiles(dtypes, *more):
    """Return parameters (profile, dtype, ...): a few types are enough for the second profile."""
    slow = pytest.mark.slow
    return [
        pytest.param(
            profile, d, *m, marks=[slow] if profile == "gpu" and d not in GPU_DTYPES else []
        )
        for profile in PROFILES
        for d, *m in ((d, *m) for d in dtypes for m in (more or [()]))
    ]


def opencl_device(index=0, *, profile="cpu", timeout_s=TIMEOUT_S):
    try:
        from ggsched_opencl import driver
        from ggsched_opencl.device import OpenClDevice

        found = driver.find_devices()
    except BackendUnavailable as error:
        pytest.skip(str(error))
    return OpenClDevice(
        index, found[index % len(found)], profile=PROFILES[profile], timeout_s=timeout_s
    )


def check(device, graph, values, *, runs=1, rtol=RTOL, atol=ATOL):
    """Run a graph on a device and by the oracle; outputs and states must agree."""
    states, expected_states = {}, {}
    for _ in range(runs):
        expected = run_oracle(graph, values, states=expected_states)
        result = run_direct(device, graph, values, states)
        for tid, wanted in expected.items():
            same(result[tid], wanted, rtol, atol)
        for name, wanted in expected_states.items():
            same(states[name], wanted, rtol, atol)


def same(got, wanted, rtol, atol):
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    if wanted.dtype.kind == "f":
        np.testing.assert_allclose(got, wanted, rtol, atol)
    else:
        np.testing.assert_array_equal(got, wanted)


def tame(graph, seed=0, **rules):
    return values_for(DrawnGraph(graph, rules), seed)


def recorded(stream):
    event = stream.device.create_event()
    stream.record(event)
    return event


def doubler(device, stream, buffer, count=4):
    x = vector(buffer, count)
    return device.compile([node("add", [x, x], x)], stream)


def waiters():
    return [t for t in threading.enumerate() if t.name.startswith("ggsched opencl")]
