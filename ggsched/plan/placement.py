"""Which device runs each node, and why."""

from typing import Literal

import msgspec

Cause = Literal["pin", "weights", "owner", "expand-down", "expand-up", "upgrade", "fill"]
"""What decided: an explicit pin, the location of a weight, the location of the storage that the
node writes through, the neighbour before or after it, a move to where its neighbours are, or the
highest-priority device that supports it."""


class Choice(msgspec.Struct, frozen=True, gc=False):
    """The device of one node.

    Attributes:
        device: Index in the topology.
        cause: Which rule decided.
        detail: The object that the rule looked at, e.g. the weight's name.
    """

    device: int
    cause: Cause
    detail: str = ""


class Placement(msgspec.Struct, frozen=True):
    """A device for each node and a home for each storage.

    Attributes:
        choices: One for each node, by node id.
        homes: Device whose memory holds each storage, by tensor id of its root. Inputs that no
            node writes have no home: they are uploaded to each device that reads them.
    """

    choices: tuple[Choice, ...]
    homes: dict[int, int]
