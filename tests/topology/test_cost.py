"""What is guessed of a device that was not calibrated."""

import pytest

from ggsched.ops.record import ELEMENTS
from ggsched.topology.caps import HOST_PROCESSOR
from ggsched.topology.cost import Work, guessed_rates, node_seconds
from ggsched.topology.model import Topology
from tests.passes.machines import device

CPU = {"kind": "cpu", "is_host": True, "processor": HOST_PROCESSOR}
POCL = {"kind": "accelerator", "processor": HOST_PROCESSOR}
NODES = [(0.0, 1e3), (1e9, 1e6), (1e6, 1e9), (1e12, 1e3)]
"""Operations and bytes."""


def guesses(*facts):
    topology = Topology(tuple(device(f"d{i}:0", **known) for i, known in enumerate(facts)))
    return guessed_rates(topology).devices


@pytest.mark.parametrize("node", NODES)
def test_no_other_device_on_the_processor_is_guessed_to_be_faster_than_the_backend_cpu(node):
    """Rates of OpenCL on a processor were guessed above those of the backend cpu."""
    cpu, pocl = guesses(CPU, POCL)
    work = Work("add", ELEMENTS, *node)
    assert node_seconds(pocl, work) > node_seconds(cpu, work)
    assert pocl.launch_s > cpu.launch_s


@pytest.mark.parametrize("node", NODES[1:])
def test_integrated_gpus_are_guessed_between_processors_and_other_gpus(node):
    cpu, integrated, gpu = guesses(CPU, {"kind": "integrated"}, {"kind": "gpu"})
    work = Work("add", ELEMENTS, *node)
    times = [node_seconds(rates, work) for rates in (gpu, integrated, cpu)]
    assert times == sorted(times)
    assert len(set(times)) == 3
