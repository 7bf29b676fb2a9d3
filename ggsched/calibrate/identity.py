"""What distinguishes devices, so that rates of one are never used for another."""

import hashlib
import json

from ggsched.topology.caps import DeviceFacts, facts_to_json
from ggsched.topology.cost import machine_of


def device_identity(facts: DeviceFacts) -> str:
    """Return a short hash of a device's facts, its name apart, and of its machine.

    Two logical devices of one processor have one identity. A driver or a plug-in that declares
    something else (another version in the description, another op) is another device, and so is
    an equal one of another machine of a cluster: its processor may have other work.
    """
    text = json.dumps({**facts_to_json(facts), "name": machine_of(facts)}, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
