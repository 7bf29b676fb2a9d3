"""Happens-before the slow way: a graph of everything that is enqueued, and its closure."""

from itertools import combinations
from typing import NamedTuple

import networkx as nx

from ggsched.plan.bundle import Plan
from ggsched.plan.command import Barrier, Copy, Download, HostSync, Launch, Record, Upload, Wait

COPIES = (Upload, Download, Copy)
HOST_IN, HOST_OUT = -1, -2


class Access(NamedTuple):
    """Bytes touched, from when on and until when."""

    command: int
    run: int
    begin: tuple
    end: tuple
    spans: list

    def clashes(self, other):
        return any(
            a[0] == b[0] and a[1] < b[2] and b[1] < a[2] and (a[3] or b[3])
            for a in self.spans
            for b in other.spans
        )


def racing_pairs(plan: Plan, runs: int = 3) -> set[tuple[int, int, bool]]:
    """Return (earlier command, later command, whether it is a later run); the host is below 0."""
    closure = _Closure(plan)
    for run in range(runs):
        closure.run(run)
    order = closure.order
    after = {node: nx.descendants(order, node) for node in order}
    return {
        (a.command, b.command, b.run > a.run)
        for a, b in combinations(closure.accesses, 2)
        if a.clashes(b) and b.begin not in after[a.end] and a.begin not in after[b.end]
    }


def _span(region, writes):
    return region.arena, region.offset, region.end, writes


class _Closure:
    def __init__(self, plan):
        self.plan = plan
        self.order = nx.DiGraph()
        self.accesses = []
        self.host = "begin"
        ids = [q.id for q in plan.streams.streams]
        self.work = {q: {"copy": [], "launch": []} for q in ids}
        self.marks = {q: [] for q in ids}
        self.held = {q: [] for q in ids}
        self.recorded = {}

    def run(self, run):
        self.recorded = {}
        regions = self.plan.memory.regions
        self.host_does(run, HOST_IN, [_span(regions[s.value], True) for s in self.plan.inputs])
        for c in self.plan.commands:
            me = ("host", run, c.id)
            self.order.add_edge(self.host, me)
            self.host = me
            self.enqueue(run, c, me)
        self.host_does(run, HOST_OUT, [_span(regions[s.value], False) for s in self.plan.outputs])

    def host_does(self, run, what, spans):
        me = ("host does", run, what)
        self.order.add_edge(self.host, me)
        self.host = me
        self.accesses.append(Access(what, run, me, me, spans))

    def everything(self, q):
        return [*self.work[q]["copy"], *self.work[q]["launch"], *self.marks[q]]

    def enqueue(self, run, c, me):
        facts = self.plan.devices[self.plan.streams.streams[c.stream].device]
        if isinstance(c, COPIES):
            self.copy(run, c, me, facts)
        elif isinstance(c, Launch):
            node = ("do", run, c.id)
            self.follow(c.stream, "copy" if facts.copy_order == "stream" else "launch", node, node)
            self.order.add_edge(me, node)
            touched = [(r, m) for s in c.steps for r, m in zip(s.operands, s.modes, strict=True)]
            spans = [_span(r, m != "r") for r, m in touched if m != "-"]
            self.accesses.append(Access(c.id, run, node, node, spans))
        elif isinstance(c, HostSync):
            done = self.everything(c.stream) if c.event is None else self.recorded.get(c.event, [])
            self.order.add_edges_from((earlier, me) for earlier in done)
        elif isinstance(c, Record):
            if c.event not in self.recorded:
                self.recorded[c.event] = [self.mark(run, c, me, self.everything(c.stream))]
        elif isinstance(c, Wait):
            self.held[c.stream].append(self.mark(run, c, me, self.recorded.get(c.event, [])))
        elif isinstance(c, Barrier) and facts.copy_order == "barrier":
            self.held[c.stream].append(self.mark(run, c, me, self.everything(c.stream)))

    def mark(self, run, c, me, after):
        node = ("mark", run, c.id)
        self.order.add_edge(me, node)
        self.order.add_edges_from((earlier, node) for earlier in after)
        self.marks[c.stream].append(node)
        return node

    def copy(self, run, c, me, facts):
        begin, end = ("read", run, c.id), ("write", run, c.id)
        self.order.add_edge(begin, end)
        self.order.add_edge(me, begin)
        self.follow(c.stream, "copy", begin, end)
        if isinstance(c, Upload) and facts.snapshots_uploads:
            begin = me  # read by the host, so to say, while it enqueues (CPY-4)
        self.accesses.append(Access(c.id, run, begin, begin, [_span(c.src, False)]))
        self.accesses.append(Access(c.id, run, end, end, [_span(c.dst, True)]))

    def follow(self, q, lane, begin, end):
        """Come after the lane's latest work and after whatever holds the stream."""
        for earlier in [*self.work[q][lane][-1:], *self.held[q]]:
            self.order.add_edge(earlier, begin)
        self.work[q][lane].append(end)
