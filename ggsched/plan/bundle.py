"""The plan: every artifact in one frozen object that can be printed, saved and checked."""

from typing import Final

import msgspec

from ggsched.plan.command import Command
from ggsched.plan.fusions import Fusion
from ggsched.plan.memory import Memory
from ggsched.plan.placement import Placement
from ggsched.plan.splits import Splits
from ggsched.plan.streams import Streams
from ggsched.topology.caps import DeviceFacts
from ggsched.topology.cost import GUESSES

FORMAT: Final = "ggsched-plan/3"


class NodeInfo(msgspec.Struct, frozen=True, gc=False):
    """What a reader of the plan wants to know of a node without the graph at hand.

    Attributes:
        op: Name of the op.
        label: Label of the node.
        version: Of a user-defined op, the version that the plan was made with.
    """

    op: str
    label: str
    version: str = ""


class HostSlot(msgspec.Struct, frozen=True, gc=False):
    """Host bytes of a graph input or output.

    Attributes:
        name: Name of the input, or of the output tensor's storage.
        tensor: Tensor id; an output is one of the graph's outputs.
        value: Value in host memory that holds its bytes.
    """

    name: str
    tensor: int
    value: int


class Trade(msgspec.Struct, frozen=True, gc=False):
    """A wait that no data needs: it lets values share bytes that would else lie apart.

    Attributes:
        command: The wait, barrier or host sync.
        saved_nbytes: Bytes that are shared because of it.
        cost_s: Predicted seconds that its stream, or the host, stands still for it.
    """

    command: int
    saved_nbytes: int
    cost_s: float


class Plan(msgspec.Struct, frozen=True):
    """All that is needed to run a graph once, and again.

    The plan assumes at entry that every earlier run of it has been enqueued and that the host has
    written the inputs; it leaves the outputs in host memory when its last command returns.

    Attributes:
        format: Version of the JSON form.
        graph: Digest of the graph.
        name: Label of the graph.
        topology: Digest of the topology.
        devices: Facts of each device of the topology.
        nodes: Op and label of each node.
        placement: Device of each node, with causes.
        splits: Splits, values, transfers.
        streams: Stream of each node and transfer.
        memory: Arenas and regions.
        inputs: Host slots that the host writes before each run.
        outputs: Host slots that the host reads after each run.
        commands: What is enqueued, in order.
        rates: Where the rates came from that decisions went by, for people.
        planning_s: Seconds that planning took; not part of the plan's identity.
        trades: Waits that exist to save memory, which only a memory budget brings about.
        fusions: Groups of nodes that run as one, ordered by their last nodes.
        graph_text: The graph, as of ``ggsched.ir.text``, where it was requested; else "".
    """

    format: str
    graph: str
    name: str
    topology: str
    devices: tuple[DeviceFacts, ...]
    nodes: tuple[NodeInfo, ...]
    placement: Placement
    splits: Splits
    streams: Streams
    memory: Memory
    inputs: tuple[HostSlot, ...]
    outputs: tuple[HostSlot, ...]
    commands: tuple[Command, ...]
    rates: str = GUESSES
    planning_s: float = 0.0
    trades: tuple[Trade, ...] = ()
    fusions: tuple[Fusion, ...] = ()
    graph_text: str = ""
