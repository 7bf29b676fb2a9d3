"""Which bytes may depend on how a race ends, and whether anybody outside ever sees one of them.

The plan is followed command by command. A read that races with a write may find anything, so what
is computed from it is tainted; so are bytes for which two writes race, until somebody writes them
in order. If no output and no state is tainted in the end, and no tainted number selects a row,
then the races cannot be observed, whatever the order: they are benign.
"""

import numpy as np

from ggsched.plan.command import Copy, Download, Launch, Upload
from tests.sanitize.brute import HOST_IN, HOST_OUT, racing_pairs

IDS = {"get_rows": 1, "set_rows": 2, "mul_mat_id": 2, "add_id": 2}
TRANSFERS = (Upload, Download, Copy)


def races_are_unobservable(plan, runs):
    """Whether nothing that can be observed depends on how the races of a plan end."""
    return _Taint(plan, runs).is_unobserved()


class _Taint:
    def __init__(self, plan, runs):
        self.plan = plan
        self.runs = runs
        self.taint = [np.zeros(a.nbytes, bool) for a in plan.memory.arenas]
        self.racy_reads = {}
        self.racy_writes = {}
        for a, b, _ in racing_pairs(plan, runs):
            self._mark(a, b)
            self._mark(b, a)

    def _mark(self, one, other):
        reads, writes = self._spans(one)
        _, against = self._spans(other)
        self.racy_reads.setdefault(one, []).extend(_common(reads, against))
        self.racy_writes.setdefault(one, []).extend(_common(writes, against))

    def _spans(self, command):
        """Return what is read and what is written; a partial write reads its window, too."""
        regions = self.plan.memory.regions
        if command == HOST_IN:
            return [], [regions[s.value] for s in self.plan.inputs]
        if command == HOST_OUT:
            return [regions[s.value] for s in self.plan.outputs], []
        c = self.plan.commands[command]
        if isinstance(c, TRANSFERS):
            return [c.src], [c.dst]
        touched = [x for s in c.steps for x in zip(s.operands, s.modes, strict=True)]
        return [r for r, m in touched if m in "rp"], [r for r, m in touched if m in "wp"]

    def is_unobserved(self):
        if self.racy_reads.get(HOST_OUT):
            return False
        for _ in range(self.runs):
            for slot in self.plan.inputs:
                self._set(self.plan.memory.regions[slot.value], False)
            self._taint_writes(HOST_IN)
            for c in self.plan.commands:
                if isinstance(c, TRANSFERS):
                    self._transfer(c)
                elif isinstance(c, Launch) and not self._launch(c):
                    return False
            outputs = [self.plan.memory.regions[s.value] for s in self.plan.outputs]
            if any(self._get(r).any() for r in outputs):
                return False
        states = [
            t for t, a in zip(self.taint, self.plan.memory.arenas, strict=True) if a.kind == "state"
        ]
        return not any(t.any() for t in states)

    def _transfer(self, c):
        carried = self._get(c.src).copy()
        for _, start, end in self.racy_reads.get(c.id, ()):
            carried[start - c.src.offset : end - c.src.offset] = True
        self._get(c.dst)[:] = carried
        self._taint_writes(c.id)

    def _launch(self, c):
        """Follow the nodes; return whether no tainted number selects a row."""
        racy = self.racy_reads.get(c.id, ())
        for step in c.steps:
            touched = list(zip(step.operands, step.modes, strict=True))
            bad = [m in "rp" and self._is_tainted(r, racy) for r, m in touched]
            ids = IDS.get(self.plan.nodes[step.node].op)
            if ids is not None and bad[ids]:
                return False
            for region, mode in touched:
                if mode == "w" or (mode == "p" and any(bad)):
                    self._set(region, any(bad))
        self._taint_writes(c.id)
        return True

    def _is_tainted(self, region, racy):
        return self._get(region).any() or bool(_common([region], [_Span(*s) for s in racy]))

    def _taint_writes(self, command):
        for arena, start, end in self.racy_writes.get(command, ()):
            self.taint[arena][start:end] = True

    def _get(self, region):
        return self.taint[region.arena][region.offset : region.end]

    def _set(self, region, value):
        self._get(region)[:] = value


class _Span:
    def __init__(self, arena, start, end):
        self.arena, self.offset, self.end = arena, start, end


def _common(some, others):
    return [
        (a.arena, max(a.offset, b.offset), min(a.end, b.end))
        for a in some
        for b in others
        if a.arena == b.arena and a.offset < b.end and b.offset < a.end
    ]
