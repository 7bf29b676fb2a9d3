"""Checks of transfers that move the rows that ids name, and of the readers of what they leave."""

from ggsched.errors import PlanError
from ggsched.ids import show
from ggsched.ir.graph import Graph, Node
from ggsched.ir.ops import OPS
from ggsched.plan.splits import HOST, Splits, Transfer
from ggsched.topology.model import Topology


def verify_rows(topology: Topology, splits: Splits, t: Transfer, where: str) -> None:
    """Check that rows are rows of a weight, on a way that exists, by ids that the host has.

    Raises:
        PlanError: they are not.
    """
    rows = t.rows
    assert rows is not None
    src, dst = splits.values[t.src], splits.values[t.dst]
    if not src.bound or src.nbytes != dst.nbytes or HOST in (src.device, dst.device):
        raise PlanError("row-copy source must be a whole weight", where=where)
    if rows.nbytes < 1 or src.nbytes % rows.nbytes or rows.cached < 0:
        raise PlanError(f"rows of {rows.nbytes} bytes of {src.nbytes}", where=where)
    if not 0 <= rows.ids < len(splits.values) or splits.values[rows.ids].device != HOST:
        raise PlanError(f"rows by value {rows.ids}, which is not in host memory", where=where)
    path = topology.copy_paths.get((src.device, dst.device))
    if rows.through_host_view:
        if not topology.devices[src.device].is_host or t.by != dst.device:
            name = topology.devices[src.device].name
            raise PlanError(f"rows through the host view of {name}, which has none", where=where)
    elif path is None or path.by != t.by:
        why = f"there is no such path from device {src.device} to {dst.device}"
        raise PlanError(f"rows copied by {show('device', t.by)}", where=where, why=why)


def verify_takers(graph: Graph, splits: Splits) -> None:
    """Check that only rows are read of a value of which only rows are filled, by the same ids.

    Raises:
        PlanError: a node reads all of it, or rows by other ids.
    """
    filled = {t.dst: t.rows.ids for t in splits.transfers if t.rows is not None}
    if not filled:
        return
    for node in graph.nodes:
        for k, value in enumerate(splits.bindings[node.id]):
            if value in filled:
                _verify_taker(graph, splits, node, k, filled[value])


def _verify_taker(graph: Graph, splits: Splits, node: Node, k: int, ids: int) -> None:
    rows = OPS[node.op].rows
    if rows is None or rows[0] != k:
        what = f"reads all of {show('value', splits.bindings[node.id][k])}, of which rows are there"
        raise PlanError(what, where=graph.label(node))
    named, held = graph.tensors[node.inputs[rows[1]]], splits.values[ids]
    is_same = named.storage == held.storage and held.start <= named.offset <= named.end <= held.end
    if not is_same:
        what = f"takes rows by {show('tensor', named.id)}"
        why = f"those of {show('value', ids)} are there"
        raise PlanError(what, where=graph.label(node), why=why)
