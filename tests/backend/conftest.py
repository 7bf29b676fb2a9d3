"""A device behind the checked layer, for tests of what that layer refuses."""

import pytest

from ggsched.backend.checked import checked
from ggsched_cpu.device import CpuDevice, CpuSettings

TIMEOUT_S = 20.0


@pytest.fixture
def device():
    made = checked(CpuDevice(0, CpuSettings(timeout_s=TIMEOUT_S)))
    yield made
    made.close()


@pytest.fixture
def stream(device):
    return device.create_stream()
