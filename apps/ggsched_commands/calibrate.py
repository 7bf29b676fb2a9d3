"""``ggsched calibrate``: measure this machine's rates and keep them for planning."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

from ggsched.cli.console import messages, new_table, output, write_json
from ggsched.cli.options import OwnOption, devices_option, json_option, option
from ggsched.config import Settings
from ggsched.errors import UsageError
from ggsched.units import rate_text, seconds_text
from ggsched_calibrate.device_rates import NO_TIME
from ggsched_calibrate.timing import NOT_TRUSTED
from ggsched_commands.progress import loading

_SHORTEST_S, _LONGEST_S = 0.1, 600
_ENVIRONMENT = 3

if TYPE_CHECKING:
    from ggsched.topology.caps import DeviceFacts
    from ggsched_calibrate.machine import Calibration


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not _SHORTEST_S <= seconds <= _LONGEST_S:  # as is NaN
        raise click.BadParameter(f"{text!r} is not a time from {_SHORTEST_S} to {_LONGEST_S} s")
    return seconds


@click.command()
@devices_option
@option(
    "--time-budget seconds",
    "Time that measuring may take, approximately.",
    _seconds,
    30.0,
    metavar="S",
    cls=OwnOption,
    old="--seconds",
)
@option(
    "-o --output path",
    "Keep the rates in this file. [default: what GGSCHED_RATES names, else a file in the "
    "user's cache folder]",
    click.Path(dir_okay=False),
    metavar="FILE.json",
)
@json_option
@click.pass_obj
def calibrate(
    settings: Settings,
    /,
    devices: tuple[str, ...] | None,
    seconds: float,
    path: str | None,
    as_json: bool,
) -> int:
    """Measure this machine, for the predictions of the cost model.

    Nothing else should run meanwhile: what is disturbed is not kept. Plans are right with any
    rates, and better with true ones. The exit code is 3 if a device has no rates afterwards.
    """
    from ggsched.backend.registry import open_devices
    from ggsched.run.release import close_all
    from ggsched_calibrate.machine import calibrate as measure
    from ggsched_calibrate.save import older_rates, save_rates
    from ggsched_calibrate.timing import others_of_this_process
    from ggsched_cluster.calibrate import calibrate_group
    from ggsched_cluster.remote_devices import group_of

    target = _target(path, settings.rates)
    opened = open_devices(devices, allow=settings.backends)
    try:
        facts = {d.facts.name: d.facts for d in opened}
        with _progress(messages()) as show:
            group = group_of(opened)
            if group is None:
                others = others_of_this_process()
                found = measure(opened, seconds, show, older=older_rates(target), others=others)
            else:
                found = calibrate_group(group, seconds, show)
    finally:
        close_all(opened)
    save_rates(found, facts, target)
    code = _ENVIRONMENT if found.unknown else 0
    if as_json:
        write_json({"file": str(target), **report(found, facts)})
        return code
    console = output()
    console.print(_rates_table(found))
    if found.rates.links or found.rates.network:
        console.print()
        console.print(_links_table(found))
    for line in missing_lines(found.missing, found.unknown):
        console.print(line)
    kept = f"kept in {target}"
    if found.unknown:
        names = ", ".join(sorted(found.unknown))
        kept = f"nothing of {names} is {kept}: calibrate again while the machine is idle"
    console.print(f"{seconds_text(found.seconds)}; {kept}", soft_wrap=True)
    return code


def missing_lines(missing: Sequence[str], unknown: Collection[str] = ()) -> Iterator[str]:
    """Yield what is not kept; what lacked time or was disturbed as a number for each device.

    Args:
        missing: See ``Calibration``.
        unknown: Likewise.
    """
    late = Counter(m.partition(": ")[0] for m in missing if m.endswith(NO_TIME))
    doubted = [m for m in missing if f": {NOT_TRUSTED}, " in m]
    others = [m for m in missing if not m.endswith(NO_TIME) and m not in doubted]
    yield from (f"not measured: {m}" for m in others)
    for name, count in Counter(m.partition(": ")[0] for m in doubted).items():
        _, what, why = next(m for m in doubted if m.startswith(f"{name}: ")).split(": ", 2)
        reason = why.removeprefix(f"{NOT_TRUSTED}, ")
        rest = "" if name in unknown else "; older ones are kept"
        yield f"disturbed: {count} rates of {name}, as of {what}: {reason}{rest}"
    if late:
        counts = ", ".join(f"{count} rates of {name}" for name, count in late.items())
        yield f"not measured, since no time was left: {counts}; a larger --time-budget measures all"


def _target(path: str | None, setting: str) -> Path:
    from ggsched.calibrate.cache import AUTO, rates_path

    target = Path(path) if path is not None else rates_path(setting) or rates_path(AUTO)
    if target is None:
        raise UsageError(
            "there is no folder for the rates", why="there is no home folder", hint="give -o FILE"
        )
    return target


@contextmanager
def _progress(console: Console) -> Iterator[Callable[[str, str], None]]:
    """Give a function that shows what is measured: on a terminal all, else each device once."""
    if console.is_terminal:
        with loading(console) as busy:
            yield lambda name, what: busy.stage(f"{name}: {what}")
        return
    shown: set[str] = set()

    def show(name: str, what: str) -> None:
        if name not in shown:
            shown.add(name)
            console.print(f"calibrating {name}")

    yield show


def report(found: "Calibration", facts: "dict[str, DeviceFacts]") -> dict[str, Any]:
    """Return what was measured as plain JSON data; seconds, bytes and operations per second."""
    from ggsched.calibrate.cache import numbers_of

    devices = {}
    for name, identity, rates in zip(
        found.names, found.identities, found.rates.devices, strict=True
    ):
        devices[name] = {
            "identity": identity,
            "description": facts[name].description,
            **numbers_of(rates),
            "kernels": {k.pop("name"): k for k in map(asdict, rates.kernels)},
        }
    links = [
        {
            "src": _end(found, src),
            "dst": _end(found, dst),
            "latency_s": link.latency_s,
            "bandwidth": link.bandwidth,
            "samples": [list(sample) for sample in found.samples[src, dst]],
        }
        for (src, dst), link in found.rates.links.items()
    ]
    network = [
        {"src": a, "dst": b, "latency_s": link.latency_s, "bandwidth": link.bandwidth}
        for (a, b), link in found.rates.network.items()
    ]
    return {
        "seconds": found.seconds,
        "enqueue_s": found.rates.enqueue_s,
        "devices": devices,
        "links": links,
        "network": network,
        "missing": list(found.missing),
        "unknown": sorted(found.unknown),
    }


def _end(found: "Calibration", device: int) -> str:
    return "host" if device < 0 else found.names[device]


def _rates_table(found: "Calibration") -> Table:
    from ggsched_calibrate.samples import RECIPES

    grid = new_table("device", "rate of", ">compute", ">memory", ">time")
    for name, rates in zip(found.names, found.rates.devices, strict=True):
        if name in found.unknown:
            grid.add_row(name, "nothing: disturbed", "", "", "")
            continue
        shown = [k for k in rates.kernels if k.name in RECIPES or k.name.startswith("mul_mat:")]
        for kernel in shown:
            pace = rate_text(kernel.flops, "FLOP"), rate_text(kernel.bandwidth)
            grid.add_row(name, kernel.name, *pace, "")
        if len(rates.kernels) > len(shown):
            grid.add_row(
                name, f"{len(rates.kernels) - len(shown)} single ops: see --json", "", "", ""
            )
        together = rate_text(rates.total_bandwidth)
        grid.add_row(name, "two streams", f"x{rates.parallel}", together, "")
        for what, seconds in (
            ("a node", rates.node_s),
            ("a launch", rates.launch_s),
            ("an event", rates.event_s),
        ):
            grid.add_row(name, what, "", "", seconds_text(seconds))
    return grid


def _links_table(found: "Calibration") -> Table:
    grid = new_table("copies", ">latency", ">rate")
    for (src, dst), link in found.rates.links.items():
        way = f"{_end(found, src)} -> {_end(found, dst)}"
        grid.add_row(way, seconds_text(link.latency_s), rate_text(link.bandwidth))
    for (a, b), link in found.rates.network.items():
        way = f"messages {a} -> {b}"
        grid.add_row(way, seconds_text(link.latency_s), rate_text(link.bandwidth))
    return grid
