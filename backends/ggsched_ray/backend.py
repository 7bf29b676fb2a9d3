"""The backend: which nodes a Ray cluster has, and the devices that their workers open."""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Final

from ggsched.backend.protocols import CONTRACT_VERSION, Device
from ggsched.backend.timeouts import event_timeout
from ggsched.errors import BackendUnavailable
from ggsched_cluster.members import Start
from ggsched_cluster.remote_devices import open_group

SCHEME: Final = "ray"
MODULES: Final = ("ray",)
_HINT: Final = "write ray:// for all devices of the cluster, or ray://NODE/cuda:0"


class RayBackend:
    """Devices of other machines. None is offered unless it is named."""

    name = SCHEME
    contract_version = CONTRACT_VERSION
    example = "ray://"

    def __init__(self) -> None:
        missing = [module for module in MODULES if not _is_installed(module)]
        if missing:
            raise BackendUnavailable(
                f"not installed: {' and '.join(missing)}", hint="pip install 'ggsched[ray]'"
            )

    def device_count(self) -> int:
        """Return 0: looking at a cluster takes a connection to it."""
        return 0

    def open_device(self, index: int) -> Device:
        """Refuse a number.

        Raises:
            BackendUnavailable: always.
        """
        raise BackendUnavailable("devices of a cluster have no numbers", hint=_HINT)

    def open_named(self, specs: Sequence[str]) -> list[Device]:
        """Start a worker on each node that is named, and return the devices.

        Args:
            specs: ``ray://`` for all nodes, ``ray://NODE`` for all devices of a node, or
                ``ray://NODE/cuda:0``. The devices of a node stand together.

        Raises:
            BackendUnavailable: no cluster, no such node, or no device there.
            UsageError: a device that a node does not have.
        """
        from ggsched_ray.members import node_address, started

        wanted = _by_node(specs)
        names = tuple(name for name, _ in wanted)
        start = Start(SCHEME, lambda token: started(token, names), node_address())
        return open_group(start, wanted, timeout_s=event_timeout())


def _is_installed(module: str) -> bool:
    """Whether a module is there; a folder of its name, such as Ray's in /tmp, is not."""
    spec = find_spec(module)
    return spec is not None and spec.origin is not None


def _by_node(specs: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
    """Return the devices by node, in order; nothing stands for everything."""
    found: dict[str, list[str]] = {}
    for spec in specs:
        node, _, device = spec.removeprefix(f"{SCHEME}://").strip("/").partition("/")
        if not node:
            return []
        found.setdefault(node, []).extend([device] if device else [])
    return [(node, tuple(devices)) for node, devices in found.items()]
