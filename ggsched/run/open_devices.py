"""Opens the devices that a caller names, or all that are usable."""

import logging
from collections.abc import Sequence
from typing import Final

from ggsched.backend.protocols import Device
from ggsched.backend.registry import open_devices
from ggsched.config import Settings, exported
from ggsched.errors import BackendUnavailable, GgschedError

_LOG: Final = logging.getLogger("ggsched")


def names_of(devices: Sequence[str] | Sequence[Device] | None) -> list[str] | None:
    """Return the names among what a caller gave; None for all usable devices."""
    return None if devices is None else [d for d in devices if isinstance(d, str)]


def opened(
    devices: Sequence[str] | Sequence[Device] | None, settings: Settings
) -> tuple[list[Device], list[Device]]:
    """Return the devices to close in the end, and all devices.

    Raises:
        UsageError: a device name that makes no sense, or no devices.
        BackendUnavailable: a device that is not there.
        BackendBroken: a plug-in that fails or lies about itself.
    """
    if devices is None or all(isinstance(d, str) for d in devices):
        with exported(settings):
            found = list(open_devices(names_of(devices), allow=settings.backends, on_skip=_say))
        return found, found
    return [], [d for d in devices if not isinstance(d, str)]


def _say(skipped: GgschedError) -> None:
    """Say which backend is left out where all usable devices were requested.

    That a machine has no GPU, or a library is not installed, is reported by ``ggsched devices`` and
    is nothing to be warned of at each run; a plug-in that is broken is.
    """
    level = logging.INFO if isinstance(skipped, BackendUnavailable) else logging.WARNING
    _LOG.log(level, "left out: %s", skipped.one_line())
