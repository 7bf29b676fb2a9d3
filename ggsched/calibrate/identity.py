"""What tells one device from another, so that rates of one are never taken for another's."""

import hashlib
import json
from dataclasses import asdict

from ggsched.topology.caps import DeviceFacts


def device_identity(facts: DeviceFacts) -> str:
    """Return a short hash of a device's facts, its name apart.

    Two logical devices of one processor have one identity. A driver or a plug-in that declares
    something else (another version in the description, another op) is another device.
    """
    known = {**asdict(facts), "name": ""}
    text = json.dumps(known, sort_keys=True, default=sorted)  # sets have no order of their own
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
