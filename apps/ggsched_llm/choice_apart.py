"""Chooses the default devices of a large model in a process that gives its memory back.

To compare the backends of a processor all of them have to be opened, and what OpenCL's drivers for
processors bring along, a compiler among it, stays until the process ends: 190 MB with PoCL. Where
there is a GPU nothing is compared, and the devices are opened here.
"""

import os
import pickle
import subprocess
import sys
from importlib.util import find_spec
from typing import Final

import msgspec

from ggsched.backend.registry import offered
from ggsched.config import Settings
from ggsched.errors import GgschedError
from ggsched_llm.default_devices import DefaultDevices, Expected, default_devices, spec_nbytes
from ggsched_llm.quick_rates import WORTH_NBYTES
from ggsched_llm.spec import ModelSpec

_BINDINGS: Final = "pyopencl"
_COMPARED: Final = ("cpu", "opencl")


def devices_by_default(
    spec: ModelSpec, n_ctx: int, settings: Settings, expected: Expected = None
) -> DefaultDevices:
    """Choose the devices for a model, apart where that saves memory.

    Raises:
        BackendUnavailable: there is no device.
    """
    asked = spec, n_ctx, settings, expected
    return (choose_apart(*asked) if _is_worth_it(spec, settings) else None) or default_devices(
        *asked
    )


def choose_apart(
    spec: ModelSpec, n_ctx: int, settings: Settings, expected: Expected = None
) -> DefaultDevices | None:
    """Return what a process of its own chooses; None if it cannot be started, or fails."""
    if not sys.executable:
        return None
    # -P: what lies in the working directory is not imported.
    command = [sys.executable, "-P", "-m", __name__]
    asked = pickle.dumps((spec, n_ctx, settings, expected))
    try:
        done = subprocess.run(command, input=asked, capture_output=True, check=False)
    except OSError:
        return None
    if done.returncode:
        return None  # what it had to say is said again where the choice is made here
    sys.stderr.write(done.stderr.decode(errors="replace"))
    return msgspec.json.decode(done.stdout, type=DefaultDevices)


def _is_worth_it(spec: ModelSpec, settings: Settings) -> bool:
    if settings.backends is not None or spec_nbytes(spec) < WORTH_NBYTES:
        return False
    return find_spec(_BINDINGS) is not None and not any(offered(besides=_COMPARED).values())


def _main() -> int:
    # What drivers print does not belong to the answer.
    answer = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        found = default_devices(*pickle.load(sys.stdin.buffer))
    except (GgschedError, KeyboardInterrupt):
        return 1  # the caller gets the error when it does the same
    with answer:
        answer.write(msgspec.json.encode(found))
    return 0


if __name__ == "__main__":
    sys.exit(_main())
