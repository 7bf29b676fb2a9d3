"""The backend: which nodes a Ray cluster has, and the devices that their workers open."""

from importlib.util import find_spec
from typing import Final

from ggsched.errors import BackendUnavailable
from ggsched_cluster.backend import MachinesBackend
from ggsched_cluster.members import Start

SCHEME: Final = "ray"
MODULES: Final = ("ray",)
_HINT: Final = "write ray:// for all devices of the cluster, or ray://NODE/cuda:0"


def open_cluster() -> MachinesBackend:
    """Return the backend.

    Raises:
        BackendUnavailable: ray is not installed.
    """
    missing = [module for module in MODULES if not _is_installed(module)]
    if missing:
        raise BackendUnavailable(
            f"not installed: {' and '.join(missing)}", hint="pip install 'ggsched[ray]'"
        )
    return MachinesBackend(SCHEME, f"{SCHEME}://", _HINT, _start)


def _start(names: tuple[str, ...]) -> Start:
    from ggsched_ray.members import node_address, started

    return Start(SCHEME, lambda token: started(token, names), node_address())


def _is_installed(module: str) -> bool:
    """Whether a module is there; a folder of its name, such as Ray's in /tmp, is not."""
    spec = find_spec(module)
    return spec is not None and spec.origin is not None
