"""Measures the devices of several machines, each by its own worker, and messages between them."""

import time
from itertools import permutations
from typing import Final

from ggsched.calibrate.identity import device_identity
from ggsched.topology.cost import HOST, Link, MachineRates, Rates, machines_of
from ggsched_calibrate.link_rates import Sample, fit_link
from ggsched_calibrate.machine import Calibration, Progress, silent
from ggsched_cluster.group import Group

_SHARE_OF_MACHINES: Final = 0.8
_LEAST_S: Final = 0.05


def calibrate_group(group: Group, seconds: float, progress: Progress | None = None) -> Calibration:
    """Measure all devices of a group, machine by machine, and the links between machines.

    A message between machines is timed as plans send it: from host memory to host memory, over the
    same sockets. Its time is that of a round trip with a short answer, less half of a short one.

    Args:
        group: Machines that nobody else uses meanwhile.
        seconds: How long that may take, about.
        progress: Called with what happens.

    Raises:
        GgschedError: what a machine says, or one that was lost.
    """
    began = time.perf_counter()
    driver, report = group.driver, progress or silent
    names = [driver.where(k) for k in range(len(group.first))]
    rates: list[Rates] = []
    links: dict[tuple[int, int], Link] = {}
    samples: dict[tuple[int, int], list[Sample]] = {}
    missing: list[str] = []
    unknown = set[int]()
    enqueue_s = 0.0
    for machine, (name, first) in enumerate(zip(names, group.first, strict=True)):
        report(name, "its devices")
        found = driver.calibrate(machine, _SHARE_OF_MACHINES * seconds / len(names))
        rates += found.rates.devices
        unknown |= {first + found.names.index(name) for name in found.unknown}
        links |= {_moved(pair, first): link for pair, link in found.rates.links.items()}
        samples |= {_moved(pair, first): some for pair, some in found.samples.items()}
        missing += [f"{name}/{line}" for line in found.missing]
        enqueue_s = max(enqueue_s, found.rates.enqueue_s)
    pairs = list(permutations(range(len(names)), 2))
    left = seconds - (time.perf_counter() - began)
    network: dict[tuple[str, str], Link] = {}
    for a, b in pairs:
        report(names[a], f"messages {names[a]} -> {names[b]}")
        sent = driver.probe(a, b, max(_LEAST_S, left / len(pairs)))
        network[names[a], names[b]] = fit_link(sent)
    topology = group.topology
    made = MachineRates(
        tuple(rates), links, enqueue_s, "calibrated just now", machines_of(topology), network
    )
    return Calibration(
        tuple(facts.name for facts in topology.devices),
        tuple(map(device_identity, topology.devices)),
        made,
        samples,
        tuple(missing),
        time.perf_counter() - began,
        frozenset(topology.devices[i].name for i in unknown),
    )


def _moved(pair: tuple[int, int], first: int) -> tuple[int, int]:
    a, b = (end if end == HOST else end + first for end in pair)
    return a, b
