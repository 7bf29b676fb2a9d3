"""``ggsched devices``: what is installed, what of it is usable, and why not."""

from collections.abc import Iterator, Sequence
from typing import Final

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ggsched.backend.registry import BackendStatus, DeviceStatus, discover
from ggsched.cli.console import new_table, output, write_json
from ggsched.cli.options import json_option
from ggsched.cli.topology_file import topology_here, topology_of
from ggsched.config import Settings
from ggsched.printable import write_err
from ggsched.topology.caps import DeviceFacts
from ggsched.units import nbytes_text

_STYLE: Final = {
    "ready": "green",
    "when named": "cyan",
    "not installed": "dim",
    "blocked": "dim",
    "unavailable": "yellow",
}
_BAD: Final = "bold red"
_COLUMNS: Final = ("device", "state", "kind", ">memory", ">streams", "~description")

_MIN_COLUMNS: Final = 76
"""Fewer leave less than 20 to descriptions."""

MAX_NAMED: Final = 4
"""Ops by reference that are named; of more their number is reported."""


@click.command()
@click.argument("names", nargs=-1, metavar="[DEVICE]...")
@json_option
@click.pass_obj
def devices(settings: Settings, /, names: tuple[str, ...], as_json: bool) -> None:
    """Show which devices are usable, and why the others are not.

    GGSCHED_BACKENDS restricts and orders the backends. With --json also the topology of what is
    usable, for 'ggsched plan --topology' on another machine. Where devices are named, such as
    'ray://' for those of a cluster, these are opened and shown.
    """
    if names:
        _show_named(names, settings, as_json)
        return
    statuses = discover(allow=settings.backends)
    if as_json:
        backends = [status.to_json() for status in statuses]
        write_json({"backends": backends, "topology": topology_here(settings)})
        return
    console = output()
    if not statuses:
        console.print("No backend is installed. Install ggsched again: it brings `cpu`.")
        return
    _show(console, table(statuses))
    for line in remarks(statuses):
        console.print(line)
    if settings.debug:
        for status in statuses:
            write_err(status.traceback)


def _show_named(names: Sequence[str], settings: Settings, as_json: bool) -> None:
    topology = topology_of(names, settings)
    if as_json:
        write_json({"topology": topology.to_json()})
        return
    grid = new_table(*_COLUMNS)
    for facts in topology.devices:
        grid.add_row(facts.name, _state("ready"), *_facts(facts))
    _show(output(), grid)


def _show(console: Console, grid: Table) -> None:
    """Print a table; where its last column has no room, what stands there comes below."""
    if console.width >= _MIN_COLUMNS:
        console.print(grid)
        return
    names, *_, descriptions = (list(column.cells) for column in grid.columns)
    grid.columns.pop()
    console.print(grid)
    for name, description in zip(names, descriptions, strict=True):
        console.print(Text.assemble((f"{name}: ", "bold"), str(description)))


def table(statuses: Sequence[BackendStatus]) -> Table:
    """Return a table with a row for each device, and for each backend without any."""
    grid = new_table(*_COLUMNS)
    for status in statuses:
        brought_by = " ".join((status.distribution, status.version)).strip()
        if not status.devices:
            grid.add_row(status.name, _state(state_of(status)), "", "", "", brought_by)
        for device in status.devices:
            grid.add_row(device.name, _state(device.state), *_facts(device.facts))
    return grid


def state_of(status: BackendStatus) -> str:
    """Return the state of a backend without devices: nothing is wrong with one not asked for."""
    if status.state == "ready":
        return "when named"
    is_absent = status.reason.startswith("not installed")
    return "not installed" if is_absent else status.state


def remarks(statuses: Sequence[BackendStatus]) -> Iterator[Text]:
    """Yield a paragraph for what is not ready, with reason and hint, and for each choice."""
    for status in statuses:
        if status.notes:
            yield Text.assemble("\n", (f"{status.name}: ", "bold"), "\n  ".join(status.notes))
        if status.reason and not status.devices:
            yield _remark(status)
        for device in status.devices:
            if device.reason:
                yield _remark(device)


def _remark(status: BackendStatus | DeviceStatus) -> Text:
    text = Text("\n")
    text.append(f"{status.name}: ", style="bold")
    text.append(status.reason)
    if status.hint:
        text.append(f"\n  try: {status.hint}")
    return text


def _state(state: str) -> Text:
    return Text(state, style=_STYLE.get(state, _BAD))


def _facts(facts: DeviceFacts | None) -> tuple[str, str, str, str]:
    if facts is None:
        return "", "", "", ""
    streams = str(facts.max_streams) if facts.max_streams < 1000 else "many"
    return facts.kind, nbytes_text(facts.memory_nbytes), streams, facts.description + _slow(facts)


def _slow(facts: DeviceFacts) -> str:
    """Say for which ops a device has no kernel of its own."""
    ops = sorted(facts.reference_ops)
    if len(ops) > MAX_NAMED:
        return f"; {len(ops)} ops by reference"
    return f"; by reference: {', '.join(ops)}" if ops else ""
