"""Runs of commands that are captured once and replayed by one call each.

What decides between a replay and a new capture is a key of everything that a graph depends on:
topology, shapes, types, op parameters, regions, and the very buffers, host memory, programs and
streams (``CaptureKey``). There is no counter of runs and no look at names: equal keys mean a
replay, any difference means a new capture.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from time import perf_counter
from typing import Any, Final

import msgspec
import numpy as np

from ggsched.backend.capture import Graph, offers_capture
from ggsched.backend.protocols import Buffer, Device, Event, HostMemory, Program, Stream
from ggsched.errors import DeviceFault
from ggsched.plan.bundle import Plan
from ggsched.plan.command import HostSync, Record
from ggsched.run.capture_plan import CapturePlan, Obstacle, Segment, plan_capture
from ggsched.run.release import close_all
from ggsched.run.resources import Resources

Call = Callable[[], None]

MEASURED_RUNS: Final = 4
"""In this many runs the calls that are not captured are timed, for the report."""

_LOG: Final = logging.getLogger("ggsched")


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
        host=tuple(sorted((arena, _address(m), m.nbytes) for arena, m in host.items())),
        programs=tuple(sorted((split, id(program)) for split, program in programs.items())),
        streams=tuple(map(id, streams)),
    )


def _address(memory: HostMemory) -> int:
    if not memory.nbytes:
        return 0
    address: int = np.frombuffer(memory, np.uint8).__array_interface__["data"][0]
    return address


@dataclass(slots=True)
class CaptureReport:
    """What was captured, what was not, and what that costs the host.

    Attributes:
        plan: Segments and obstacles.
        nodes: Nodes of each graph that was made, by its first command.
        seconds: Seconds of the host that commands outside graphs take in a run, by the first
            command of the obstacle; waits of the host are not counted.
        captures: How many captures were made.
        replays: How many replays were enqueued.
        refused: What a device said that refused a capture, by its first command.
    """

    plan: CapturePlan
    nodes: dict[int, int]
    seconds: dict[int, float]
    captures: int = 0
    replays: int = 0
    refused: dict[int, str] = field(default_factory=dict)

    def text(self) -> str:
        """Return one line for each segment and obstacle, with sizes and costs."""
        lines = []
        for line, first in zip(self.plan.text().splitlines(), self._firsts(), strict=True):
            if first in self.refused:
                line += f", but {self.refused[first]}"
            elif first in self.nodes:
                line += f", {self.nodes[first]} nodes"
            elif first in self.seconds:
                line += f", {self.seconds[first] * 1e6:.1f} us a run"
            lines.append(line)
        return "\n".join(lines)

    def _firsts(self) -> list[int]:
        firsts = [s.start for s in self.plan.segments]
        return sorted(firsts + [o.start for o in self.plan.obstacles])


class CapturedRun:
    """The calls of a plan, with those of each segment in one.

    Args:
        plan: The plan.
        streams: The live streams, by number.
        calls: A call for each command, which enqueues it.
        events: Where these calls keep the events of a run, by number.
        key: What the graphs depend on.
        able: Indices of the devices that are captured.
        first_eager: Whether the first run, and the first with another key, enqueues the commands.
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
        *,
        first_eager: bool = False,
        holds: Any = None,
    ) -> None:
        self.key = key
        self._holds = holds
        self._events = events
        found = plan_capture(plan, able)
        self.report = CaptureReport(found, {}, {})
        self._parts: list[_Replay] = []
        numbered: list[tuple[int, Call]] = []
        for segment in found.segments:
            part = _Replay(segment, plan, streams, calls, events, self.report)
            part.waits = first_eager
            self._parts.append(part)
            numbered.append((segment.start, part))
        for obstacle in found.obstacles:
            numbered += _timed(obstacle, plan, calls, self.report)
        numbered.sort(key=lambda item: item[0])
        self.calls: tuple[Call, ...] = tuple(call for _, call in numbered)
        self.numbers: tuple[int, ...] = tuple(number for number, _ in numbered)

    def renew(self, key: CaptureKey) -> None:
        """Forget all graphs if the key differs; the next run captures anew.

        The streams must have been drained.
        """
        if key != self.key:
            self.key = key
            self.close()

    def close(self) -> None:
        """Release the graphs; legal twice."""
        close_all(self._parts)


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
        plan: The plan.
        resources: What it is bound to.
        calls: A call for each command, which enqueues it.
        events: Where these calls keep the events of a run, by number.
        first_eager: Whether the first run enqueues the commands one by one: a plan that is run once
            is not worth a capture.
        on_host: Whether devices in host memory are captured too, which saves them little.
    """
    r = resources
    key = capture_key(plan, r.buffers, r.host, r.programs, r.streams)
    specs = zip(plan.streams.streams, r.streams, strict=True)
    able = {
        spec.device
        for spec, live in specs
        if (on_host or not live.device.facts.is_host) and offers_capture(live.device)
    }
    return CapturedRun(plan, r.streams, calls, events, key, able, first_eager=first_eager, holds=r)


class _Replay:
    """One segment: captured in the first run, replayed in all of them."""

    def __init__(
        self,
        segment: Segment,
        plan: Plan,
        streams: Sequence[Stream],
        calls: Sequence[Call],
        events: dict[int, Event],
        report: CaptureReport,
    ) -> None:
        self._segment = segment
        self._origin: Any = streams[segment.streams[0]]
        self._streams = [streams[i] for i in segment.streams]
        self._tied = [streams[i] for i in segment.tied]
        self._calls = calls[segment.start : segment.stop]
        commands = plan.commands[segment.start : segment.stop]
        self._recorded = [c.event for c in commands if isinstance(c, Record)]
        self._events = events
        self._report = report
        self._graph: Graph | None = None
        self._is_refused = False
        self.waits = False

    def __call__(self) -> None:
        if self._graph is None and not self._is_refused and not self.waits:
            self._graph = self._captured()
        self.waits = False
        if self._graph is None:
            for call in self._calls:
                call()
            return
        if self._tied:
            self._join(self._tied, [self._origin])
        self._origin.replay(self._graph)
        self._report.replays += 1
        if self._tied:
            self._join([self._origin], self._tied)

    def _captured(self) -> Graph | None:
        """Capture, or learn that the device refuses, which is reported and not tried again."""
        device: Device = self._origin.device
        assert offers_capture(device)
        first = self._segment.start
        capture = device.begin_capture(self._streams)
        try:
            for call in self._calls:
                call()
            graph = capture.end()
        except DeviceFault as error:
            capture.abort()
            self._is_refused = True
            self._report.refused[first] = error.one_line()
            _LOG.warning("a capture was refused, its commands run one by one: %s", error)
            return None
        except BaseException:
            capture.abort()
            raise
        finally:
            for number in self._recorded:
                event = self._events.pop(number, None)
                if event is not None:
                    event.close()
        self._report.captures += 1
        self._report.nodes[first] = graph.nodes
        return graph

    def _join(self, earlier: Sequence[Stream], later: Sequence[Any]) -> None:
        """Let streams wait for all that others were given so far."""
        for stream in earlier:
            event = stream.device.create_event()
            stream.record(event)
            for waiter in later:
                waiter.wait(event)
            event.close()  # a stream of its own backend goes on waiting (EVT-5)

    def close(self) -> None:
        """Release the graph; legal twice."""
        graph, self._graph = self._graph, None
        if graph is not None:
            graph.close()


def _timed(
    obstacle: Obstacle, plan: Plan, calls: Sequence[Call], report: CaptureReport
) -> list[tuple[int, Call]]:
    """Return the calls of an obstacle; those that do not wait are timed for a few runs."""
    timed = []
    for number in range(obstacle.start, obstacle.stop):
        call = calls[number]
        if not isinstance(plan.commands[number], HostSync):
            call = _Timed(call, obstacle.start, report)
        timed.append((number, call))
    return timed


class _Timed:
    """A call that measures itself for the first runs."""

    __slots__ = ("_call", "_first", "_left", "_report", "_spent")

    def __init__(self, call: Call, first: int, report: CaptureReport) -> None:
        self._call = call
        self._first = first
        self._left = MEASURED_RUNS
        self._report = report
        self._spent: list[float] = []

    def __call__(self) -> None:
        if not self._left:
            self._call()
            return
        began = perf_counter()
        self._call()
        self._spent.append(perf_counter() - began)
        self._left -= 1
        if not self._left:
            seconds = self._report.seconds
            seconds[self._first] = seconds.get(self._first, 0.0) + min(self._spent)
