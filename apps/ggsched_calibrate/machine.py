"""Measures all devices and all links between them, within a time."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import permutations
from types import MappingProxyType
from typing import Final

from ggsched.backend.probe import probe
from ggsched.backend.protocols import Device, Stream
from ggsched.calibrate.identity import device_identity
from ggsched.errors import GgschedError
from ggsched.topology.cost import HOST, Link, MachineRates, Rates, rates_of
from ggsched_calibrate.device_rates import measure_rates
from ggsched_calibrate.link_rates import Sample, measure_copy, measure_download, measure_upload
from ggsched_calibrate.samples import samples as samples_of
from ggsched_calibrate.timing import NOT_TRUSTED, Allowance, Clock, Disturbed
from ggsched_calibrate.workload import Bench

Progress = Callable[[str, str], None]
"""Called with the name of a device and what of it is measured next."""

_NOTHING: Final[Mapping[str, Rates]] = MappingProxyType({})
_SHARE_OF_DEVICES = 0.75
_SECONDS_OF_ENQUEUEING = 0.02


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was measured.

    Attributes:
        names: Names of the devices.
        identities: What distinguishes each device from others, see ``device_identity``.
        rates: Rates of the devices and of the links between them.
        unknown: Names of devices whose rates cannot be trusted; in ``rates`` they are guesses.
        samples: By (source, destination) the bytes and the seconds behind each link.
        missing: What could not be measured, one line each.
        seconds: How long it took.
    """

    names: tuple[str, ...]
    identities: tuple[str, ...]
    rates: MachineRates
    samples: dict[tuple[int, int], list[Sample]]
    missing: tuple[str, ...]
    seconds: float
    unknown: frozenset[str] = frozenset()


def calibrate(
    devices: Sequence[Device],
    seconds: float,
    progress: Progress | None = None,
    *,
    older: Mapping[str, Rates] = _NOTHING,
    others: Clock | None = None,
    is_strict: bool = True,
) -> Calibration:
    """Measure devices and the links between them.

    Args:
        devices: Open devices that are not used otherwise meanwhile.
        seconds: How long that may take, about; a measurement that has begun is finished.
        progress: Called with what happens.
        older: By identity what was measured before, which stays where a measurement cannot be
            trusted.
        others: See ``Allowance``; None keeps what is measured while other processes compute.
        is_strict: See ``Allowance``.

    Raises:
        DeviceFault: a device failed.
        SyncTimeout: a device did not answer.
    """
    began = time.perf_counter()
    topology = probe(devices)
    names = tuple(f.name for f in topology.devices)
    report = progress or silent
    for_each = _SHARE_OF_DEVICES * seconds / len(devices)
    rates: list[Rates] = []
    missing: list[str] = []
    unknown = set[str]()
    with ExitStack() as stack:
        streams: list[list[Stream]] = []
        for device, name in zip(devices, names, strict=True):
            bench = Bench(device)
            stack.callback(bench.close)
            streams.append([bench.stream() for _ in range(min(2, device.facts.max_streams))])

            def note(what: str, name: str = name) -> None:
                report(name, what)

            wanted = samples_of(device.facts)
            allowance = Allowance(for_each, others=others, is_strict=is_strict)
            before = older.get(device_identity(device.facts))
            found, left_out = measure_rates(bench, streams[-1], allowance, note, before, wanted)
            rates.append(found or rates_of(device.facts))
            unknown |= {name} if found is None else set()
            missing += [f"{name}: {line}" for line in left_out]
        first = [some[0] for some in streams]
        left = max(0.0, seconds - (time.perf_counter() - began))
        rest = Allowance(left, others=others, is_strict=is_strict)
        by = {pair: path.by for pair, path in topology.copy_paths.items()}
        links, samples, left_out = _links(names, first, by, rest, report)
        missing += left_out
        enqueue_s = min(_enqueueing(stream) for stream in first)
    return Calibration(
        names,
        tuple(device_identity(facts) for facts in topology.devices),
        MachineRates(tuple(rates), links, enqueue_s, "calibrated just now"),
        samples,
        tuple(missing),
        time.perf_counter() - began,
        frozenset(unknown),
    )


def silent(name: str, what: str) -> None:
    """Report nothing."""


def _links(
    names: Sequence[str],
    streams: Sequence[Stream],
    by: dict[tuple[int, int], int],
    allowance: Allowance,
    report: Progress,
) -> tuple[dict[tuple[int, int], Link], dict[tuple[int, int], list[Sample]], list[str]]:
    """Return the links, what was measured of each, and what could not be."""
    indices = range(len(streams))
    ways = [(HOST, i) for i in indices] + [(i, HOST) for i in indices]
    ways += [pair for pair in permutations(indices, 2) if pair in by]
    links: dict[tuple[int, int], Link] = {}
    samples: dict[tuple[int, int], list[Sample]] = {}
    missing = []
    for number, (src, dst) in enumerate(ways):
        left = len(ways) - number
        a, b = ("host" if end == HOST else names[end] for end in (src, dst))
        report(b if src == HOST else a, f"copies {a} -> {b}")
        try:
            if src == HOST:
                found = measure_upload(streams[dst], allowance, left)
            elif dst == HOST:
                found = measure_download(streams[src], allowance, left)
            else:
                maker = streams[by[src, dst]]
                found = measure_copy(maker, streams[src], streams[dst], allowance, left)
            links[src, dst], samples[src, dst] = found
        except GgschedError as error:
            missing.append(f"copies {a} -> {b}: {error.one_line()}")
        except Disturbed as error:
            missing.append(f"{b if src == HOST else a}: copies {a} -> {b}: {NOT_TRUSTED}, {error}")
    return links, samples, missing


def _enqueueing(stream: Stream) -> float:
    """Return the seconds of the host for a cheap command."""
    device = stream.device
    buffer, memory = device.allocate(4), device.allocate_host(4).toreadonly()
    best = float("inf")
    end = time.perf_counter() + _SECONDS_OF_ENQUEUEING
    while time.perf_counter() < end:
        began = time.perf_counter()
        for _ in range(8):
            stream.upload(memory, buffer, 0)
        best = min(best, (time.perf_counter() - began) / 8)
        stream.sync(60.0)
    buffer.close()
    return best
