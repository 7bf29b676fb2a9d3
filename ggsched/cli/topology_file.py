"""The machine that a plan is for: this one, or one that a topology file describes."""

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ggsched.cli.options import option
from ggsched.config import Settings, exported
from ggsched.errors import GgschedError
from ggsched.files.reading import read_argument

if TYPE_CHECKING:
    from ggsched.backend.protocols import Device
    from ggsched.topology.model import Topology

topology_option = option(
    "--topology",
    "Plan for the machine of a file that 'ggsched devices --json' wrote there; --devices "
    "then names devices of it.",
    metavar="FILE",
)


def written_devices(
    path: str | None, names: Sequence[str] | None
) -> "Sequence[str] | list[Device] | None":
    """Return the devices of a topology file, or the names as they are without a file.

    Args:
        path: The file, ``-`` for stdin, or None.
        names: Which of its devices are used, in order of priority; None for all.

    Raises:
        UsageError: the file cannot be read.
        PlanError: it is damaged, or has no device of that name.
    """
    if path is None:
        return names
    from ggsched.backend.offline_device import paper_devices
    from ggsched.topology.codec import restricted, topology_from_text

    return paper_devices(restricted(topology_from_text(read_argument(path), path), names))


def topology_here(settings: Settings) -> dict[str, Any] | None:
    """Return the topology of all usable devices as plain data; None where none is usable."""
    try:
        return topology_of(None, settings).to_json()
    except GgschedError:
        return None  # the statuses say why


def topology_of(names: Sequence[str] | None, settings: Settings) -> "Topology":
    """Return the topology of devices, which are opened for it; of all usable ones for None.

    Raises:
        GgschedError: one of them cannot be opened.
    """
    from ggsched.backend.probe import probe
    from ggsched.backend.registry import open_devices

    with exported(settings):
        devices = open_devices(names, allow=settings.backends)
    try:
        return probe(devices)
    finally:
        for device in devices:
            with suppress(GgschedError):
                device.close()
