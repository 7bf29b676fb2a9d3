"""What a capture hands to the driver, whatever it has put off: order, edges and pushed rows.

Streams of several GPUs get programs that end with a product, whose row others add up next, in any
order that their events allow. The driver is a list of what it was given.
"""

import ctypes
from collections import defaultdict
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("cuda.bindings", reason="cuda-bindings are in the extra 'nvrtc'")

from ggsched_cuda import capture_sink, driver
from ggsched_cuda.capture_sink import Captured, CapturingSink
from ggsched_cuda.deferred import MirroredLaunch, Move
from ggsched_cuda.event import CudaEvent
from ggsched_cuda.rendezvous import PLACES, PushedLaunch, RendezvousLaunch

NBYTES = 256
OWN, PEER = slice(0, PLACES - 1, 2), slice(1, PLACES - 1, 2)


@dataclass(eq=False)
class Entry:
    """Something that the driver was given."""

    kind: str
    stream: int
    name: object = None
    words: tuple = ()  # own words and those of others, where it meets them
    places: tuple = ()  # where a row is written too, or where rows are read


class Gpu:
    """Hands out events and memory."""

    def __init__(self, number, log):
        self.number, self.log, self.end = number, log, (number + 1) << 32

    def enter(self):
        self.log.here = self

    def take_event(self):
        self.log.events += 1
        return self.log.events

    def give_event(self, handle):
        pass

    def take_zeros(self, nbytes):
        start, self.end = self.end, self.end + nbytes
        return start

    def free(self, address):
        pass


class Log(list):
    """What the driver was given, in order."""

    here, events = None, 0

    def record(self, event, stream):
        assert self.here is self.gpus[stream]
        self.append(Entry("record", stream, event))
        return (0,)

    def wait(self, stream, event):
        assert self.here is self.gpus[stream]
        assert any((e.kind, e.name) == ("record", event) for e in self), "it is not recorded yet"
        self.append(Entry("wait", stream, event))

    def launch(self, stream, name, places):
        assert self.here is self.gpus[stream]
        self.append(Entry("launch", stream, name, places=tuple(p.value for p in places)))
        return (0,)

    def meet(self, stream, name, places):
        self.launch(stream, name, ())
        self[-1].words = tuple(p.value for p in places)
        return (0,)


def words(count):
    return tuple(ctypes.c_uint64() for _ in range(count))


class Streams:
    """Streams of GPUs, the first of each GPU for its products, and what they were asked for."""

    def __init__(self, count, patch):
        self.log, self.count = Log(), count
        self.log.gpus = [Gpu(k, self.log) for k in range(count)]
        self.log.gpus.append(self.log.gpus[0])  # a second stream of the first GPU
        self.captured = Captured([], lambda: None)
        patch.setattr(driver, "record_event", self.log.record)
        patch.setattr(driver, "enqueue_wait", self.log.wait)
        patch.setattr(
            capture_sink, "make_transfers",
            lambda gpu, handle, moves: self.log.append(Entry("move", handle)),
        )  # fmt: skip
        self.sinks = [self._sink(k) for k in range(count + 1)]
        self.given = defaultdict(list)  # what each stream was given, in order
        self.events = {}

    def _sink(self, handle):
        def run_steps(steps, labels):
            assert len(steps) <= len(labels)
            return all(call(*arguments)[0] == 0 for call, arguments in steps)

        queue = SimpleNamespace(
            name=f"s{handle}", gpu=self.log.gpus[handle], handle=handle, refused=None,
            patience_s=1.0, words=f"words{handle}", run_steps=run_steps,
            copy=lambda turn, *_: self.log.launch(handle, (handle, turn, "copy"), ()),
        )  # fmt: skip
        return CapturingSink(queue, self.captured)

    def program(self, stream, turn, *, adds, sends="gpus", spoilt=False):
        """Return a program; with a sum in front, if it adds, and a product at its end.

        Args:
            stream: Who is given it.
            turn: When.
            adds: Whether it begins with a sum over GPUs.
            sends: Where the result of its last call may go: GPUs, the host, or nowhere.
            spoilt: Whether that is not what is added up next.
        """
        names = [(stream, turn, step) for step in ("sum", "product", "last")][not adds :]
        mirrored = words({"gpus": 4, "host": 1, "nowhere": 0}[sends])
        nowhere, meets, pushed = (words(n) for n in (0, PLACES, PLACES + 2))
        steps = [(self.log.launch, (stream, name, nowhere)) for name in names]
        program = SimpleNamespace(
            labels=[str(n) for n in names], checks_ids=False, in_turn=steps[0], sending=None,
            rendezvous=None, pushed=None,
        )  # fmt: skip
        rows = tuple(100 * turn + k for k in range(self.count))
        if mirrored:
            steps[-1] = (self.log.launch, (stream, names[-1], mirrored))
            program.sending = MirroredLaunch(
                steps[-1], mirrored, rows[stream] + 100 + spoilt, NBYTES, "n"
            )
        if adds:
            steps[0] = (self.log.meet, (stream, names[0], meets))
            program.rendezvous = RendezvousLaunch(meets, 1)
            whole = self.log.meet, (stream, (stream, turn, "pushed"), pushed)
            program.pushed = PushedLaunch(whole, pushed, 2, rows, NBYTES)
        self.given[stream] += [("launch", name) for name in names]
        return program, steps

    def do(self, stream, op, *rest):
        """Give a stream something."""
        sink = self.sinks[stream]
        sink.gpu.enter()
        if op == "launch":
            sink.launch(*self.program(stream, *rest[:1], **rest[1]))
        elif op == "record":
            self.events[rest] = CudaEvent(None)
            self.given[stream].append(("record", rest))
            sink.record(self.events[rest])
        elif op == "wait":
            self.given[stream].append(("wait", rest))
            sink.wait(self.events[rest])
        elif op == "copy":
            self.given[stream].append(("launch", (stream, *rest, "copy")))
            sink.copy(*rest, 0, 0, 0, NBYTES)
        else:
            assert sink.takes(Move(1 << 20, 2 << 20, 16), None)

    def end(self):
        for sink in self.sinks:
            sink.flush()
        assert not self.captured.unrecorded
        assert not self.captured.owed


def ops_of(stream, count, turns, draw):
    """Return what a stream of products is given; ``draw`` says what goes another way."""
    for turn in range(turns):
        yield from first_ops(count, turn, draw)
        if draw(9) == 0:
            yield ("move",)
        yield "record", stream, turn
        if draw(6) == 0:
            yield "record", stream, turn, "again"
        if draw(9) == 0:
            yield ("move",)
        for other in range(count):
            if other != stream and draw(12) != 0:
                yield "wait", other, turn
        if draw(12) == 0:
            yield "wait", stream, turn
        if draw(12) == 0:
            yield "copy", turn
        if draw(9) == 0:
            yield "record", stream, turn, "behind"
            if turn:
                yield "wait", (stream + 1) % count, turn - 1, "behind"
    if turns:
        yield "launch", turns, {"adds": True}


def first_ops(count, turn, draw):
    """Return what ends with the product of a turn: maybe behind the first GPU's second stream."""
    is_behind = turn > 0 and draw(4) == 0
    if is_behind:
        yield "wait", count, turn - 1, "behind"
    sends = {0: "nowhere", 1: "host"}.get(draw(9), "gpus")
    how = {"adds": turn > 0 and not is_behind, "sends": sends, "spoilt": draw(9) == 0}
    yield "launch", turn, how


def side_ops(count, turns, draw):
    """Return what the second stream of the first GPU is given: it waits for some products.

    Others may wait for it.
    """
    for turn in range(turns):
        if draw(3) == 0:
            yield ("wait", 0, turn, "behind") if draw(1) else ("wait", 0, turn)
            yield "launch", turn, {"adds": False, "sends": "nowhere"}
            yield "record", count, turn, "behind"


def run(streams, ops, choose):
    """Give all streams what they are to be given, in an order that events allow."""
    left = {k: list(o) for k, o in enumerate(ops)}
    recorded = {op[1:] for o in left.values() for op in o if op[0] == "record"}

    def can_be(op):
        return op[1:] in recorded

    def can_go(k):
        op = left[k][0]
        return op[0] != "wait" or op[1:] in streams.events

    while any(left.values()):
        for ops in left.values():  # of events that nobody records
            while ops and ops[0][-1] == "behind" and ops[0][0] == "wait" and not can_be(ops[0]):
                ops.pop(0)
        able = [k for k, o in left.items() if o and can_go(k)]
        k = choose(sorted(able, key=lambda k: -len(left[k])))
        streams.do(k, *left[k].pop(0))
    streams.end()


class Order:
    """What stands behind what in a log."""

    def __init__(self, log):
        self.log, self._known = log, {}
        self._previous, last = {}, {}
        for k, entry in enumerate(log):
            self._previous[k] = last.get(entry.stream)
            last[entry.stream] = k
        self._recorded = {e.name: k for k, e in enumerate(log) if e.kind == "record"}
        meetings = [k for k, e in enumerate(log) if any(e.words)]
        self._at = {w: k for k in meetings for w in self.own(k)}

    def own(self, k):
        return [w for w in self.log[k].words[-PLACES:][OWN] if w]

    def others(self, k):
        """Return the entries that one meets."""
        found = [self._at[w] for w in self.log[k].words[-PLACES:][PEER] if w]
        assert all(set(self.own(k)) & set(self.log[o].words[-PLACES:][PEER]) for o in found)
        return found

    def before(self, k):
        """Return the entries that are complete when one begins."""
        if k not in self._known:
            found = self._upto(self._previous[k])
            if self.log[k].kind == "wait":
                found |= self._upto(self._recorded[self.log[k].name])
            if any(self.log[k].words):
                for other in self.others(k):
                    found |= self._upto(self._previous[other])
            self._known[k] = found
        return set(self._known[k])

    def in_front(self, k):
        """Return the entries that are complete when one is begun, before it meets others."""
        return self._upto(self._previous[k])

    def _upto(self, k):
        return set() if k is None else self.before(k) | {k}


def check(streams):
    """Each stream has launched what it was given, in order, behind all that it waited for."""
    log, order = streams.log, Order(streams.log)
    place, pushed = {}, 0
    for k, entry in enumerate(log):
        if entry.kind == "launch":
            stream, turn, step = entry.name
            assert entry.stream == stream
            steps = ("sum", "product") if step == "pushed" else (step,)
            place.update({(stream, turn, s): k for s in steps})
            pushed += step == "pushed"
    check_order(streams, order, place)
    for k, entry in enumerate(log):
        if entry.kind == "launch" and entry.name[2] == "pushed":
            check_rows(streams, order, k, place)
    return pushed


def check_order(streams, order, place):
    """Check order in each stream, and behind the events that it waits for."""
    records = {e.name: k for k, e in enumerate(streams.log) if e.kind == "record"}
    launches, waits = {}, {}  # by event: what it stands for
    for stream, asked in streams.given.items():
        at = [place[name] for kind, name in asked if kind == "launch"]
        assert at == sorted(at)
        found = [e for e in streams.log if (e.kind, e.stream) == ("launch", stream)]
        assert len(set(at)) == len(found)
        so_far, awaited = [], []
        for kind, name in asked:
            if kind == "launch":
                so_far.append(place[name])
            elif kind == "wait":
                awaited.append(name)
            else:
                launches[name], waits[name] = list(so_far), list(awaited)
                later = set(at) - set(so_far)
                where = records[streams.events[name].recorded.marker.handle]
                assert all(where < k for k in later), "it stands for what comes later"

    def stands_for(name):
        return set(launches[name]).union(*map(stands_for, waits[name]))

    for asked in streams.given.values():
        behind = set()
        for kind, name in asked:
            if kind == "wait":
                behind |= stands_for(name)
            elif kind == "launch":
                assert behind <= order.before(place[name])


def check_rows(streams, order, k, place):
    """Rows are where the sum reads them, in its order, written by products in front of it."""
    stream, turn, _ = streams.log[k].name
    rows = streams.log[k].words[0]
    for other in range(streams.count):
        product = place[other, turn - 1, "last"]
        assert product in order.before(k)
        assert rows + NBYTES * other in streams.log[product].places, "nobody has written it"
    assert f"words{stream}" in streams.captured.words
    gpu, done = streams.log.gpus[stream], order.in_front(k)
    for other in order.others(k):
        for e in order.in_front(other) - done:
            there = streams.log[e].stream
            assert there == stream or streams.log.gpus[there] is not gpu, "it has no place there"


@pytest.fixture
def patch():
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.mark.parametrize("count", [2, 3, 4])
def test_rows_of_all_turns_are_pushed(patch, count):
    """Where streams go on side by side, as plans let them."""
    streams = Streams(count, patch)
    ops = [ops_of(k, count, 3, lambda n: n) for k in range(count)]
    run(streams, ops, lambda able: able[0])
    assert check(streams) == 3 * count
    assert not any(e.kind == "wait" for e in streams.log), "no edge is needed"


def test_a_product_is_recorded_before_the_sum_in_front_of_it_is_launched(patch):
    """One of two streams goes as far as it can: it has recorded what it has only put off."""
    streams = Streams(2, patch)
    ops = [ops_of(k, 2, 4, lambda n: n) for k in range(2)]
    run(streams, ops, min)
    assert check(streams) == 4 * 2


@given(count=st.integers(2, 4), turns=st.integers(1, 4), random=st.randoms(use_true_random=False))
def test_whatever_is_put_off(count, turns, random):
    """Whatever comes in between, and in whatever order that events allow."""
    with pytest.MonkeyPatch.context() as patch:
        streams = Streams(count, patch)

        def draw(n):
            return random.randrange(n + 1)

        ops = [ops_of(k, count, turns, draw) for k in range(count)]
        run(streams, [*ops, side_ops(count, turns, draw)], random.choice)
        check(streams)


PLAIN = {"adds": False, "sends": "nowhere"}


def make_rows(streams):
    """Let two streams launch a product each, and record it."""
    for k in range(2):
        streams.do(k, "launch", 0, {"adds": False})
        streams.do(k, "record", k, 0)


def test_an_event_behind_a_wait_and_a_product(patch):
    """Nothing is launched between the wait and the event, which stands for both."""
    streams = Streams(2, patch)
    make_rows(streams)
    streams.do(0, "wait", 1, 0)
    streams.do(0, "record", 0, 0, "behind")
    streams.do(2, "wait", 0, 0, "behind")
    streams.do(2, "launch", 0, PLAIN)
    streams.end()
    check(streams)


def test_an_event_that_is_owed_stands_for_nothing_later(patch):
    """A launch is put off, an event is behind it, and a copy comes that cannot be put off."""
    streams = Streams(2, patch)
    make_rows(streams)
    streams.do(0, "wait", 1, 0)
    streams.do(0, "launch", 1, {"adds": True})
    streams.do(0, "record", 0, 1)
    streams.do(0, "copy", 1)
    streams.end()
    check(streams)


def add_up_rows(streams):
    """Let the products of two streams be added up by both."""
    make_rows(streams)
    for k in range(2):
        streams.do(k, "wait", 1 - k, 0)
        streams.do(k, "launch", 1, {"adds": True})
    streams.end()
    return check(streams)


@pytest.mark.parametrize("op", ["launch", "copy"])
def test_a_gpu_is_not_filled_while_another_stream_of_it_is_waited_for(patch, op):
    """Thread blocks that wait occupy it, and what they wait for would never begin."""
    streams = Streams(2, patch)
    streams.do(2, op, 0, *[PLAIN][: op == "launch"])
    streams.do(2, "record", 2, 0)
    streams.do(1, "wait", 2, 0)
    assert add_up_rows(streams) == 0


def test_what_another_stream_was_given_and_is_complete_does_not_matter(patch):
    """The product in front of the sum stands behind it too, on the GPU that it is on."""
    streams = Streams(2, patch)
    streams.do(2, "launch", 0, PLAIN)
    streams.do(2, "record", 2, 0)
    for k in range(2):
        streams.do(k, "wait", 2, 0)
    assert add_up_rows(streams) == 2
