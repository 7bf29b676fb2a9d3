"""A planner that synchronises at each split boundary, as ggml's scheduler does.

What ``ggml_backend_sched_compute_splits`` does without pipeline parallelism (one copy of the
inputs, so no events of its own; llama.cpp, August 2026), split by split:

* before a split's input is overwritten, the host waits for the split's backend;
* an input of the user is copied by a call that returns when it is there;
* a result of another accelerator is copied asynchronously where there is a path, which makes the
  destination wait for an event of the source; else, and where one end is a CPU, the host waits
  for the source and copies by calls that return when they are done;
* such a copy is executed by the source (CUDA); where a path has the destination execute it, which
  ggml has not, the source waits for it before it overwrites what is copied;
* a CPU computes its split in the call, which is a wait of the host before anything else is
  enqueued; its inputs are host memory and need no copy;
* outputs are copied asynchronously, and read after waiting for every backend.

A wait for a stream on which nothing was enqueued since the last one costs nothing and is not
counted. Placement, splits and memory are ours, so that nothing else differs.
"""

from collections.abc import Sequence

import msgspec

from ggsched.ir.graph import Graph
from ggsched.passes import Constraints, make_plan
from ggsched.passes.options import PlanOptions
from ggsched.passes.order.access_intervals import Conflict
from ggsched.passes.order.emit import emit
from ggsched.passes.order.enqueue_order import NO_STREAM
from ggsched.passes.order.happens_before import Sync, SyncKind
from ggsched.passes.order.sync import SyncPlan
from ggsched.passes.order.work import Work, list_work
from ggsched.passes.pipeline import Schedule, make_schedule
from ggsched.plan.bundle import Plan
from ggsched.plan.memory import Region
from ggsched.plan.splits import HOST
from ggsched.topology.model import Topology


def split_sync_plan(graph: Graph, topology: Topology, constraints: Constraints) -> Plan:
    """Return a plan with one stream per device that synchronises as ggml does.

    Raises:
        PlanError: the graph cannot be placed.
    """
    options = PlanOptions(fuse=False)
    ours = make_plan(graph, topology, constraints, options)
    schedule = make_schedule(graph, topology, constraints, options)
    assert (schedule.splits, schedule.streams) == (ours.splits, ours.streams)
    order = schedule.order
    work = list_work(graph, schedule.splits, order.items, order.nodes, ours.memory)
    sync = _Boundaries(schedule, work).plan()
    return msgspec.structs.replace(ours, commands=emit(work, sync, schedule.splits, ours.memory))


class _Boundaries:
    def __init__(self, schedule: Schedule, work: Sequence[Work]) -> None:
        self.schedule, self.work = schedule, work
        self.device_of = [s.device for s in schedule.streams.streams]
        self.stream_of = {d: q for q, d in enumerate(self.device_of)}
        self.last: dict[int, int] = {}  # by stream the last item that the host has not awaited
        self.pending: dict[int, int] = {}  # by stream the last copy that its reader has to await
        self.lent: list[int] = []  # copies that read what another stream may overwrite
        self.before: dict[int, list[Sync]] = {}

    def plan(self) -> SyncPlan:
        """Return what ggml would do."""
        end = len(self.work) - 1
        for number, item in enumerate(self.work):
            for stream in sorted(self.last):
                if self._is_cpu(stream) and stream != item.stream:
                    self._host(stream, number)
            self._take_back(number, item)
            if item.stream == NO_STREAM:
                for stream in sorted(self.last) if number == end else ():
                    self._host(stream, number)
            elif item.kind == "launch":
                self._launch(number, item)
            elif self._is_free(item):
                self.last[item.stream] = number
            elif self._is_between_devices(item) and not self._meets_cpu(item):
                self._copy(number, item)
            else:
                self._blocking_copy(number, item)
        return SyncPlan(self.before)

    def _launch(self, number: int, item: Work) -> None:
        for source in sorted(self.pending):
            if source != item.stream:
                self._note("wait", item.stream, self.pending[source], number)
        self.pending.clear()
        self.last[item.stream] = number

    def _copy(self, number: int, item: Work) -> None:
        """Copy between accelerators, in the order of the one that executes it."""
        src, dst = self._ends(item)
        self._host(dst, number)
        if src != item.stream and src in self.last:
            self._note("wait", item.stream, self.last[src], number)
        self.last[item.stream] = number
        if dst != item.stream:
            self.pending[item.stream] = number
        if src != item.stream:
            self.lent.append(number)

    def _take_back(self, number: int, item: Work) -> None:
        """Wait for copies that read, on another stream, what an item overwrites."""
        for copy in [c for c in self.lent if _meet(self.work[c].reads, item.writes)]:
            if item.stream not in (NO_STREAM, self.work[copy].stream):
                self._note("wait", item.stream, copy, number)
                self.lent.remove(copy)

    def _blocking_copy(self, number: int, item: Work) -> None:
        """Copy by a call that returns when the bytes are there."""
        for stream in {q for q in (*self._ends(item), item.stream) if q != NO_STREAM}:
            self._host(stream, number)
        self.last[item.stream] = number
        self._host(item.stream, number + 1)

    def _host(self, stream: int, later: int) -> None:
        """Let the host wait for a stream before an item, if anything was enqueued there."""
        if stream in self.last:
            self._note("host_stream", stream, self.last.pop(stream), later)
            self.pending.pop(stream, None)
            self.lent = [copy for copy in self.lent if self.work[copy].stream != stream]

    def _note(self, means: SyncKind, stream: int, earlier: int, later: int) -> None:
        sync = Sync(means, stream, earlier, self._dependency(earlier), later)
        self.before.setdefault(later, []).append(sync)

    def _dependency(self, earlier: int) -> Conflict:
        """Return bytes that the earlier item touches; ggml does not ask which ones matter."""
        touched = (*self.work[earlier].writes, *self.work[earlier].reads)
        arena, start, nbytes = touched[0] if touched else (0, 0, 0)
        return Conflict("RAW", arena, start, start + nbytes, earlier)

    def _ends(self, item: Work) -> tuple[int, int]:
        """Return the streams of both ends of a transfer."""
        splits = self.schedule.splits
        t = splits.transfers[item.source]
        devices = (splits.values[t.src].device, splits.values[t.dst].device)
        src, dst = (NO_STREAM if d == HOST else self.stream_of.get(d, NO_STREAM) for d in devices)
        return src, dst

    def _is_free(self, item: Work) -> bool:
        """Whether a transfer is an input of the CPU, which it reads where it is, or an output."""
        splits = self.schedule.splits
        t = splits.transfers[item.source]
        if splits.values[t.src].device == HOST:
            return splits.values[t.src].kind == "input" and self._is_cpu(item.stream)
        return splits.values[t.dst].kind == "output"

    def _is_between_devices(self, item: Work) -> bool:
        splits = self.schedule.splits
        t = splits.transfers[item.source]
        ends = (splits.values[t.src].device, splits.values[t.dst].device)
        return HOST not in ends and t.has_source and t.rows is None

    def _meets_cpu(self, item: Work) -> bool:
        return any(q != NO_STREAM and self._is_cpu(q) for q in self._ends(item))

    def _is_cpu(self, stream: int) -> bool:
        return self.schedule.topology.devices[self.device_of[stream]].kind == "cpu"


def _meet(some: Sequence[Region], others: Sequence[Region]) -> bool:
    """Whether regions have bytes in common."""
    return any(
        a.arena == b.arena and a.offset < b.end and b.offset < a.end for a in some for b in others
    )
