"""What must hold between passes: each artifact against the graph, the topology and the others.

Every function raises ``PlanError`` that names the object and returns nothing. All of them take
time that grows with the size of the artifact. That hazards are *ordered* is not checked here: it is
the question of ``ggsched.sanitize``, which answers it with code of its own.
"""

from ggsched.errors import PlanError
from ggsched.ids import IdKind, show
from ggsched.ir.graph import Graph, Node
from ggsched.ir.tensor import Role
from ggsched.plan.placement import Placement
from ggsched.plan.splits import HOST, Splits, Transfer, Value
from ggsched.plan.streams import Streams
from ggsched.plan.verify_fusions import verify_fusions
from ggsched.plan.verify_memory import verify_memory
from ggsched.plan.verify_rows import verify_rows, verify_takers
from ggsched.topology.caps import offers, reads_peer
from ggsched.topology.model import Topology

__all__ = [
    "verify_fusions",
    "verify_memory",
    "verify_placement",
    "verify_splits",
    "verify_streams",
]


def verify_placement(graph: Graph, topology: Topology, placement: Placement) -> None:
    """Check that each node has a device that can run it, where the bytes that it writes live.

    Raises:
        PlanError: a node without a choice, a device that does not exist or does not support the
            op, a storage without a home although nodes write it, a node that writes a storage
            whose home is another device.
    """
    if len(placement.choices) != len(graph.nodes):
        raise PlanError(f"{len(placement.choices)} choices for {len(graph.nodes)} nodes")
    count = len(topology.devices)
    for node, choice in zip(graph.nodes, placement.choices, strict=True):
        where = graph.label(node)
        if not 0 <= choice.device < count:
            raise PlanError(f"placed on {show('device', choice.device)}, no device", where=where)
        facts = topology.devices[choice.device]
        first = graph.tensors[node.tensors[0]]
        if not offers(facts.ops, node.op, first.dtype.name):
            why = f"it does not support {node.op} of {first.dtype}"
            raise PlanError(f"placed on {facts.name}", where=where, why=why)
        home = placement.homes.get(graph.tensors[node.output].storage)
        if home != choice.device:
            why = f"the home of {show('tensor', graph.tensors[node.output].storage)} is {home}"
            raise PlanError(f"writes a storage from {facts.name}", where=where, why=why)
    for tid, device in placement.homes.items():
        where = show("tensor", tid)
        if not 0 <= tid < len(graph.tensors) or graph.tensors[tid].is_view:
            raise PlanError("home of a tensor that is not a storage", where=where)
        if not 0 <= device < count:
            raise PlanError(f"its home is {show('device', device)}, no device", where=where)


def verify_splits(graph: Graph, topology: Topology, placement: Placement, splits: Splits) -> None:
    """Check splits, values, transfers and bindings.

    Raises:
        PlanError: splits that do not give back the node order or mix devices, a value outside its
            storage or in the wrong memory, a transfer without a path or from bytes that its
            source does not hold, an operand bound to a value that does not hold it, is elsewhere
            or is not filled yet.
    """
    _verify_cut(graph, placement, splits)
    homes: set[int] = set()
    for i, value in enumerate(splits.values):
        _verify_value(graph, topology, placement, i, value, homes)
    for i, transfer in enumerate(splits.transfers):
        _verify_transfer(topology, splits, i, transfer)
    if len(splits.bindings) != len(graph.nodes):
        raise PlanError(f"{len(splits.bindings)} bindings for {len(graph.nodes)} nodes")
    _verify_flow(graph, topology, splits)
    verify_takers(graph, splits)


def verify_streams(topology: Topology, splits: Splits, streams: Streams) -> None:
    """Check that each split and transfer has a stream of the device that executes it.

    Raises:
        PlanError: an unknown stream or device, a stream of another device, more streams than the
            device offers.
    """
    used = [0] * len(topology.devices)
    for i, stream in enumerate(streams.streams):
        where = show("stream", i)
        if stream.id != i:
            raise PlanError(f"has the id {stream.id}", where=where, why="ids are dense")
        if not 0 <= stream.device < len(used):
            raise PlanError(f"on {show('device', stream.device)}, no device", where=where)
        used[stream.device] += 1
    for facts, number in zip(topology.devices, used, strict=True):
        if number > facts.max_streams:
            raise PlanError(f"{number} streams of {facts.max_streams}", where=facts.name)
    wanted = [s.device for s in splits.splits for _ in range(s.first, s.end)]
    _verify_assigned(streams, "node", streams.of_node, wanted)
    _verify_assigned(streams, "transfer", streams.of_transfer, [t.by for t in splits.transfers])


def _verify_assigned(
    streams: Streams, what: str, assigned: tuple[int, ...], wanted: list[int]
) -> None:
    if len(assigned) != len(wanted):
        raise PlanError(f"{len(assigned)} streams for {len(wanted)} {what}s")
    for i, (stream, device) in enumerate(zip(assigned, wanted, strict=True)):
        where = f"{what} {i}"
        if not 0 <= stream < len(streams.streams):
            raise PlanError(f"on {show('stream', stream)}, which does not exist", where=where)
        if streams.streams[stream].device != device:
            why = f"it runs on {show('device', device)}"
            raise PlanError(f"on {show('stream', stream)} of another device", where=where, why=why)


def _verify_cut(graph: Graph, placement: Placement, splits: Splits) -> None:
    at = 0
    for i, part in enumerate(splits.splits):
        where = show("split", i)
        if part.id != i or part.first != at or part.end <= part.first:
            what = f"id {part.id}, nodes [{part.first}, {part.end})"
            raise PlanError(what, where=where, why=f"the next node is {show('node', at)}")
        at = part.end
        if at > len(graph.nodes):
            raise PlanError(f"ends at {show('node', at)}, beyond the graph", where=where)
        for node in range(part.first, at):
            if placement.choices[node].device != part.device:
                why = f"{show('node', node)} is placed on {placement.choices[node].device}"
                raise PlanError(f"on {show('device', part.device)}", where=where, why=why)
    if at != len(graph.nodes):
        raise PlanError(f"the splits end at {show('node', at)} of {len(graph.nodes)}")


def _verify_value(
    graph: Graph, topology: Topology, placement: Placement, i: int, v: Value, homes: set[int]
) -> None:
    where = show("value", i)
    if v.id != i or not 0 <= v.storage < len(graph.tensors):
        raise PlanError(f"id {v.id} of {show('tensor', v.storage)}", where=where)
    root = graph.tensors[v.storage]
    if root.is_view or not 0 <= v.start <= v.end <= root.nbytes:
        what = f"bytes [{v.start}, {v.end}) of {show('tensor', v.storage)}"
        raise PlanError(what, where=where, why=f"a storage of {root.nbytes} bytes")
    if v.kind in ("input", "output", "staging"):
        if v.device != HOST or v.bound:
            what = f"{v.kind} {_place(v.device)}, bound to {v.bound!r}"
            raise PlanError(what, where=where, why="it is unbound host memory")
        if v.kind == "input" and (root.role is not Role.INPUT or v.nbytes != root.nbytes):
            raise PlanError(f"input slot of {root.role.value} {root.name!r}", where=where)
        return
    if not 0 <= v.device < len(topology.devices):
        raise PlanError(f"on {show('device', v.device)}, no device", where=where)
    bound = root.name if root.role in (Role.WEIGHT, Role.STATE) and v.kind == "home" else ""
    if v.bound != bound:
        raise PlanError(f"bound to {v.bound!r} instead of {bound!r}", where=where)
    home = placement.homes.get(v.storage)
    if v.kind == "home":
        if v.device != home or v.nbytes != root.nbytes or v.storage in homes:
            what = f"home of {show('tensor', v.storage)} on {show('device', v.device)}"
            why = "a storage has one home, whole, where the placement says"
            raise PlanError(what, where=where, why=why)
        homes.add(v.storage)
    elif v.device == home:
        raise PlanError("a replica beside the home", where=where)


def _verify_transfer(topology: Topology, splits: Splits, i: int, t: Transfer) -> None:
    where = f"transfer {i}"
    earlier = splits.transfers[i - 1].before if i else 0
    count = len(splits.values)
    if (
        t.id != i
        or not (0 <= t.src < count and 0 <= t.dst < count)
        or ((t.src == t.dst) != (t.pattern is not None))
    ):
        raise PlanError(f"id {t.id} from value {t.src} to {t.dst}", where=where)
    if not earlier <= t.before <= len(splits.splits):
        raise PlanError(f"before {show('split', t.before)}", where=where, why="out of order")
    src, dst = splits.values[t.src], splits.values[t.dst]
    if src.storage != dst.storage or not src.start <= dst.start <= dst.end <= src.end:
        what = f"{show('value', dst.id)} is not within {show('value', src.id)}"
        raise PlanError(what, where=where, why="a transfer fills all of its destination")
    if t.by == HOST or t.by not in (src.device, dst.device):
        why = "the device of one of the ends does it"
        raise PlanError(f"executed {_place(t.by)}", where=where, why=why)
    if t.rows is not None:
        verify_rows(topology, splits, t, where)
    elif t.pattern is not None:
        if dst.bound == "" or dst.nbytes % max(1, len(t.pattern)):
            what = f"fills {show('value', dst.id)} with {t.pattern.hex()}"
            raise PlanError(what, where=where, why="it is not a state of whole patterns")
    elif src.device != HOST and dst.device != HOST:
        path = topology.copy_paths.get((src.device, dst.device))
        if path is None or path.by != t.by:
            why = f"there is no such path from device {src.device} to {dst.device}"
            raise PlanError(f"a copy by {show('device', t.by)}", where=where, why=why)
    if dst.kind == "input":
        raise PlanError("fills an input slot, which is the host's", where=where)


def _verify_flow(graph: Graph, topology: Topology, splits: Splits) -> None:
    """Walk the program in order: every operand is bound to a value that is there and filled."""
    filled = {v.id for v in splits.values if v.bound or v.kind == "input"}
    pending = iter(splits.transfers)
    following = next(pending, None)
    for part in splits.splits:
        while following is not None and following.before == part.id:
            _fill(following, filled)
            following = next(pending, None)
        for node in graph.nodes[part.first : part.end]:
            _verify_binding(graph, topology, splits, part.device, node, filled)
    while following is not None:
        _fill(following, filled)
        following = next(pending, None)


def _fill(transfer: Transfer, filled: set[int]) -> None:
    if transfer.rows is not None and transfer.rows.ids not in filled:
        what = f"is chosen by {show('value', transfer.rows.ids)}, which nothing has filled"
        raise PlanError(what, where=f"transfer {transfer.id}")
    if transfer.src not in filled:
        what = f"reads {show('value', transfer.src)}, which nothing has filled"
        raise PlanError(what, where=f"transfer {transfer.id}")
    filled.add(transfer.dst)


def _verify_binding(
    graph: Graph,
    topology: Topology,
    splits: Splits,
    device: int,
    node: Node,
    filled: set[int],
) -> None:
    binding = splits.bindings[node.id]
    if len(binding) != len(node.tensors):
        raise PlanError(f"{len(binding)} values bound", where=graph.label(node))
    for tid, vid, mode in zip(node.tensors, binding, node.modes, strict=True):
        _verify_operand(graph, splits, node, tid, vid)
        value = splits.values[vid]
        is_peer = mode == "r" and value.device >= 0 and value.kind == "home"
        if value.device != device and not (
            is_peer and reads_peer(topology.devices[device], topology.devices[value.device])
        ):
            what = f"{show('value', vid)} lies {_place(value.device)}"
            raise PlanError(what, where=graph.label(node))
        if mode == "r" and vid not in filled:
            raise PlanError(f"reads {_shown('value', vid)}, not filled", where=graph.label(node))
    if splits.values[binding[-1]].kind != "home":
        what = f"writes {show('value', binding[-1])}, which is not a home"
        raise PlanError(what, where=graph.label(node))
    filled.add(binding[-1])


def _verify_operand(graph: Graph, splits: Splits, node: Node, tid: int, vid: int) -> None:
    t = graph.tensors[tid]
    if not 0 <= vid < len(splits.values):
        raise PlanError(f"bound to {_shown('value', vid)}", where=graph.label(node))
    value = splits.values[vid]
    if value.storage != t.storage or not value.start <= t.offset <= t.end <= value.end:
        what = f"{show('value', vid)} does not hold {show('tensor', tid)}"
        raise PlanError(what, where=graph.label(node))


def _place(device: int) -> str:
    return "in host memory" if device == HOST else f"on {show('device', device)}"


def _shown(kind: IdKind, number: int) -> str:
    return show(kind, number) if number >= 0 else f"{kind} {number}"
