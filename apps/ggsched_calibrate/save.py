"""Writes the file of rates, which ``ggsched.calibrate.cache`` reads."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from msgspec.structs import replace as replace_fields

from ggsched.calibrate.cache import (
    FORMAT,
    HOST_NAME,
    DeviceEntry,
    KernelEntry,
    LinkEntry,
    RatesFile,
    numbers_of,
    rates_of_entry,
    read_rates,
    try_read,
)
from ggsched.errors import UsageError
from ggsched.topology.caps import DeviceFacts
from ggsched.topology.cost import HOST, Rates
from ggsched.whole_file import write_whole
from ggsched_calibrate.machine import Calibration


def older_rates(path: Path) -> dict[str, Rates]:
    """Return the rates of all devices that a file has, by identity; none of a damaged one.

    ``save_rates``, which replaces the file, warns of the damage.
    """
    try:
        file, _ = try_read(path)
    except FileNotFoundError:
        return {}
    devices = {} if file is None else file.devices
    return {identity: rates_of_entry(entry) for identity, entry in devices.items()}


def save_rates(calibration: Calibration, facts: Mapping[str, DeviceFacts], path: Path) -> RatesFile:
    """Write what was measured; what the file knows of other devices stays.

    Args:
        calibration: What was measured.
        facts: Of its devices, by name.
        path: The file; its folder is made. It is replaced atomically.

    Raises:
        UsageError: it cannot be written.
    """
    now = datetime.now(UTC).isoformat(timespec="seconds")
    old = read_rates(path) or RatesFile(FORMAT, 0.0, {}, ())
    devices = dict(old.devices)
    for name, identity, rates in zip(
        calibration.names, calibration.identities, calibration.rates.devices, strict=True
    ):
        if name not in calibration.unknown:
            entry = _entry(rates, facts[name].description, now)
            known = devices[identity].kernels if identity in devices else {}
            devices[identity] = replace_fields(entry, kernels=known | entry.kernels)
    links = {(e.src, e.dst): e for e in old.links}
    for (src, dst), link in calibration.rates.links.items():
        a, b = (HOST_NAME if i == HOST else calibration.identities[i] for i in (src, dst))
        links[a, b] = LinkEntry(a, b, link.latency_s, link.bandwidth)
    for (a, b), link in calibration.rates.network.items():
        links[a, b] = LinkEntry(a, b, link.latency_s, link.bandwidth)
    file = RatesFile(
        FORMAT,
        calibration.rates.enqueue_s,
        dict(sorted(devices.items())),
        tuple(links[key] for key in sorted(links)),
    )
    _write(path, msgspec.json.format(msgspec.json.encode(file), indent=2) + b"\n")
    return file


def _write(path: Path, data: bytes) -> None:
    try:
        write_whole(path, data)
    except OSError as error:
        raise UsageError(
            "cannot write the rates", where=str(path), why=error.strerror or str(error)
        ) from error


def _entry(rates: Rates, description: str, now: str) -> DeviceEntry:
    kernels = {k.name: KernelEntry(k.flops, k.bandwidth, k.step_s) for k in rates.kernels}
    return DeviceEntry(description, now, **numbers_of(rates), kernels=kernels)
