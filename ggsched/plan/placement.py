"""Which device runs each node, and why."""

from typing import Literal

import msgspec

Cause = Literal[
    "pin",
    "weights",
    "owner",
    "expand-down",
    "expand-up",
    "upgrade",
    "fill",
    "offload",
    "cost",
    "policy",
    "decomposed",
]
"""What decided: an explicit pin, the location of a weight, the location of the storage that the
node writes through, the neighbour before or after it, a move to where its neighbours are, the
highest-priority device that supports it, a prediction for experts (see ``OpOffload``) or for
the whole graph (see ``PlacementCandidate``), a policy of the caller, or what decided for the op
that the node is a part of, for which its device has no kernel."""


class PlacementChoice(msgspec.Struct, frozen=True, gc=False):
    """The device of one node.

    Attributes:
        device: Index in the topology.
        cause: Which rule decided.
        detail: The object that the rule looked at, e.g. the weight's name.
    """

    device: int
    cause: Cause
    detail: str = ""


class OpOffload(msgspec.Struct, frozen=True, gc=False):
    """Nodes whose weights live on one device, and that another one could compute.

    Attributes:
        first: First node.
        end: One past the last.
        ids: Tensor of the ids that the router chose; -1 where no router chooses.
        here: Device that holds the weights.
        there: Device that could compute.
        here_s: Predicted seconds on the device that holds the weights, crossings included.
        there_s: Predicted seconds on the other one, weights' copies included as far as nothing
            hides them.
        way: How the weights get there: the ``rows`` that the router chose, once it has, or the
            whole ``layer``, before.
        is_taken: Whether they are computed there.
        slot: Slot of the staging ring that the weights go to.
        ahead: So many of the taken offloads before this one the copies begin; if there are not so
            many, at the beginning.
        cached: Rows of each weight that the other device keeps between runs.
    """

    first: int
    end: int
    ids: int
    here: int
    there: int
    here_s: float
    there_s: float
    way: Literal["rows", "layer"]
    is_taken: bool
    slot: int = 0
    ahead: int = 0
    cached: int = 0


class PlacementCandidate(msgspec.Struct, frozen=True, gc=False):
    """A placement of the whole graph that a policy considered.

    Attributes:
        name: How it was found.
        seconds: Predicted seconds of a run; None where no plan can be made.
        measured_s: Seconds of the fastest run, where placements were measured.
        shortage_nbytes: Bytes that it lacks, over all devices.
        is_taken: Whether it is the one.
        reason: Why no plan can be made, or "".
    """

    name: str
    seconds: float | None
    shortage_nbytes: int
    is_taken: bool
    reason: str = ""
    measured_s: float | None = None


class Placement(msgspec.Struct, frozen=True):
    """A device for each node and a home for each storage.

    Attributes:
        choices: One for each node, by node id.
        homes: Device whose memory holds each storage, by tensor id of its root. Inputs that no
            node writes have no home: they are uploaded to each device that reads them.
        offloads: Experts and layers that could be computed elsewhere, by first node, whether they
            are or not.
        candidates: Placements of the whole graph that were compared by prediction.
    """

    choices: tuple[PlacementChoice, ...]
    homes: dict[int, int]
    offloads: tuple[OpOffload, ...] = ()
    candidates: tuple[PlacementCandidate, ...] = ()
