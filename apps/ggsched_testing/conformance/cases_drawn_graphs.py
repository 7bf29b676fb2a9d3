"""CAP: graphs of commands whose sizes, number and streams are drawn."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ggsched.backend.capture import Capture, DeviceGraph, offers_update
from ggsched_testing.conformance.case import case
from ggsched_testing.conformance.context import TestContext
from ggsched_testing.conformance.traffic import Lane, Traffic


class _Graphs:
    """Captures of drawn transfers on one to three streams, and replays of them."""

    def __init__(self, w: TestContext) -> None:
        most = min(3, w.device.facts.max_streams) if w.device.facts.has_events else 1
        self.w = w
        self.streams = [w.stream() for _ in range(int(w.rng.integers(1, most + 1)))]
        nbytes = int(w.rng.choice([200, 5000, 70_001]))
        self.traffic = Traffic(w, self.streams, nbytes, 30 * nbytes)
        everything = [own for lane in self.traffic.lanes for own in lane.own]
        self.first = Lane(self.streams[0], everything)
        self.effects: list[Callable[[], None]] = []

    def capture(self) -> Capture:
        """Capture up to eight transfers, and exchanges where there are several streams."""
        w, traffic = self.w, self.traffic
        capture = w.capture(*self.streams)
        self.effects = traffic.captured = []
        for _ in range(int(w.rng.integers(9))):
            lanes = [traffic.lanes[i] for i in w.rng.permutation(len(traffic.lanes))[:2]]
            traffic.step(lanes[0], downloads=False)
            if len(lanes) == 2 and w.rng.integers(2):
                traffic.exchange(*lanes)
        traffic.captured = None
        return capture

    def replay(self, graph: DeviceGraph, count: int) -> None:
        """Replay a graph often, with transfers of its first stream between."""
        for _ in range(count):
            if self.w.rng.integers(2):
                self.traffic.step(self.first)
            self.w.replay(self.streams[0], graph)
            for effect in self.effects:
                effect()


@case("CAP-1", "Graphs of drawn transfers and streams do what their commands did.", "capture")
def cap1_drawn_graphs(w: TestContext) -> None:
    for _ in range(w.draws(6, 3)):
        graphs = _Graphs(w)
        graph = w.end(graphs.capture())
        other = w.stream() if w.device.facts.max_streams > len(graphs.streams) else None
        beside = None if other is None else w.hold(other)
        graphs.replay(graph, int(w.rng.integers(1, 60)))
        w.sync(graphs.streams[0])
        if beside is not None:
            beside.release()
        hold = w.hold(graphs.streams[0])
        graphs.replay(graph, int(w.rng.integers(1, 12)))
        if w.rng.integers(2):
            w.close(graph)
        hold.release()
        graphs.traffic.check(f"replays of a graph of {len(graphs.effects)} transfers")
        w.close(*graphs.streams)


@case("CAP-1", "Hundreds of replays take effect each, with hundreds of commands in flight.",
      "capture")  # fmt: skip
def cap1_drawn_rotations(w: TestContext) -> None:
    """Each replay turns a ring by a word, so that none can be lost without a trace."""
    q, words = w.stream(), 64
    ring, turned, data = w.buffer(4 * words), w.buffer(4 * words), w.bytes(4 * words)
    capture = w.capture(q)
    w.copy(q, ring, 0, turned, 4, 4 * words - 4)
    w.copy(q, ring, 4 * words - 4, turned, 0, 4)
    w.copy(q, turned, 0, ring, 0, 4 * words)
    graph = w.end(capture)
    w.put(q, ring, data)
    for count in (w.draws(640, 64), int(w.rng.integers(1, 40))):
        other = w.buffer(4)
        for _ in range(count):
            w.replay(q, graph)
            if w.rng.integers(4) == 0:
                w.fill(q, other, 0, 4, b"\x11")
                if w.device.facts.has_events:
                    w.wait(q, w.record(q))
            del w.program[24:]
        data = np.roll(data, 4 * count)
        w.equal(w.get(q, ring), data, f"a ring after {count} replays")


@case("CAP-4", "A graph that is updated again and again does what was captured last.", "capture",
      "update")  # fmt: skip
def cap4_drawn_updates(w: TestContext) -> None:
    for _ in range(w.draws(6, 3)):
        graphs = _Graphs(w)
        graph = w.end(graphs.capture())
        graphs.replay(graph, 2)
        for _ in range(6):
            capture: Any = graphs.capture()
            if not offers_update(capture) or capture.end_into(graph):
                graph = w.end(capture)
            graphs.replay(graph, int(w.rng.integers(1, 5)))
        graphs.traffic.check("replays of a graph that was updated")
        w.close(*graphs.streams)
