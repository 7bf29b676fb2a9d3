"""Bugs of real schedulers as small plans, broken and repaired (see the corpus of races).

Each function writes one plan; ``fixed`` adds the order that was missing. The broken plan must have
a race of the named kind and nothing else, the repaired one must be clean.
"""

import pytest

from ggsched.sanitize import check_plan
from ggsched_testing.plan_builder import PlanWriter, fake_device

N = 16


class Two(PlanWriter):
    """Two devices with a stream and a compute arena each; ``h`` is a CPU."""

    def __init__(self, **facts):
        super().__init__(fake_device("cpu:0", is_host=True, **facts), fake_device("gpu:0", **facts))
        self.h, self.g = self.stream(0), self.stream(1)
        self.host_arena = self.arena("compute", 0, 8 * N)
        self.arena_g = self.arena("compute", 1, 8 * N)

    def on_h(self, slot, **more):
        return self.value(self.host_arena, slot * N, N, **more)

    def on_g(self, slot, **more):
        return self.value(self.arena_g, slot * N, N, **more)

    def run(self, stream, modes, *operands):
        return self.launch(stream, self.node(modes, *operands))


def r01_copy_overtaken_by_next_batch(fixed):
    """WAR: the next run's CPU split rewrites an activation that is still being copied."""
    w = Two()
    act, y = w.on_h(0), w.on_g(1)
    slot = w.on_g(2, of=act)
    w.run(w.h, "w", act)
    w.order(w.h, w.g)
    w.transfer(w.g, act, slot)
    w.run(w.g, "rw", slot, y)
    if fixed:
        w.sync(w.g)
    return w.plan()


def r02_split_without_inputs(fixed):
    """WAR: a split that waits for nothing gets memory that a copy still reads."""
    w = Two()
    emb, conv = w.value(w.host_arena, 0, 2 * N), w.value(w.host_arena, N, 2 * N)
    there, y = w.value(w.arena_g, 0, 2 * N, of=emb), w.value(w.arena_g, 2 * N, 2 * N)
    w.run(w.h, "w", emb)
    w.order(w.h, w.g)
    w.transfer(w.g, emb, there)
    w.run(w.g, "rw", there, y)
    event = w.record(w.g)
    if fixed:
        w.wait(w.h, event)
    w.run(w.h, "w", conv)
    w.sync(w.g)
    w.sync(w.h)
    return w.plan()


def r07_input_rewritten_under_upload(fixed):
    """WAR: the host sets the inputs of the next run while the upload is queued."""
    w = Two()
    x = w.host_input("x", N)
    slot, y = w.on_g(0, of=x), w.on_g(1)
    w.transfer(w.g, x, slot)
    w.run(w.g, "rw", slot, y)
    if fixed:
        w.sync(w.g)
    return w.plan()


def r09_event_before_the_last_reader(fixed):
    """WAR: the event that frees an input slot covers its first reader only."""
    w = Two()
    x = w.host_input("x", 2 * N)
    first = w.value(w.arena_g, 0, N, of=x)
    second = w.value(w.arena_g, N, N, of=x, start=N)
    w.transfer(w.g, x, first)
    early = w.record(w.g)
    w.transfer(w.g, x, second)
    late = w.record(w.g)
    w.sync(w.g, late if fixed else early)
    return w.plan()


def r19_output_read_under_download(fixed):
    """RAW: the host reads an output that is still on its way."""
    w = Two()
    y = w.on_g(0)
    out = w.host_output("y", N, of=y)
    w.run(w.g, "w", y)
    w.transfer(w.g, y, out)
    if fixed:
        w.sync(w.g, w.record(w.g))
    return w.plan()


def r32_download_beside_the_queue(fixed):
    """RAW: a device that keeps copies and launches in order only at barriers."""
    w = Two(copy_order="barrier")
    y = w.on_g(0)
    out = w.host_output("y", N, of=y)
    w.run(w.g, "w", y)
    if fixed:
        w.barrier(w.g)
    w.transfer(w.g, y, out)
    w.sync(w.g)
    return w.plan()


def r33_upload_on_a_foreign_stream(fixed):
    """WAR: a copy on another stream of the device does not wait for its readers."""
    w = Two()
    x, z = w.host_input("x", N), w.host_input("z", N)
    other = w.stream(1)
    d, again, y = w.on_g(0, of=x), w.on_g(0, of=z), w.on_g(1)
    w.transfer(w.g, x, d)
    w.run(w.g, "rw", d, y)
    if fixed:
        w.order(w.g, other)
    w.transfer(other, z, again)
    w.sync(w.g)
    w.sync(other)
    return w.plan()


def r34_upload_not_waited_for(fixed):
    """RAW: an upload on the transfer stream, a launch on the compute stream."""
    w = Two()
    x = w.host_input("x", N)
    t = w.stream(1)
    d, y = w.on_g(0, of=x), w.on_g(1)
    w.transfer(t, x, d)
    if fixed:
        w.order(t, w.g)
    w.run(w.g, "rw", d, y)
    w.sync(t)
    w.sync(w.g)
    return w.plan()


def r35_wait_that_does_nothing(fixed):
    """RAW: two devices, the wait is lost."""
    w = Two()
    x, y = w.on_h(0), w.on_g(1)
    there = w.on_g(0, of=x)
    w.run(w.h, "w", x)
    event = w.record(w.h)
    if fixed:
        w.wait(w.g, event)
    w.transfer(w.g, x, there)
    w.run(w.g, "rw", there, y)
    w.sync(w.h)
    w.sync(w.g)
    return w.plan()


def r39_event_before_the_copy(fixed):
    """WAR: the host waits for an event that was recorded before the copy."""
    w = Two()
    x = w.host_input("x", N)
    slot, y = w.on_g(0, of=x), w.on_g(1)
    w.run(w.g, "w", y)
    event = w.record(w.g)
    w.transfer(w.g, x, slot)
    if fixed:
        event = w.record(w.g)
    w.sync(w.g, event)
    return w.plan()


def r40_upload_beside_the_queue(fixed):
    """WAR: an upload overtakes a launch that still reads the old content."""
    w = Two(copy_order="host")
    x, z = w.host_input("x", N), w.host_input("z", N)
    a, b, y = w.on_g(0, of=x), w.on_g(0, of=z), w.on_g(1)
    w.transfer(w.g, x, a)
    w.sync(w.g)
    w.run(w.g, "rw", a, y)
    if fixed:
        w.sync(w.g)
    w.transfer(w.g, z, b)
    w.sync(w.g)
    return w.plan()


def r43_branches_share_memory(fixed):
    """WAW: temporaries of two branches on two streams, dead in list order, alive at once."""
    w = Two()
    s1, s2 = w.stream(1), w.stream(1)
    n, q1, q2 = w.on_g(0), w.on_g(1), w.on_g(2)
    k1 = w.on_g(3 if fixed else 1)
    w.run(w.g, "w", n)
    fork = w.record(w.g)
    w.wait(s1, fork)
    w.wait(s2, fork)
    w.run(s1, "rw", n, q1)
    w.run(s1, "rw", q1, q2)
    w.run(s2, "rw", n, k1)
    for q in (w.g, s1, s2):
        w.sync(q)
    return w.plan()


def r46_op_on_another_stream(fixed):
    """RAW: the op is issued to a stream that does not follow its producer."""
    w = Two()
    s1 = w.stream(1)
    x, y = w.on_g(0), w.on_g(1)
    w.run(s1, "w", x)
    w.run(s1 if fixed else w.g, "rw", x, y)
    w.sync(s1)
    w.sync(w.g)
    return w.plan()


def r57_block_read_by_a_side_stream(fixed):
    """WAR: memory is handed out again while another stream offloads it."""
    w = Two()
    side = w.stream(1)
    a, b = w.on_g(0), w.on_g(0)
    host = w.host_output("a", N, of=a)
    w.run(w.g, "w", a)
    w.order(w.g, side)
    w.transfer(side, a, host)
    if fixed:
        w.order(side, w.g)
    w.run(w.g, "w", b)
    w.sync(w.g)
    w.sync(side)
    return w.plan()


def r58_reuse_across_streams(fixed):
    """WAW: a freed buffer of one branch of a diamond is given to the other."""
    w = Two()
    s1, s2 = w.stream(1), w.stream(1)
    x, a, b, c = w.on_g(0), w.on_g(1), w.on_g(2), w.on_g(3 if fixed else 1)
    w.run(w.g, "w", x)
    for s in (s1, s2):
        w.order(w.g, s)
    w.run(s1, "rw", x, a)
    w.run(s1, "rw", a, b)
    w.run(s2, "rw", x, c)
    for q in (w.g, s1, s2):
        w.sync(q)
    return w.plan()


def r60_arena_shared_with_the_copy_stream(fixed):
    """WAR: a kernel gets a block that the copy stream still sends home."""
    w = Two()
    copies = w.stream(1)
    x = w.host_input("x", N)
    a, b = w.on_g(0, of=x), w.on_g(0)
    out = w.host_output("x again", N, of=a)
    w.transfer(copies, x, a)
    w.transfer(copies, a, out)
    if fixed:
        w.order(copies, w.g)
    w.run(w.g, "w", b)
    w.sync(w.g)
    w.sync(copies)
    return w.plan()


def r63_event_recorded_too_early(fixed):
    """RAW: the event stands for less than the waiter believes."""
    w = Two()
    x = w.on_h(0)
    there = w.on_g(0, of=x)
    if not fixed:
        event = w.record(w.h)
    w.run(w.h, "w", x)
    if fixed:
        event = w.record(w.h)
    w.wait(w.g, event)
    w.transfer(w.g, x, there)
    w.sync(w.h)
    w.sync(w.g)
    return w.plan()


LITMUS = {
    r01_copy_overtaken_by_next_batch: "WAR",
    r02_split_without_inputs: "WAR",
    r07_input_rewritten_under_upload: "WAR",
    r09_event_before_the_last_reader: "WAR",
    r19_output_read_under_download: "RAW",
    r32_download_beside_the_queue: "RAW",
    r33_upload_on_a_foreign_stream: "WAR",
    r34_upload_not_waited_for: "RAW",
    r35_wait_that_does_nothing: "RAW",
    r39_event_before_the_copy: "WAR",
    r40_upload_beside_the_queue: "WAR",
    r43_branches_share_memory: "WAW",
    r46_op_on_another_stream: "RAW",
    r57_block_read_by_a_side_stream: "WAR",
    r58_reuse_across_streams: "WAW",
    r60_arena_shared_with_the_copy_stream: "WAR",
    r63_event_recorded_too_early: "RAW",
}


@pytest.mark.parametrize("write", LITMUS, ids=lambda f: f.__name__)
def test_broken_plan_races(write):
    report = check_plan(write(fixed=False))
    assert {f.kind for f in report.findings} == {"race"}, report.to_text()
    assert LITMUS[write] in {f.hazard for f in report.findings}


@pytest.mark.parametrize("write", LITMUS, ids=lambda f: f.__name__)
def test_repaired_plan_is_clean(write):
    report = check_plan(write(fixed=True))
    assert report.is_clean, report.to_text()


@pytest.mark.parametrize("write", [r07_input_rewritten_under_upload])
def test_race_between_runs_needs_two_runs(write):
    plan = write(fixed=False)
    assert check_plan(plan, runs=1).is_clean
    assert not check_plan(plan, runs=2).is_clean
