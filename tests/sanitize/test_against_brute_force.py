"""The verdict on races must be that of the transitive closure, on any list of commands."""

from typing import get_args

from hypothesis import event, given, settings
from hypothesis import strategies as st

from ggsched.plan.splits import HOST
from ggsched.sanitize import check_plan
from ggsched.sanitize.report import Finding
from ggsched.topology.caps import CopyOrder
from ggsched_testing.plan_builder import PlanWriter, fake_device
from tests.sanitize.brute import HOST_IN, HOST_OUT, racing_pairs


class Scribbler:
    """Adds commands at random; what they compute makes no sense, and need not."""

    def __init__(self, draw):
        self.draw = draw
        count = draw(st.integers(1, 2))
        self.w = PlanWriter(*(self.device(i) for i in range(count)))
        self.streams = [self.w.stream(self.pick(range(count))) for _ in range(3)]
        staging = self.w.value(self.w.arena("staging", HOST, 4), 0, 4)
        self.sources = [self.w.host_input("x", 4), staging]
        self.targets = [self.w.host_output("y", 4), staging]
        arenas = [self.w.arena("compute", i, 8) for i in range(count)]
        self.values = [self.w.value(a, offset, 4) for a in arenas for offset in (0, 2, 4)]
        self.values.append(self.w.fixed("state", 0, "kv", 4))
        self.events = []

    def pick(self, some):
        return self.draw(st.sampled_from(some))

    def device(self, i):
        snapshots = self.draw(st.booleans())
        order = self.pick(get_args(CopyOrder))
        return fake_device(f"fake:{i}", copy_order=order, snapshots_uploads=snapshots)

    def upload(self, q):
        self.w.transfer(q, self.pick(self.sources), self.pick(self.values))

    def download(self, q):
        self.w.transfer(q, self.pick(self.values), self.pick(self.targets))

    def copy(self, q):
        self.w.transfer(q, self.pick(self.values), self.pick(self.values))

    def launch(self, q):
        operands, modes = [], ""
        for _ in range(self.draw(st.integers(1, 3))):
            first = self.draw(st.integers(0, 3))
            operands.append((self.pick(self.values), first, self.draw(st.integers(first + 1, 4))))
            modes += self.pick("rrwp-")
        self.w.launch(q, self.w.node(modes, *operands))

    def record(self, q):
        self.events.append(self.w.record(q))

    def wait(self, q):
        if self.events:
            self.w.wait(q, self.pick(self.events))

    def barrier(self, q):
        self.w.barrier(q)

    def sync(self, q):
        self.w.sync(q, self.pick([None, *self.events]))


@st.composite
def command_lists(draw, max_commands=14):
    s = Scribbler(draw)
    verbs = (s.upload, s.download, s.copy, s.launch, s.record, s.wait, s.wait, s.barrier, s.sync)
    for _ in range(draw(st.integers(1, max_commands))):
        s.pick(verbs)(s.pick(s.streams))
    if draw(st.booleans()):  # what the host waits for at the end makes runs come apart
        for q in s.streams:
            s.w.sync(q)
    return s.w.plan()


def pair(f: Finding):
    later = HOST_IN if f.later.mode == "write" else HOST_OUT
    later = f.later.command if f.later.command >= 0 else later
    return f.earlier.command, later, f.later.run > f.earlier.run


@settings(max_examples=max(120, settings().max_examples))
@given(plan=command_lists(), runs=st.integers(1, 3))
def test_verdict_is_that_of_the_closure(plan, runs):
    races = [f for f in check_plan(plan, runs=runs).findings if f.kind == "race"]
    truth = racing_pairs(plan, runs)
    event("racy" if truth else "clean")
    assert bool(races) == bool(truth), truth
    for f in races:
        assert pair(f) in truth, f.to_text()
