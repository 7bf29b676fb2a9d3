"""Runs of commands that are captured once and replayed by one call each.

What decides between a replay, an update and a new capture is a key of everything that a graph
depends on: topology, shapes, types, op parameters, regions, and the very buffers, host memory,
programs and streams (``CaptureKey``). There is no counter of runs and no look at names. Equal keys
mean a replay. Where the same commands have other addresses or programs they are captured again, and
the device is offered to update the graph that it has (CAP-4); what it refuses is made anew, as it
is after any other difference.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b
from time import perf_counter
from typing import Any, Final, Literal

import msgspec

from ggsched.backend.capture import Capture, DeviceGraph, offers_capture, offers_update
from ggsched.backend.host_borrow import address_of
from ggsched.backend.protocols import Buffer, Device, Event, HostMemory, Program, Stream
from ggsched.errors import DeviceFault
from ggsched.plan.bundle import Plan
from ggsched.run.capture_plan import CapturePlan, CaptureSegment, Obstacle, plan_capture
from ggsched.run.graph_order import GraphOrder
from ggsched.run.release import close_all
from ggsched.run.resources import Resources
from ggsched.units import seconds_text

# --- the key of captured graphs -------------------------------------------------------------------


Renewal = Literal["replay", "update", "capture"]
"""What becomes of a graph: it is replayed as it is, updated (CAP-4), or made anew."""


@dataclass(frozen=True, slots=True)
class CaptureKey:
    """Everything that a captured graph depends on.

    Attributes:
        topology: Digest of the topology.
        graph: Digest of the graph: ops, shapes, types, views, op parameters.
        commands: Digest of the commands: order, streams, regions.
        memory: Identities of buffers by arena; whoever holds the key holds them.
        host: Addresses and lengths of host memory by arena.
        programs: Identities of programs by split.
        streams: Identities of streams.
    """

    topology: str
    graph: str
    commands: str
    memory: tuple[tuple[int, int], ...]
    host: tuple[tuple[int, int, int], ...]
    programs: tuple[tuple[int, int], ...]
    streams: tuple[int, ...]

    def renewal(self, known: "CaptureKey") -> Renewal:
        """Return what becomes of graphs with a known key when this one is in force.

        Where the same commands have other addresses or other programs there is a chance that the
        device need not make its graph anew.
        """
        if self == known:
            return "replay"
        return "update" if self._form() == known._form() else "capture"

    def _form(self) -> tuple[object, ...]:
        """Return what an update cannot change: all but addresses and which programs."""
        return (
            self.topology,
            self.graph,
            self.commands,
            tuple(item[0] for item in self.memory),
            tuple((item[0], item[2]) for item in self.host),
            tuple(item[0] for item in self.programs),
            self.streams,
        )


def capture_key(
    plan: Plan,
    buffers: Mapping[int, Buffer],
    host: Mapping[int, HostMemory],
    programs: Mapping[int, Program],
    streams: Sequence[Stream],
) -> CaptureKey:
    """Return the key of a plan that is bound to live things."""
    return CaptureKey(
        topology=plan.topology,
        graph=plan.graph,
        commands=blake2b(msgspec.json.encode(plan.commands), digest_size=16).hexdigest(),
        memory=tuple(sorted((arena, id(buffer)) for arena, buffer in buffers.items())),
        host=tuple(sorted((arena, address_of(m), m.nbytes) for arena, m in host.items())),
        programs=tuple(sorted((split, id(program)) for split, program in programs.items())),
        streams=tuple(map(id, streams)),
    )


# --- replays --------------------------------------------------------------------------------------


Call = Callable[[], None]

MEASURED_RUNS: Final = 4
"""In this many runs the calls that are not captured are timed, for the report."""

NO_UPDATES: Final = "its captures update no graph"

_LOG: Final = logging.getLogger("ggsched")


@dataclass(slots=True)
class CaptureReport:
    """What was captured, what was not, and what that costs the host.

    Attributes:
        plan: Segments and obstacles.
        nodes: Nodes of each graph that was made, by its first command.
        seconds: Seconds of the host that commands outside graphs take in a run, by the first
            command of the obstacle; waits of the host are not counted.
        captures: How many graphs were made.
        updates: How many times a graph was updated instead of making one.
        replays: How many replays were enqueued.
        refused: What a device said that refused a capture, by its first command.
        not_updated: Why a graph was last made anew and not updated, by its first command.
    """

    plan: CapturePlan
    nodes: dict[int, int]
    seconds: dict[int, float]
    captures: int = 0
    updates: int = 0
    replays: int = 0
    refused: dict[int, str] = field(default_factory=dict)
    not_updated: dict[int, str] = field(default_factory=dict)

    def text(self) -> str:
        """Return one line for each segment and obstacle, with sizes and costs."""
        lines = []
        for line, first in zip(self.plan.text().splitlines(), self._firsts(), strict=True):
            if first in self.refused:
                line += f", but {self.refused[first]}"
            elif first in self.nodes:
                line += f", {self.nodes[first]} nodes"
                if first in self.not_updated:
                    line += f", made anew: {self.not_updated[first]}"
            elif first in self.seconds:
                line += f", {seconds_text(self.seconds[first])} a run"
            lines.append(line)
        return "\n".join(lines)

    def _firsts(self) -> list[int]:
        firsts = [s.start for s in self.plan.segments]
        return sorted(firsts + [o.start for o in self.plan.obstacles])


class CapturedRun:
    """The calls of a plan, with those of each segment in one.

    Args:
        streams: The live streams, by number.
        calls: A call for each command, which enqueues it.
        events: Where these calls keep the events of a run, by number.
        key: What the graphs depend on.
        able: Indices of the devices that are captured.
        order: Of the streams, which other plans use as well.
        unordered: As for ``plan_capture``.
        first_eager: Whether the first run enqueues the commands.
        holds: What has to live as long as the key is compared.
    """

    def __init__(
        self,
        plan: Plan,
        streams: Sequence[Stream],
        calls: Sequence[Call],
        events: dict[int, Event],
        key: CaptureKey,
        able: Collection[int],
        order: GraphOrder,
        *,
        unordered: Collection[tuple[int, int]] = (),
        first_eager: bool = False,
        holds: Any = None,
    ) -> None:
        self.key = key
        found = plan_capture(plan, able, unordered=unordered)
        self.report = CaptureReport(found, {}, {})
        state = _State.EAGER if first_eager else _State.STALE
        self._parts = [_Replay(s, plan, events, order, self.report, state) for s in found.segments]
        devices = [s.device for s in plan.streams.streams]
        if any(len({devices[q] for q in s.streams}) > 1 for s in found.segments):
            alone = plan_capture(plan, able, together=False).segments
            for part in self._parts:
                part.take_apart([_Replay(s, plan, events, order, self.report) for s in alone])
        self._replays = {s.start: p for s, p in zip(found.segments, self._parts, strict=True)}
        self._timed = {n: t for o in found.obstacles for n, t in _timed(o, plan, self.report)}
        outside = (n for o in found.obstacles for n in range(o.start, o.stop))
        self.numbers: tuple[int, ...] = tuple(sorted([*self._replays, *outside]))
        own = {q for s in found.segments for q in s.streams[1:] if q not in s.tied}
        self._direct = [q for q in range(len(devices)) if q not in own]
        self._order = order
        self.calls: tuple[Call, ...] = ()
        self._bind(streams, calls, holds)

    def renew(
        self,
        key: CaptureKey,
        streams: Sequence[Stream] | None = None,
        calls: Sequence[Call] | None = None,
        *,
        holds: Any = None,
    ) -> None:
        """Go on with what the commands are bound to now; ``calls`` are others afterwards.

        The key decides what becomes of the graphs (``CaptureKey.renewal``). Those that are to be
        updated are not used any more until the next run has done so, and those that have to be
        made anew are released. So what was bound before may be closed.

        The streams must have been drained.

        Args:
            key: What the graphs depend on from now on.
            streams: The live streams, by number; those from before, if not given.
            calls: A call for each command; those from before, if not given.
            holds: What has to live as long as the key is compared.
        """
        renewal = key.renewal(self.key)
        self.key = key
        for part in self._parts:
            if renewal != "replay":
                part.outdate()
        self._bind(streams or self._streams, calls or self._calls, holds or self._holds)
        if renewal == "capture":
            self.close()

    def after_run(self) -> tuple[Call, ...]:
        """Return the calls of the next run: commands that have been measured lose their clock."""
        if self._timed and not any(call.is_measuring for call in self._timed.values()):
            self.calls = self._calls_with({})
            self._timed = {}
        return self.calls

    def follow(self) -> None:
        """Let the next run come behind graphs of other plans: their streams outside of graphs.

        Streams that only graphs use are put in order by each replay.
        """
        self._order.release([self._streams[q] for q in self._direct])

    def close(self) -> None:
        """Release the graphs; legal twice."""
        close_all(self._parts)

    def _bind(self, streams: Sequence[Stream], calls: Sequence[Call], holds: Any) -> None:
        self._streams, self._calls, self._holds = streams, calls, holds
        entries: list[_Replay | _Timed] = [*self._parts, *self._timed.values()]
        for entry in entries:
            entry.bind(streams, calls)
        self.calls = self._calls_with(self._timed)

    def _calls_with(self, timed: Mapping[int, "_Timed"]) -> tuple[Call, ...]:
        made: Mapping[int, Call] = {**self._replays, **timed}
        return tuple(made.get(n, self._calls[n]) for n in self.numbers)


def captured_run(
    plan: Plan,
    resources: Resources,
    calls: Sequence[Call],
    events: dict[int, Event],
    *,
    first_eager: bool = True,
    on_host: bool = False,
) -> CapturedRun:
    """Return the calls of a plan that is bound to resources, with those of each segment in one.

    Args:
        resources: What it is bound to.
        calls: A call for each command, which enqueues it.
        events: Where these calls keep the events of a run, by number.
        first_eager: Whether the first run enqueues the commands one by one: a plan that is run once
            is not worth a capture.
        on_host: Whether devices in host memory are captured too, which saves them little.
    """
    r = resources
    specs = zip(plan.streams.streams, r.streams, strict=True)
    live = {spec.device: stream.device for spec, stream in specs}
    able = {
        index
        for index, device in live.items()
        if (on_host or not device.facts.is_host) and offers_capture(device)
    }
    unordered = {
        (a, b) for a in able for b in able if a != b and live[a].wait_path(live[b].facts) == "host"
    }
    key = _key_of(plan, r)
    return CapturedRun(
        plan,
        r.streams,
        calls,
        events,
        key,
        able,
        r.store.graph_order,
        unordered=unordered,
        first_eager=first_eager,
        holds=r,
    )


def renew_run(
    captured: CapturedRun, plan: Plan, resources: Resources, calls: Sequence[Call]
) -> None:
    """Bind a captured run to other resources of its plan; see ``CapturedRun.renew``."""
    key = _key_of(plan, resources)
    captured.renew(key, resources.streams, calls, holds=resources)


def _key_of(plan: Plan, resources: Resources) -> CaptureKey:
    r = resources
    return capture_key(plan, r.buffers, r.host, r.programs, r.streams)


class _State(Enum):
    """What the next call of a segment does."""

    EAGER = "enqueue the commands one by one, as a plan that is run once is not worth a capture"
    STALE = "capture, or update the graph that is there, and replay"
    READY = "replay"
    REFUSED = "enqueue the commands, or the graphs of each device by itself"


class _Replay:
    """One segment: captured in the first run, replayed in all of them.

    One of several devices whose capture is refused is captured for each device apart.
    """

    def __init__(
        self,
        segment: CaptureSegment,
        plan: Plan,
        events: dict[int, Event],
        order: GraphOrder,
        report: CaptureReport,
        state: _State = _State.STALE,
    ) -> None:
        self._segment = segment
        commands = plan.commands[segment.start : segment.stop]
        self._recorded = [event for c in commands for event in c.effects.records]
        self._events = events
        self._order = order
        self._report = report
        self._graph: DeviceGraph | None = None
        self._apart: list[_Replay] = []
        self._state = state

    def outdate(self) -> None:
        """Take note that the graph has to be updated before it is replayed again."""
        if self._state is _State.READY:
            self._state = _State.STALE
        for part in self._apart:
            part.outdate()

    def take_apart(self, parts: Sequence["_Replay"]) -> None:
        """Take those segments that lie within this one, and are shorter, for a refusal."""
        whole = self._segment
        self._apart = [
            part
            for part in parts
            if whole.start <= part._segment.start
            and part._segment.stop <= whole.stop
            and part._segment != whole
        ]

    def bind(self, streams: Sequence[Stream], calls: Sequence[Call]) -> None:
        """Take live streams and calls of all commands."""
        segment = self._segment
        self._origin: Any = streams[segment.streams[0]]
        self._streams = [streams[i] for i in segment.streams]
        self._others = self._streams[1:]
        self._tied = [streams[i] for i in segment.tied]
        self._calls = calls[segment.start : segment.stop]
        for part in self._apart:
            part.bind(streams, calls)

    def __call__(self) -> None:
        if self._state is not _State.READY and not self._is_made_ready():
            return
        self._order.gather(self._origin, self._others)
        self._origin.replay(self._graph)
        self._report.replays += 1
        if self._tied:
            self._order.release(self._tied)
        for number in self._segment.renewed:
            event = self._events[number] = self._origin.device.create_event()
            self._origin.record(event)

    def _is_made_ready(self) -> bool:
        """Capture; or enqueue the commands, where there is no graph to replay."""
        if self._state is _State.STALE and self._is_captured():
            return True
        self._run_apart()
        if self._state is _State.EAGER:
            self._state = _State.STALE
        return False

    def _run_apart(self) -> None:
        """Enqueue the commands, or after a refusal the graphs of each device by itself."""
        at, start = 0, self._segment.start
        for part in self._apart if self._state is _State.REFUSED else ():
            self._enqueue(at, part._segment.start - start)
            part()
            at = part._segment.stop - start
        self._enqueue(at, len(self._calls))

    def _enqueue(self, first: int, stop: int) -> None:
        """Enqueue some of the commands one by one."""
        if first < stop:
            self._order.release(self._streams)
        for call in self._calls[first:stop]:
            call()

    def _is_captured(self) -> bool:
        """Capture, or learn that the device refuses, which is reported and not tried again.

        A stale graph stays so unless the capture comes to an end, and is closed if the device
        refuses: it must not be replayed.
        """
        first = self._segment.start
        try:
            graph = self._captured()
        except DeviceFault as error:
            self.close()
            self._state = _State.REFUSED
            self._report.refused[first] = error.one_line()
            _LOG.warning("a capture was refused, its commands run one by one: %s", error)
            return False
        finally:
            for number in self._recorded:
                event = self._events.pop(number, None)
                if event is not None:
                    event.close()
        self._graph, self._state = graph, _State.READY
        self._report.nodes[first] = graph.nodes
        return True

    def _captured(self) -> DeviceGraph:
        device: Device = self._origin.device
        assert offers_capture(device)
        capture: Capture | None = None
        try:
            capture = device.begin_capture(self._streams)
            for call in self._calls:
                call()
            return self._ended(capture)
        except BaseException:
            if capture is not None:
                capture.abort()
            raise

    def _ended(self, capture: Capture) -> DeviceGraph:
        """Return the graph that was there, if it can be updated, or a new one in its place."""
        graph, report = self._graph, self._report
        if graph is not None:
            why = capture.end_into(graph) if offers_update(capture) else NO_UPDATES
            if not why:
                report.updates += 1
                return graph
            report.not_updated[self._segment.start] = why
            self.close()  # the new one is not to need memory beside it
        self._graph = capture.end()
        report.captures += 1
        return self._graph

    def close(self) -> None:
        """Release the graph; legal twice."""
        close_all(self._apart)
        if self._state is _State.READY:
            self._state = _State.STALE
        graph, self._graph = self._graph, None
        if graph is not None:
            graph.close()


def _timed(obstacle: Obstacle, plan: Plan, report: CaptureReport) -> Iterator[tuple[int, "_Timed"]]:
    """Yield the commands of an obstacle that are timed for a few runs: those that do not wait."""
    for number in range(obstacle.start, obstacle.stop):
        if not plan.commands[number].effects.blocks_host:
            yield number, _Timed(number, obstacle.start, report)


class _Timed:
    """A call that measures itself for the first runs, and is then in the way."""

    __slots__ = ("_call", "_first", "_left", "_number", "_report", "_spent")

    def __init__(self, number: int, first: int, report: CaptureReport) -> None:
        self._number = number
        self._first = first
        self._left = MEASURED_RUNS
        self._report = report
        self._spent: list[float] = []

    def bind(self, streams: Sequence[Stream], calls: Sequence[Call]) -> None:
        """Take the call of the command."""
        self._call = calls[self._number]

    @property
    def is_measuring(self) -> bool:
        """Whether the next run is measured."""
        return self._left > 0

    def __call__(self) -> None:
        began = perf_counter()
        self._call()
        self._spent.append(perf_counter() - began)
        self._left -= 1
        if self._left == 0:
            seconds = self._report.seconds
            seconds[self._first] = seconds.get(self._first, 0.0) + min(self._spent)
