"""Rates of a machine that was not calibrated: the few that decide are measured when needed.

``ggsched calibrate`` measures everything. What is measured here takes some tenths of a second, and
only the rates of devices that are guessed: of products with weights of one type, and of the link
from a CPU to a GPU.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from ggsched.backend.offline_device import RefusingDevice
from ggsched.backend.protocols import Device
from ggsched.errors import GgschedError
from ggsched.ir.dtype import DType
from ggsched.topology.caps import DeviceFacts
from ggsched.topology.cost import GUESSES, MachineRates, with_kernel
from ggsched.topology.model import Topology
from ggsched_calibrate.device_rates import measure_product
from ggsched_calibrate.link_rates import measure_copy
from ggsched_calibrate.timing import Allowance
from ggsched_calibrate.workload import Bench

WORTH_NBYTES: Final = 64 << 20
"""Fewer bytes of weights are not worth a measurement."""

_SECONDS: Final = 0.1
"""Of each measurement, about."""


def is_guessed(rates: MachineRates, facts: DeviceFacts) -> bool:
    """Whether the rates of a device are guesses."""
    known, _, guessed = rates.source.partition(GUESSES)
    return not known or facts.name in guessed


def with_products(
    rates: MachineRates, devices: Sequence[Device], wanted: Mapping[int, Collection[DType]]
) -> MachineRates:
    """Return rates with products of some types measured on devices whose rates are guesses.

    Args:
        devices: Open devices that nobody else uses meanwhile.
        wanted: Types by index of the device.
    """
    found, measured = list(rates.devices), list[str]()
    for i, dtypes in wanted.items():
        device = devices[i]
        if isinstance(device, RefusingDevice) or not is_guessed(rates, device.facts):
            continue
        bench = Bench(device)
        try:
            for dtype in sorted(dtypes, key=lambda d: d.name):
                kernel = measure_product(bench, bench.stream(), dtype, Allowance(_SECONDS))
                found[i] = with_kernel(found[i], kernel)
                measured.append(f"{kernel.name} on {device.facts.name}")
        except GgschedError:
            continue  # what it cannot do is found out when a plan needs it
        finally:
            bench.close()
    return _noted(replace(rates, devices=tuple(found)), measured)


def with_links(
    rates: MachineRates, topology: Topology, devices: Sequence[Device], src: int
) -> MachineRates:
    """Return rates with the links from a CPU to accelerators measured, where they are guesses.

    Args:
        devices: Open devices that nobody else uses meanwhile.
        src: The CPU.
    """
    links, measured = dict(rates.links), list[str]()
    for (a, b), path in topology.copy_paths.items():
        ends = devices[a], devices[b]
        is_asked = a == src and ends[1].facts.kind != "cpu"
        if not is_asked or any(isinstance(d, RefusingDevice) for d in ends):
            continue
        if not is_guessed(rates, ends[1].facts):
            continue
        benches = [Bench(device) for device in ends]
        try:
            here, there = (bench.stream() for bench in benches)
            maker = here if path.by == a else there
            links[a, b], _ = measure_copy(maker, here, there, Allowance(_SECONDS), 1)
            measured.append(f"copies {ends[0].facts.name} to {ends[1].facts.name}")
        except GgschedError:
            continue
        finally:
            for bench in benches:
                bench.close()
    return _noted(replace(rates, links=links), measured)


def _noted(rates: MachineRates, measured: Sequence[str]) -> MachineRates:
    if not measured:
        return rates
    return replace(rates, source=f"{rates.source}; measured: {', '.join(measured)}")
