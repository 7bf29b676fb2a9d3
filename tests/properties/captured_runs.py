"""Sequences of runs of plans that are captured, as traces: random ones, and those that are hard.

What orders the runs of different plans is kept by the scheduler (which plans follow each other) and
by the order of streams and graphs (``ggsched.run.graph_order``). A case has plans with several
streams, segments and devices that share states. Its devices compute each command at once, so that
faults show in the trace only, and always.
"""

from dataclasses import dataclass
from random import Random
from typing import NamedTuple

import numpy as np

from ggsched.config import Settings
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.graph import Graph
from ggsched.ir.join import join_graphs
from ggsched.passes.place import Constraints
from ggsched.run.run_order import StartedRun
from ggsched.sanitize import check_trace
from ggsched.scheduler import Scheduler
from ggsched.trace.recorder import Recorder
from ggsched_testing.oracle.interpreter import run_oracle
from tests.run.devices import TestDevice

SHAPE = (2, 8)


class Overlapping(Scheduler):
    """A scheduler whose runs go on while the caller does, although they are recorded."""

    overlaps = True


class Strand(NamedTuple):
    """What a graph does with one state: it adds to it on the device where the state is.

    Attributes:
        state: Its name.
        length: Nodes more than one.
        is_fed: Whether a value is added that comes from the input.
        is_seen: Whether the sum is an output, so that a command for the host follows.
    """

    state: str
    length: int
    is_fed: bool = False
    is_seen: bool = False


@dataclass(frozen=True)
class Way:
    """A graph, and where its nodes run.

    Attributes:
        plain: The graph.
        graph: What is run: the graph, or one without outputs, which the host does not wait for.
        x: Name of the input in ``graph``.
        where: Pins and homes.
    """

    plain: Graph
    graph: Graph
    x: str
    where: Constraints


def way(rng, name, homes, strands, *, here=0, visits=(), tail=0, is_shared=False, is_silent=False):
    """Return a graph of strands of states, which may get streams of their own.

    Args:
        rng: Decides about details.
        name: Of the graph.
        homes: Devices of states.
        strands: In order.
        here: Device of what is neither a strand nor a visit.
        visits: Devices that a value goes to and comes back from; cuts graphs of one origin.
        tail: Nodes at the end.
        is_shared: Whether the state of a strand is read by another stream, too.
        is_silent: Whether nothing is seen but states.
    """
    g = GraphBuilder(name)
    x, pins, written = g.input("x", SHAPE), {}, []

    def on(device, tensor):
        pins[len(pins)] = device
        return tensor

    feeds = [y := on(here, g.silu(x))]
    if rng.random() < 0.5:  # a transfer for each
        feeds += [y := on(here, g.silu(y)) for _ in strands]
    for strand in strands:
        state, home = g.state(strand.state, SHAPE), homes[strand.state]
        if strand.is_fed and len(feeds) == 1 and rng.random() < 0.5:
            y = feeds[0] = on(here, g.silu(y))
        t = on(home, g.scale(state, 0.5))
        for _ in range(strand.length):
            t = on(home, g.silu(t))
        if strand.is_fed:
            t = on(home, g.add(t, feeds.pop() if len(feeds) > 1 else feeds[0]))
        written.append(on(home, g.op("cpy", t, state)))
    for device in visits:
        y = on(here, g.silu(on(device, g.silu(y))))
    for _ in range(tail):
        y = on(here, g.silu(y))
    if is_shared:
        y = on(here, g.add(y, rng.choice(written)))
    seen = [t for t, strand in zip(written, strands, strict=True) if strand.is_seen]
    plain = g.build(y, *seen)
    if is_silent:
        joined = join_graphs([plain], keep=[()])  # nodes without effect are gone: no pins
        return Way(plain, joined.graph, joined.input_name(0, "x"), Constraints(homes))
    return Way(plain, plain, "x", Constraints(homes, pins=pins))


def random_way(rng, number, homes):
    """Return a way of any kind."""
    count, fed = max(homes.values()) + 1, rng.choice([0, 0.5, 1])
    strands = [
        Strand(name, rng.choice([0, 1, 2, 3]), rng.random() < fed, rng.random() < 0.2)
        for name in rng.sample(sorted(homes), rng.randint(1, len(homes)))
    ]
    return way(
        rng,
        f"way {number}",
        homes,
        strands,
        here=rng.randrange(count),
        visits=[rng.randrange(count) for _ in range(rng.choice([0, 1, 1, 2]))],
        tail=rng.choice([0, 0, 1, 2]),
        is_shared=rng.random() < 0.2,
        is_silent=rng.random() < 0.3,
    )


class Case:
    """A few graphs over some devices, and the order in which they are run."""

    def __init__(self, seed):
        """Draw a case; half of them are directed."""
        rng = Random(seed)
        directed = [None, self._segments, None, self._outside][seed % 4]
        self.count = 2 if directed else rng.choice([1, 1, 2, 2, 3])
        self.facts = {
            "max_streams": rng.choice([2, 3]),
            "reads_peers": rng.random() < 0.5,
            "snapshots_uploads": rng.random() < 0.3,
            "is_host": False,
        }
        self.late = rng.choice([0, 1, 1, 2])
        if directed:
            directed(rng)
            return
        homes = {f"s{k}": rng.randrange(self.count) for k in range(rng.randint(1, 3))}
        homes["s0"] = self.count - 1
        self.ways = [random_way(rng, k, homes) for k in range(rng.choice([2, 2, 3]))]
        self.order = []  # each as often as it takes to be captured, then others in between
        for _ in range(rng.randint(2, 4)):
            self.order += [rng.randrange(len(self.ways))] * rng.choice([1, 3, 3, 4])

    def _segments(self, rng):
        """A state has a stream of its own in the first of several segments of one origin.

        Other plans come behind, in their first runs or captured.
        """
        homes, n = {"s0": 0, "s1": 1}, rng.randint(0, 1)
        self.ways = [
            way(rng, f"tail {k}", homes, [Strand("s0", n, is_fed=True)], visits=[1], tail=k)
            for k in range(3)
        ]
        self.late = 1
        self.order = [0, 0, 0, 0, 1, *rng.choices(range(3), k=6)]

    def _outside(self, rng):
        """Two ways share a stream that is in graphs of one and waits outside of those of the other.

        A third one conflicts with both, so the host drains, but it leaves that stream alone.
        """
        homes, n = {"s0": 1, "s1": 1}, rng.randint(2, 4)
        self.ways = [
            way(rng, "alone", homes, [Strand("s0", n), Strand("s1", n)]),
            way(rng, "fed", homes, [Strand("s0", n, is_fed=True), Strand("s1", n, is_fed=True)]),
            way(rng, "conflict", homes, [Strand("s1", n)]),
        ]
        self.order = [0, 0, 0, 1, 1, 1]
        for _ in range(3):
            self.order += rng.choice([[0, 1], [0, 2, 1], [0, 2, 2, 1, 1]])

    def run(self):
        """Run all, compare the outputs, and return the findings of the checker."""
        recorder = Recorder(times=False, replays=True)
        devices = [TestDevice(f"test:{k}", **self.facts) for k in range(self.count)]
        states, kept = {}, []
        settings = Settings(streams=self.facts["max_streams"], rates="off")
        with Overlapping(
            devices, settings=settings, recorder=recorder, placement="ggml"
        ) as scheduler:
            for step, k in enumerate(self.order):
                chosen = self.ways[k]
                x = np.full(SHAPE, 1.0 + step, np.float32)
                wanted = run_oracle(chosen.plain, {"x": x}, states=states)
                call = scheduler.start if self.late else scheduler.run
                inputs = {chosen.x: x} if chosen.x in chosen.graph else {}
                made = call(chosen.graph, inputs, chosen.where)
                kept.append((made, wanted if chosen.graph is chosen.plain else {}))
                while len(kept) > self.late:
                    _compare(*kept.pop(0))
            for made, wanted in kept:
                _compare(made, wanted)
            self.executors = scheduler._executors.values()
            self.replays = sum(e.captured.report.replays for e in self.executors)
        self.trace = recorder.trace("captured")
        return check_trace(self.trace)


def _compare(made, wanted):
    outputs = made.outputs() if isinstance(made, StartedRun) else made
    for tid, array in wanted.items():
        np.testing.assert_allclose(outputs[tid], array, rtol=1e-5, atol=1e-6)
