"""OpenCL devices to test with; tests are skipped where there are none."""

import threading

import pytest

from ggsched.errors import BackendUnavailable
from ggsched.ir.dtype import F32, IQ4_NL, IQ4_XS, Q2_K, Q3_K, Q5_K, Q8_0
from ggsched_kernels import CPU, GPU
from tests.backends.device_settings import node, vector

TIMEOUT_S = 60.0
PROFILES = {"cpu": CPU, "gpu": GPU}

# Every type of weight is a program of its own and takes a second to compile.
GPU_DTYPES = (F32, Q8_0)
# Their programs differ from those of q4_k and q6_k in expressions that are made from layouts.
RARE_DTYPES = (IQ4_NL, IQ4_XS, Q2_K, Q3_K, Q5_K)


def on_profiles(dtypes, *more):
    """Return parameters (profile, dtype, ...): a few types are enough for the second profile."""

    def marks(profile, dtype):
        rare = dtype in RARE_DTYPES or (profile == "gpu" and dtype not in GPU_DTYPES)
        return [pytest.mark.slow] if rare else []

    return [
        pytest.param(profile, d, *m, marks=marks(profile, d))
        for profile in PROFILES
        for d, *m in ((d, *m) for d in dtypes for m in (more or [()]))
    ]


def opencl_device(index=0, *, profile="cpu", timeout_s=TIMEOUT_S):
    try:
        from ggsched_opencl import driver
        from ggsched_opencl.device import OpenClDevice

        found = driver.find_devices().devices
    except BackendUnavailable as error:
        pytest.skip(str(error))
    return OpenClDevice(
        index, found[index % len(found)], profile=PROFILES[profile], timeout_s=timeout_s
    )


def recorded(stream):
    event = stream.device.create_event()
    stream.record(event)
    return event


def doubler(device, stream, buffer, count=4):
    x = vector(buffer, count)
    return device.compile([node("add", [x, x], x)], stream)


def waiters():
    return [t for t in threading.enumerate() if t.name.startswith("ggsched opencl")]
