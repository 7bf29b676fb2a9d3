"""The file of calibrated rates: where it is, what is in it, and what to do if it is damaged.

JSON, described in ``docs/reference/rates-format.md``. A device is found by its identity, never by
its name, so a file from another machine, or from before a driver was changed, has no effect. What
cannot be understood gives one warning and is ignored: rates are hints, and no run depends on them.
"""

import logging
import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from ggsched.calibrate.identity import device_identity
from ggsched.errors import UsageError
from ggsched.files.own import cache_home
from ggsched.files.reading import MAX_TEXT_NBYTES, contents, reason
from ggsched.topology.caps import DeviceFacts
from ggsched.topology.cost import (
    CAUTION,
    GUESSES,
    HOST,
    KernelRate,
    Link,
    MachineRates,
    Rates,
    beside_cpu,
    guessed_rates,
    is_beside_cpu,
    machine_of,
)
from ggsched.topology.model import Topology

FORMAT: Final = "ggsched-rates/2"
_READ: Final = ("ggsched-rates/1", FORMAT)
AUTO: Final = "auto"
OFF: Final = "off"

_LOG: Final = logging.getLogger("ggsched")
HOST_NAME: Final = "host"
_NUMBERS: Final = (
    *("flops", "bandwidth", "total_bandwidth", "parallel"),
    *("node_s", "event_s", "launch_s"),
)


class KernelEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A ``KernelRate``."""

    flops: float
    bandwidth: float
    step_s: float = 0.0


class DeviceEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The ``Rates`` of a device, with its description for people and the day of the measurement."""

    description: str
    calibrated: str
    flops: float
    bandwidth: float
    total_bandwidth: float
    parallel: Annotated[int, msgspec.Meta(le=1 << 31)]
    node_s: float
    event_s: float
    launch_s: float
    kernels: dict[str, KernelEntry]


class LinkEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A ``Link`` between two identities, of which one may be ``"host"``, or between machines."""

    src: str
    dst: str
    latency_s: float
    bandwidth: float


class RatesFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file.

    Attributes:
        format: ``FORMAT``.
        enqueue_s: See ``MachineRates``.
        devices: By identity.
        links: Each way of each pair of identities that was measured.
    """

    format: str
    enqueue_s: float
    devices: dict[str, DeviceEntry]
    links: tuple[LinkEntry, ...]


def default_path() -> Path | None:
    """Return ``ggsched/rates.json`` in the user's cache folder; None where there is no home."""
    home = cache_home()
    return None if home is None else home / "ggsched" / "rates.json"


def rates_path(setting: str) -> Path | None:
    """Return the file that ``Settings.rates`` stands for, or None where none is to be read."""
    if setting == OFF:
        return None
    if setting != AUTO:
        return Path(setting)
    return default_path()


def load_rates(topology: Topology, setting: str) -> MachineRates:
    """Return the rates of a machine: calibrated where the file has them, else guesses.

    Args:
        setting: ``auto``, ``off`` or a path, as in ``Settings.rates``.

    Raises:
        UsageError: the given path does not exist.
    """
    path = rates_path(setting)
    file = None if path is None else read_rates(path, must_exist=setting != AUTO)
    return guessed_rates(topology) if file is None else join_rates(topology, file)


def read_rates(path: Path, *, must_exist: bool = False) -> RatesFile | None:
    """Return what the file says; None, after one warning, if it cannot be understood.

    Raises:
        UsageError: it must exist and does not.
    """
    try:
        file, why = try_read(path)
    except FileNotFoundError as error:
        if must_exist:
            raise UsageError(
                "there is no such file of rates",
                where=str(path),
                hint="ggsched calibrate makes one; GGSCHED_RATES names it",
            ) from error
        return None
    if file is None:
        why = " ".join(why.split())
        _LOG.warning("%s is ignored: %s (ggsched calibrate makes it anew)", path, why)
    return file


def try_read(path: Path) -> tuple[RatesFile | None, str]:
    """Return what a file says, or None and why it cannot be understood.

    Raises:
        FileNotFoundError: there is none.
    """
    try:
        file = msgspec.json.decode(contents(path, MAX_TEXT_NBYTES), type=RatesFile)
    except FileNotFoundError:
        raise
    except OSError as error:
        return None, reason(error)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return None, str(error)
    wrong = next(_wrong(file), "")
    return (None if wrong else file), wrong


def join_rates(topology: Topology, file: RatesFile) -> MachineRates:
    """Return guesses for a machine, with what the file knows of its devices in their place."""
    guesses = guessed_rates(topology)
    identities = [device_identity(facts) for facts in topology.devices]
    rates, days, guessed = [], [], []
    for facts, identity, guess in zip(topology.devices, identities, guesses.devices, strict=True):
        entry = file.devices.get(identity)
        if entry is None:
            guessed.append(facts.name)
        else:
            days.append(entry.calibrated[:10])
        found = guess if entry is None else rates_of_entry(entry)
        rates.append(replace(found, caution=CAUTION) if is_beside_cpu(facts) else found)
    if not days:
        return guesses
    for i, facts in enumerate(topology.devices):
        if facts.name in guessed and is_beside_cpu(facts):
            own = [r for r, d in zip(rates, topology.devices, strict=True) if _is_cpu(d, facts)]
            rates[i] = beside_cpu(own[0]) if own and own[0].kernels else rates[i]
    known = {(e.src, e.dst): Link(e.latency_s, e.bandwidth) for e in file.links}
    ends = [*enumerate(identities), (HOST, HOST_NAME)]
    links = dict(guesses.links)
    for src, a in ends:
        for dst, b in ends:
            if (a, b) in known and src != dst:
                links[src, dst] = known[a, b]
    network = {
        ends: known[ends] for ends in permutations(set(guesses.machines), 2) if ends in known
    }
    source = f"calibrated {max(days)}"
    if guessed:
        source += f"; {GUESSES}: {', '.join(guessed)}"
    return MachineRates(tuple(rates), links, file.enqueue_s, source, guesses.machines, network)


def _is_cpu(facts: DeviceFacts, other: DeviceFacts) -> bool:
    """Whether a device is that of the backend cpu on the processor of another one."""
    return facts.kind == "cpu" and machine_of(facts) == machine_of(other)


def _wrong(file: RatesFile) -> Iterator[str]:
    """Yield what is wrong with a file that has the right shape."""
    if file.format not in _READ:
        yield f"format {file.format!r} instead of {FORMAT!r}"
    numbers = [("enqueue_s", file.enqueue_s, False)]
    for identity, d in file.devices.items():
        numbers += [(identity, x, True) for x in (d.flops, d.bandwidth, d.total_bandwidth)]
        numbers += [(identity, x, False) for x in (d.node_s, d.event_s, d.launch_s)]
        numbers += [(identity, float(d.parallel), True)]
        for name, kernel in d.kernels.items():
            numbers += [(f"{identity} {name}", x, True) for x in (kernel.flops, kernel.bandwidth)]
            numbers += [(f"{identity} {name}", kernel.step_s, False)]
    for e in file.links:
        numbers += [(f"{e.src} -> {e.dst}", e.bandwidth, True)]
        numbers += [(f"{e.src} -> {e.dst}", e.latency_s, False)]
    for where, number, is_rate in numbers:
        if not math.isfinite(number) or number < 0 or (is_rate and number == 0):
            yield f"{where}: {number} is not a rate"


def numbers_of(rates: Rates | DeviceEntry) -> dict[str, Any]:
    """Return the rates of a device, without those of its kernels, by name."""
    return {name: getattr(rates, name) for name in _NUMBERS}


def rates_of_entry(entry: DeviceEntry) -> Rates:
    """Return what an entry says of a device."""
    kernels = [
        KernelRate(n, k.flops, k.bandwidth, k.step_s) for n, k in sorted(entry.kernels.items())
    ]
    return Rates(**numbers_of(entry), kernels=tuple(kernels))
