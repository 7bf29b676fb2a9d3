"""What all policies start from: able devices, pinned storages, homes of what outlives a run.

The unit of placement is the *storage*: every node that writes into a storage, through views too,
runs where the storage lives, so no write can be lost.
"""

from ggsched.errors import PlanError
from ggsched.ids import show
from ggsched.ir.graph import Graph, Node
from ggsched.ir.tensor import Role
from ggsched.passes.place import Constraints
from ggsched.plan.placement import Cause, Placement, PlacementChoice
from ggsched.topology.caps import lacking
from ggsched.topology.model import Topology

_Asked = tuple[str, str, object]
"""What ``lacking`` takes."""


def _asked(graph: Graph, node: Node) -> _Asked:
    return node.op, graph.tensors[node.inputs[0]].dtype.name, node.params.get("of")


class PlacementTables:
    """By storage: the home so far, the reason for it, and the devices that support its writers."""

    def __init__(self, graph: Graph, topology: Topology) -> None:
        self.graph = graph
        self.topology = topology
        tensors = graph.tensors
        self.out = [tensors[n.output].storage for n in graph.nodes]
        self.home = [-1] * len(tensors)
        self.choice: dict[int, PlacementChoice] = {}
        self.able = _able(graph, topology, self.out)

    def is_open(self) -> bool:
        """Whether a storage that nodes write has no home yet."""
        return min(map(self.home.__getitem__, self.out), default=0) < 0

    def has(self, device: int) -> bool:
        """Whether a device index exists."""
        return 0 <= device < len(self.topology.devices)

    def settle(self, storage: int, device: int, cause: Cause, detail: str) -> None:
        """Give a storage a home, with the reason."""
        self.home[storage] = device
        self.choice[storage] = PlacementChoice(device, cause, detail)


def _able(graph: Graph, topology: Topology, out: list[int]) -> list[int]:
    """Return for each storage a bit mask of the devices that support all nodes writing it."""
    masks: dict[_Asked, int] = {}
    able = [(1 << len(topology.devices)) - 1] * len(graph.tensors)
    for node, storage in zip(graph.nodes, out, strict=True):
        asked = _asked(graph, node)
        mask = masks.get(asked)
        if mask is None:
            mask = sum(1 << i for i, d in enumerate(topology.devices) if not lacking(d, *asked))
            masks[asked] = mask
        able[storage] &= mask
        if not able[storage]:
            raise _nobody_can(graph, topology, out, node)
    return able


def _nobody_can(graph: Graph, topology: Topology, out: list[int], last: Node) -> PlanError:
    storage = out[last.id]
    writers = [n for n, s in zip(graph.nodes, out, strict=True) if s == storage]
    names = ", ".join(d.name for d in topology.devices)
    missing = [lacking(d, *_asked(graph, last)) for d in topology.devices]
    if len(writers) == 1 or all(missing):
        return PlanError(
            f"no device supports {max(missing, key=len)}",
            where=graph.label(last),
            hint=f"devices: {names}; add one that does, e.g. cpu:0",
        )
    labels = ", ".join(graph.label(n) for n in writers[:4])
    return PlanError(
        "no device supports every node that writes this storage",
        where=f"{show('tensor', storage)} {graph.tensors[storage].name!r}",
        why=f"written by {labels}",
        hint="nodes that write through a view must run where the storage lives; copy with cont()",
    )


def _no_device(device: int, where: str) -> PlanError:
    return PlanError(f"device index {device} does not exist", where=where)


def place_pinned(work: PlacementTables, constraints: Constraints) -> None:
    """Settle what the constraints decide.

    Raises:
        PlanError: a device index that does not exist, that the device cannot honour or that
            contradicts another.
    """
    for name, device in constraints.homes.items():
        if name not in work.graph:
            continue
        tensor = work.graph.named(name)
        if not work.has(device):
            raise _no_device(device, name)
        if tensor.role is not Role.WEIGHT:
            _pin(work, tensor.id, PlacementChoice(device, "owner", name))
    count, out = len(work.graph.nodes), work.out
    choices = [PlacementChoice(i, "pin", d.name) for i, d in enumerate(work.topology.devices)]
    for node_id, device in constraints.pins.items():
        if not 0 <= node_id < count:
            raise PlanError(f"pin of node {node_id}, which does not exist", where=work.graph.name)
        if not work.has(device):
            raise _no_device(device, work.graph.label(work.graph.nodes[node_id]))
        _pin(work, out[node_id], choices[device])


def _pin(work: PlacementTables, storage: int, choice: PlacementChoice) -> None:
    home, device = work.home[storage], choice.device
    if (home != device and home >= 0) or not work.able[storage] >> device & 1:
        raise _cannot_pin(work, storage, choice)
    work.home[storage], work.choice[storage] = device, choice


def _cannot_pin(work: PlacementTables, storage: int, choice: PlacementChoice) -> PlanError:
    device = choice.device
    where = f"{show('tensor', storage)} {work.graph.tensors[storage].name!r}"
    name = work.topology.devices[device].name
    if work.home[storage] not in (-1, device):
        other = work.topology.devices[work.home[storage]].name
        return PlanError(
            f"pinned to {name} and to {other}", where=where, hint="remove one of the pins"
        )
    writers = (n for n, s in zip(work.graph.nodes, work.out, strict=True) if s == storage)
    asked = ((n, lacking(work.topology.devices[device], *_asked(work.graph, n))) for n in writers)
    node, missing = next((n, what) for n, what in asked if what)
    able = [d.name for i, d in enumerate(work.topology.devices) if work.able[storage] >> i & 1]
    return PlanError(
        f"{'its home is' if choice.cause == 'owner' else 'pinned to'} {name}, which does not "
        "support the nodes that write it",
        where=where,
        why=f"{work.graph.label(node)} needs {missing}",
        hint=f"these do: {', '.join(able)}",
    )


def finished(work: PlacementTables, constraints: Constraints) -> Placement:
    """Return the placement once every storage that nodes write has a home."""
    return Placement(tuple([work.choice[s] for s in work.out]), find_homes(work, constraints))


def find_homes(work: PlacementTables, constraints: Constraints) -> dict[int, int]:
    """Return the home of each storage that needs one."""
    tensors = work.graph.tensors
    homes = {s: work.home[s] for s in work.out}
    lasting = (Role.WEIGHT, Role.STATE)
    for name, device in constraints.homes.items():
        if name not in work.graph:
            continue
        homes[work.graph.named(name).id] = device
    for node, storage in zip(work.graph.nodes, work.out, strict=True):
        for tid in node.inputs:
            t = tensors[tid]
            if t.role in lasting:
                homes.setdefault(t.storage, work.home[storage])
    for tid in work.graph.outputs:
        t = tensors[tid]
        if t.role is not Role.INPUT:
            homes.setdefault(t.storage, 0)
    for t in tensors:
        if t.role in lasting and not t.is_view:
            homes.setdefault(t.id, 0)
    return homes
