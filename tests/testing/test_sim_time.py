"""Simulated time: as computed by hand, and the same whatever runs first."""

import math
import threading

import pytest

from ggsched.config import Settings
from ggsched.scheduler import Scheduler
from ggsched_testing.schedule_policy import EagerPolicy, LaziestPolicy, RandomPolicy
from ggsched_testing.sim import Costs, SimConfig, SimWorld
from tests.testing.sims import A, N, filled, fresh, program, raw, unary
from tests.testing.test_sim_faults import B, two_devices

COSTS = Costs(
    enqueue_s=0,
    launch_s=1,
    node_s=0,
    flops_per_s=math.inf,
    memory_bytes_per_s=math.inf,
    transfer_s=0.5,
    upload_bytes_per_s=32,
    download_bytes_per_s=32,
    copy_bytes_per_s=64,
    record_s=0,
    wait_s=0,
    thread_wait_s=0.25,
)
CHOOSERS = [EagerPolicy, LaziestPolicy, *(lambda s=s: RandomPolicy(s) for s in range(6))]


def pipeline(policy, waits="native", **changes):
    """Two items go through two devices; return the world and when each piece of work ran."""
    costs = Costs(**{**{f: getattr(COSTS, f) for f in COSTS.__slots__}, **changes})
    world = SimWorld([SimConfig(costs=costs), SimConfig(costs=costs, waits=waits)], policy=policy)
    a, b = world.open_all()
    q, r = a.create_stream(), b.create_stream()
    out = [fresh(), fresh()]
    items = [[q.device.allocate(4 * N) for _ in range(2)] for _ in range(2)]
    others = [[r.device.allocate(4 * N) for _ in range(2)] for _ in range(2)]
    for (x, y), (u, v), target in zip(items, others, out, strict=True):
        event = a.create_event()
        q.upload(raw(A), x, 0)
        q.launch(program(q, unary("silu", x, y)))
        q.record(event)
        r.wait(event)
        r.copy(y, 0, u, 0, 4 * N)
        r.launch(program(r, unary("gelu", u, v)))
        r.download(v, 0, raw(target))
    r.sync(60)
    work = [s for s in world.timeline() if s.kind not in ("record", "wait", "notice")]
    return world, [(s.device, s.kind, s.start_s, s.end_s) for s in work]


BY_HAND = [
    ("sim:0", "upload", 0.0, 1.5),
    ("sim:0", "launch", 1.5, 2.5),
    ("sim:1", "copy", 2.5, 3.5),
    ("sim:0", "upload", 2.5, 4.0),
    ("sim:1", "launch", 3.5, 4.5),
    ("sim:0", "launch", 4.0, 5.0),
    ("sim:1", "download", 4.5, 6.0),
    ("sim:1", "copy", 6.0, 7.0),
    ("sim:1", "launch", 7.0, 8.0),
    ("sim:1", "download", 8.0, 9.5),
]


@pytest.mark.parametrize("make", CHOOSERS)
def test_pipeline_by_hand(make):
    world, work = pipeline(make())
    assert work == BY_HAND
    assert world.host_s == 9.5


def test_the_host_takes_time_to_enqueue():
    world, work = pipeline(EagerPolicy(), enqueue_s=1.0)
    assert work[0] == ("sim:0", "upload", 1.0, 2.5)
    assert work[1] == ("sim:0", "launch", 2.5, 3.5)
    assert work[2] == ("sim:1", "copy", 5.0, 6.0)  # the fifth command
    assert world.host_s > 14


def test_a_thread_that_waits_takes_longer():
    _, work = pipeline(EagerPolicy(), waits="thread")
    assert ("sim:1", "copy", 2.75, 3.75) in work


def test_arithmetic_counts():
    def seconds(**costs):
        d = SimWorld([SimConfig(costs=Costs(launch_s=0, node_s=0, **costs))]).open(0)
        q = d.create_stream()
        return program(q, unary("silu", filled(q, A), filled(q, A))).seconds

    assert seconds(flops_per_s=4, memory_bytes_per_s=math.inf) == N / 4
    assert seconds(flops_per_s=math.inf, memory_bytes_per_s=16) == 2 * 4 * N / 16


@pytest.mark.parametrize("make", CHOOSERS)
def test_a_plan_takes_the_same_time_in_every_order(make):
    graph, constraints = two_devices()

    def timeline(policy):
        world = SimWorld([SimConfig(), SimConfig(has_events=False)], policy=policy)
        with Scheduler(world.open_all(), weights={"w": B}, settings=Settings()) as scheduler:
            for _ in range(3):
                scheduler.run(graph, {"x": A}, constraints)
        return sorted(world.timeline(), key=str)

    assert timeline(make()) == timeline(EagerPolicy())


class _Overlap(LaziestPolicy):
    """Lets another thread wait for an event while this one decides, once it is given."""

    def __init__(self):
        super().__init__()
        self.other, self.inside, self.met = None, 0, threading.Event()

    def choose(self, options):
        self.inside += 1
        if self.inside > 1:
            self.met.set()
        elif self.other is not None:
            other, self.other = self.other, None
            other.start()
            self.met.wait(0.2)
        self.inside -= 1
        return super().choose(options)


def test_a_thread_of_another_backend_waits_meanwhile():
    """OpenCL's streams wait for foreign events in threads of their own."""
    policy = _Overlap()
    device = SimWorld([SimConfig()], policy=policy).open(0)
    q, event, target = device.create_stream(), device.create_event(), fresh()
    q.download(filled(q, A), 0, raw(target))
    q.record(event)
    other = policy.other = threading.Thread(target=event.sync, args=(1,))
    event.sync(1)
    other.join(10)
    assert not other.is_alive()
    assert target.tolist() == A.tolist()
    assert not policy.met.is_set()
