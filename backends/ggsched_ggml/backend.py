"""The backend: devices by the names that ggml gives them."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

from ggsched.backend.protocols import Device
from ggsched.errors import BackendUnavailable
from ggsched_ggml import driver
from ggsched_ggml.device import GgmlDevice
from ggsched_ggml.harness import HARNESS

MAX_PARTS: Final = 64
"""Logical devices on each device: each has buffers and streams of its own."""
PROBE_TIMEOUT_S: Final = 60.0
_LIST: Final = "import sys, ggsched_ggml.backend as b; b.list_devices(*sys.argv[1:])"


class GgmlBackend:
    """Finds the library; it is loaded when a device is opened.

    No device is offered unless it is named: most of ggml's are devices of other plug-ins as well.

    Raises:
        BackendUnavailable: there is no library.
    """

    name: Final = "ggml"
    contract_version: Final = (1, 7)
    conformance_harness: Final = HARNESS

    def __init__(self) -> None:
        self._path = driver.find_library()
        self._servers = os.environ.get(driver.SERVERS, "").strip()

    def device_count(self) -> int:
        """Return 0: devices are named."""
        return 0

    @property
    def device_names(self) -> Sequence[str]:
        """What ggml calls its devices, as in ``ggml:CPU``.

        Raises:
            BackendUnavailable: the library cannot be used.
        """
        return device_names(self._path, self._servers)

    @property
    def example(self) -> str:
        """What to write in place of the name of a device."""
        return " or ".join(f"{self.name}:{name}" for name in self.device_names)

    def open_device(self, index: int) -> Device:
        """Open a device by its place in ``device_names``; every call gives one of its own."""
        return self.open_part(index, None)

    def open_part(self, index: int, part: int | None) -> Device:
        """Open a logical device on a device."""
        if part is not None and part >= MAX_PARTS:
            why = f"there are {MAX_PARTS}"
            raise driver.unusable(f"there is no part {part}", "", why, "count from zero")
        library = driver.load(self._path, self._servers)
        handles = driver.device_handles(library)
        if not 0 <= index < len(handles):
            why, hint = f"there are {len(handles)}", f"write ggml:{next(iter(handles), 'CPU')}"
            raise driver.unusable(f"there is no device {index} of ggml", "", why, hint)
        name, handle = list(handles.items())[index]
        suffix = "" if part is None else f"/{part}"
        return GgmlDevice(library, handle, f"{self.name}:{name}{suffix}")


@lru_cache(maxsize=4)
def device_names(path: Path, servers: str) -> tuple[str, ...]:
    """Return the names of a library's devices, see ``driver.load``; another process lists them.

    Raises:
        BackendUnavailable: that process failed, or took too long.
    """
    command = [sys.executable, "-c", _LIST, str(path), servers]
    environ = {**os.environ, "GGML_NO_BACKTRACE": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    try:
        done = subprocess.run(
            command, env=environ, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        what = f"its devices were not listed in {PROBE_TIMEOUT_S:g} s"
        raise driver.unusable(what, str(path)) from error
    if done.returncode:
        why = " ".join(done.stderr.split()[-20:]) or f"signal {-done.returncode}"
        what, hint = "the library ends the process that lists its devices", "use another library"
        raise driver.unusable(what, str(path), why, hint)
    answer = json.loads(done.stdout.splitlines()[-1])
    if "error" in answer:
        raise driver.unusable(*answer["error"])
    return tuple(answer["names"])


def list_devices(path: str, servers: str) -> None:
    """Print the names of a library's devices, or why there are none, as a line of JSON."""
    try:
        names = list(driver.device_handles(driver.load(Path(path), servers)))
        answer: object = {"names": names}
    except BackendUnavailable as error:
        answer = {"error": (error.what, error.where, error.why, error.hint)}
    sys.stdout.write(json.dumps(answer) + "\n")
