"""Labels of nodes that make one result of what several devices have computed.

Devices that share layers add their summands up, or join their parts, by ordinary nodes (ADR 46).
Their labels say so, that people can see in a report what sharing costs.
"""

import re
from typing import Final, Literal

SUM: Final = "_sum"
JOINED: Final = "_joined"

_COLLECTIVE: Final = re.compile(r"(_sum|_joined)#\d+(?:@\d+)?'?$")


def collective_of(label: str) -> Literal["sum over devices", "join over devices", ""]:
    """Return what a node of a label does over devices, if it does.

    >>> collective_of("n12 add 'ffn_out_sum#1@3'")
    'sum over devices'
    """
    match = _COLLECTIVE.search(label)
    if match is None:
        return ""
    return "sum over devices" if match[1] == SUM else "join over devices"
