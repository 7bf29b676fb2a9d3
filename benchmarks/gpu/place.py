"""The machine as planning sees it: topologies of sets of devices, to be planned for without it."""

import sys
from typing import Any

from ggsched.backend.probe import probe
from ggsched.backend.registry import open_devices

SETS = (
    ("cuda:0",),
    ("cuda:0", "cpu:0"),
    ("cuda:0/0", "cuda:0/1"),
    ("cuda:0/0", "cuda:0/1", "cpu:0"),
    ("cuda:0", "cuda:1"),
)


def run(*, quick: bool) -> dict[str, Any]:
    """Record the topology of each set of devices that is there."""
    found: dict[str, Any] = {}
    for names in SETS:
        try:
            devices = open_devices(names)
        except Exception as error:
            found[" ".join(names)] = f"not there: {error}"
            continue
        found[" ".join(names)] = probe(devices).to_json()
        for device in devices:
            device.close()
    there = [name for name, topology in found.items() if isinstance(topology, dict)]
    sys.stdout.write(f"   {len(there)} topologies: {there}\n")
    return {"ok": bool(there), "topologies": found}
