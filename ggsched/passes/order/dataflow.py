"""Data flow: which items must follow which because one reads what another writes.

The hazards of a memory in which nothing is shared, by value instead of by byte. Most values are
written once; those that are written several times (states, results that are filled row by row) are
followed byte by byte, so that disjoint parts stay independent.
"""

from collections.abc import Sequence

from ggsched.ir.graph import Graph
from ggsched.passes.order.access_intervals import ArenaHistory, Conflict
from ggsched.passes.order.enqueue_order import EnqueueOrder, Item, host_reads, is_edge
from ggsched.plan.splits import Splits, Transfer

Touch = tuple[int, int, int]
"""(value, first byte, one past the last)."""


def find_dependencies(
    graph: Graph, splits: Splits, order: EnqueueOrder
) -> tuple[Sequence[Conflict], ...]:
    """Return for each item the latest item of each other lane that it must follow.

    They name no bytes, which are not known yet.
    """
    return tuple(_DataFlow(graph, splits, order).run())


class _DataFlow:
    def __init__(self, graph: Graph, splits: Splits, order: EnqueueOrder) -> None:
        self.graph, self.splits, self.items, self.nodes = graph, splits, order.items, order.nodes
        self.lane_of = order.lanes.of_item
        self.writer = [-1] * len(splits.values)
        self.histories = self._histories()
        self.found: list[Conflict] = []
        self.latest: dict[int, int] = {}

    def run(self) -> list[Sequence[Conflict]]:
        """Follow the items in program order."""
        out: list[Sequence[Conflict]] = []
        nodes, lane_of, latest = self.nodes, self.lane_of, self.latest
        transfers = self.splits.transfers
        for number, item in enumerate(self.items):
            lane = lane_of[number]
            if item.kind == "host":
                self._host(item, number, lane)
            elif item.kind != "launch":
                self._transfer(transfers[item.source], item.has_source, number, lane)
            elif item.end == item.first + 1:
                self._node(nodes[item.first], number, lane)
            else:
                for n in nodes[item.first : item.end]:
                    self._node(n, number, lane)
            if latest:
                out.append([Conflict("RAW", 0, 0, 0, earlier) for earlier in latest.values()])
                latest.clear()
            else:
                out.append(())
        return out

    def _node(self, node_id: int, number: int, lane: int) -> None:
        node, bound = self.graph.nodes[node_id], self.splits.bindings[node_id]
        writer, histories = self.writer, self.histories
        lane_of, latest = self.lane_of, self.latest
        for k, mode in enumerate(node.modes):
            value = bound[k]
            if mode == "-":
                continue
            if value in histories:
                self._part(node.tensors[k], value, mode, number, lane)
            elif mode != "r":
                writer[value] = number
            elif (earlier := writer[value]) >= 0:
                other = lane_of[earlier]
                if other != lane and latest.get(other, -1) < earlier:
                    latest[other] = earlier

    def _transfer(self, t: Transfer, has_source: bool, number: int, lane: int) -> None:
        src, dst = self.splits.values[t.src], self.splits.values[t.dst]
        nbytes = dst.end - dst.start
        if nbytes and src.end > src.start:
            if has_source:
                low = dst.start - src.start
                self._read(t.src, low, low + nbytes, number, lane)
            self._write(t.dst, 0, nbytes, number, lane)

    def _host(self, item: Item, number: int, lane: int) -> None:
        splits = self.splits
        if not is_edge(self.items, number):
            self._read(*host_reads(splits, splits.transfers[item.source]), number, lane)
        elif number:
            for v in splits.values:
                if v.kind == "output" and v.nbytes:
                    self._read(v.id, 0, v.nbytes, number, lane)
        else:
            for v in splits.values:
                if v.kind == "input" and v.nbytes:
                    self._write(v.id, 0, v.nbytes, number, lane)

    def _part(self, tid: int, value: int, mode: str, number: int, lane: int) -> None:
        t, start = self.graph.tensors[tid], self.splits.values[value].start
        if t.nbytes:
            access = self._read if mode == "r" else self._write
            access(value, t.offset - start, t.offset - start + t.nbytes, number, lane)

    def _read(self, value: int, start: int, end: int, number: int, lane: int) -> None:
        history = self.histories.get(value)
        if history is not None:
            history.read(start, end, number, lane, self.found)
            self._note(lane)
        elif self.writer[value] >= 0:
            self._after(self.writer[value], lane)

    def _write(self, value: int, start: int, end: int, number: int, lane: int) -> None:
        history = self.histories.get(value)
        if history is not None:
            history.write(start, end, number, lane, self.found)
            self._note(lane)
        else:
            self.writer[value] = number

    def _note(self, lane: int) -> None:
        for conflict in self.found:
            self._after(conflict.earlier, lane)
        self.found.clear()

    def _after(self, earlier: int, lane: int) -> None:
        other = self.lane_of[earlier]
        if other != lane and self.latest.get(other, -1) < earlier:
            self.latest[other] = earlier

    def _histories(self) -> dict[int, ArenaHistory]:
        """Return a history for each value that is written more than once, or bound and written."""
        splits = self.splits
        writes = [0] * len(splits.values)
        for bound, node in zip(splits.bindings, self.graph.nodes, strict=True):
            if node.modes[-1] != "-":
                writes[bound[-1]] += 1
        for t in splits.transfers:
            writes[t.dst] += 1
        return {
            v.id: ArenaHistory()
            for v in splits.values
            if v.nbytes and (writes[v.id] > 1 or (v.bound and writes[v.id]))
        }
