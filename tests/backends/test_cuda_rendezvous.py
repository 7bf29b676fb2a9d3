"""Which launches of a capture meet, where their words lie, and whose turn it is."""

from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("cuda.bindings", reason="cuda-bindings are in the extra 'nvrtc'")

from ggsched_cuda import driver, rendezvous
from ggsched_cuda.deferred import MirroredLaunch
from ggsched_cuda.rendezvous import (
    MAX_PEERS,
    MAX_RENDEZVOUS,
    SPACING,
    STAGED_NBYTES,
    WORD_NBYTES,
    CaptureRendezvous,
    PushedLaunch,
    RendezvousTurns,
)


class Gpu:
    """Hands out memory, far from that of others."""

    def __init__(self, number):
        self.start = self.end = number << 32
        self.taken, self.freed = [], []

    def take_zeros(self, nbytes):
        self.taken.append(range(self.end, self.end + nbytes))
        self.end += nbytes + SPACING
        return self.taken[-1].start

    def free(self, address):
        self.freed.append(address)


class Stream:
    """A participant: what it recorded last, and with which words it has met another one."""

    def __init__(self, gpu):
        self.gpu, self.last, self.met = gpu, object(), []
        self.seen = {self: 1}
        self.pushed = self.producer = None
        self.places, self.staged = [], []

    def launch_producer(self, places):
        self.places.append(places)

    def launch_rendezvous(self, words, staged):
        self.met.append(words)
        self.staged.append(staged)
        self.last = object()
        self.seen = {**self.seen, self: self.seen[self] + 1}


@pytest.fixture(params=range(2, 2 + MAX_PEERS))
def group(request):
    return [Stream(Gpu(k)) for k in range(1, 1 + request.param)]


@pytest.fixture
def pair():
    return Stream(Gpu(1)), Stream(Gpu(2))


def others(streams, stream):
    """Return what all others have recorded last."""
    return [s.last for s in streams if s is not stream]


@pytest.mark.parametrize("words", [1, 3])
def test_those_that_wait_for_each_other_meet(group, words):
    found, p = CaptureRendezvous(), len(group)
    for k in range(3):
        *early, late = group[k % p :] + group[: k % p]
        for stream in early:
            assert found.offer(stream, others(group, stream), words)
            assert len(stream.met) == k, "it does not know yet with whom"
        assert found.offer(late, others(group, late), words)
    assert found.count == 3
    for k in range(3):
        setter = {own: s for s in group for own, _ in s.met[k]}
        assert len(setter) == p * (p - 1), "each one sets a word of its own for each other one"
        for s in group:
            assert {setter[peer] for _, peer in s.met[k]} == set(group) - {s}
            for own, _ in s.met[k]:
                place = own - s.gpu.start - k * SPACING
                assert 0 <= place <= SPACING - WORD_NBYTES * words
            starts = sorted(own for own, _ in s.met[k])
            assert all(b - a >= WORD_NBYTES * words for a, b in pairwise(starts))
            # The word that it sets is the one that the other waits for.
            for own, peer in s.met[k]:
                assert (peer, own) in setter[peer].met[k]
    found.free()
    found.free()
    assert all(s.gpu.freed == [s.gpu.start] for s in group)


def test_whoever_waits_for_something_earlier_does_not_meet(group):
    """Another one has gone on: a word that it sets now would stand for more than is waited for."""
    found, first, second = CaptureRendezvous(), group[0], group[1]
    early = others(group, first)
    second.last = object()
    assert found.offer(first, early, 1)
    assert not found.offer(second, others(group, second), 1)
    assert not any(s.met for s in group)
    assert not found.count


def test_who_is_not_waited_for_does_not_meet(pair):
    a, b = pair
    found, of_b = CaptureRendezvous(), b.last
    assert found.offer(a, [of_b], 1)
    found.forget(a)
    assert found.offer(b, [a.last], 1), "it waits for somebody to come"
    assert (a.met, b.met) == ([], [])


def test_all_of_a_group_wait_for_all_others():
    """Three of which one waits for one other only, and two that hear nothing of the third."""
    a, b, c = (Stream(Gpu(k)) for k in range(1, 4))
    found = CaptureRendezvous()
    assert found.offer(a, [b.last, c.last], 1)
    assert not found.offer(b, [a.last], 1)
    found.forget(a)
    assert found.offer(a, [b.last], 1)
    assert found.offer(c, [b.last], 1), "nobody has come yet"
    assert not found.offer(b, [a.last, c.last], 1)
    assert not any(s.met for s in (a, b, c))


def test_too_many_do_not_meet():
    streams = [Stream(Gpu(k)) for k in range(1, 3 + MAX_PEERS)]
    assert not CaptureRendezvous().offer(streams[0], others(streams, streams[0]), 1)


def test_nobody_waits_for_a_stream_that_recorded_nothing(pair):
    a, b = pair
    a.last = None
    assert not CaptureRendezvous().offer(a, [b.last], 1)


@pytest.mark.parametrize(("words", "other"), [(2, 3), (SPACING // 4 + 1, SPACING // 4 + 1)])
def test_words_that_do_not_fit(pair, words, other):
    a, b = pair
    found = CaptureRendezvous()
    assert not (found.offer(a, [b.last], words) and found.offer(b, [a.last], other))
    assert not found.count


def test_a_graph_has_so_many_rendezvous(pair):
    a, b = pair
    found = CaptureRendezvous()
    for _ in range(MAX_RENDEZVOUS):
        assert found.offer(a, [b.last], 1)
        assert found.offer(b, [a.last], 1)
    assert not found.offer(a, [b.last], 1)
    ((own, _),) = a.met[-1]
    assert own + SPACING == a.gpu.start + SPACING * MAX_RENDEZVOUS


@given(st.lists(st.integers(0, 2), min_size=1, max_size=40))
def test_a_graph_is_behind_the_last_one_of_another_stream(numbers):
    """Of several streams in any order: neighbours on one stream have its order, others wait."""
    waits, launched = [], []
    streams = [Stream(None) for _ in range(3)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "enqueue_wait", lambda handle, event: waits.append((handle, event)))

        def behind(gpu, handle):
            return SimpleNamespace(handle=(handle, len(launched)))

        patch.setattr(rendezvous, "Marker", SimpleNamespace(behind=behind))
        turns = RendezvousTurns()
        for number in numbers:
            turns.run(None, streams[number], number, lambda: launched.append(0))
    assert len(launched) == len(numbers)
    pairs = enumerate(pairwise(numbers))
    assert waits == [(now, (before, k + 1)) for k, (before, now) in pairs if before != now]


# --- pushed rows ------------------------------------------------------------------------------

NBYTES = 256


def pushes(group, nbytes=NBYTES):
    """Let streams be such that a product has made a row, and what follows can begin with a sum."""
    rows = tuple(1000 + 3000 * k for k in range(len(group)))
    for stream, row in zip(group, rows, strict=True):
        stream.producer = MirroredLaunch((None, ()), (None, None), row, nbytes, "n1")
        stream.pushed = PushedLaunch((None, ()), (), 2, rows, nbytes)
    return rows


def meet(found, group, words=1):
    for stream in group:
        assert found.offer(stream, others(group, stream), words)


@pytest.mark.parametrize("nbytes", [NBYTES, STAGED_NBYTES])
def test_rows_are_pushed_to_all(group, nbytes):
    """Each to the same place among the rows of each GPU, which nothing else has."""
    found, seen = CaptureRendezvous(), {}
    for k in range(4):
        rows = pushes(group, nbytes)
        meet(found, group[k % len(group) :] + group[: k % len(group)])
        for i, stream in enumerate(group):
            assert stream.producer.source == rows[i]
            assert len(stream.places[k]) == len(group)
            for other in group:
                place = other.staged[k].rows + i * nbytes
                assert place in stream.places[k]
                seen[place] = range(place, place + nbytes)
        for stream in group:
            seen[stream.staged[k].word] = range(stream.staged[k].word, stream.staged[k].word + 4)
            for own, _ in stream.met[k]:
                seen[own] = range(own, own + WORD_NBYTES)
    assert len(seen) == 4 * len(group) * (2 * len(group)), "each has its own"
    taken = [r for stream in group for r in stream.gpu.taken]
    assert all(any(r.start >= t.start and r.stop <= t.stop for t in taken) for r in seen.values())
    ordered = sorted(seen.values(), key=lambda r: r.start)
    assert all(a.stop <= b.start for a, b in pairwise(ordered))
    found.free()
    for stream in group:
        assert sorted(stream.gpu.freed) == [r.start for r in stream.gpu.taken]


def _no_product(group, rows):
    group[0].producer = None


def _no_alternative(group, rows):
    group[-1].pushed = None


def _another_row(group, rows):
    group[0].producer = group[0].producer._replace(source=7)


def _part_of_a_row(group, rows):
    group[0].producer = group[0].producer._replace(nbytes=NBYTES // 2)


def _another_order(group, rows):
    group[0].pushed = group[0].pushed._replace(rows=rows[::-1])


def _more_rows(group, rows):
    for stream in group:
        stream.pushed = stream.pushed._replace(rows=(*rows, 99))


SPOILT = [_no_product, _no_alternative, _another_row, _part_of_a_row, _another_order, _more_rows]


@pytest.mark.parametrize("spoil", SPOILT, ids=lambda f: f.__name__[1:])
def test_rows_are_read_if_one_is_not_pushed(group, spoil):
    found = CaptureRendezvous()
    spoil(group, pushes(group))
    meet(found, group)
    for stream in group:
        assert stream.staged == [None]
        assert not stream.places
        assert len(stream.met) == 1
    assert found.count == 1


def test_several_rows_are_not_pushed(pair):
    pushes(pair)
    meet(CaptureRendezvous(), pair, words=2)
    assert [stream.staged for stream in pair] == [[None], [None]]


def test_two_groups_do_not_fill_the_same_gpus_at_once(group):
    """Each of two kernels could occupy the GPU that the other one's partner needs."""
    found = CaptureRendezvous()
    pushes(group)
    meet(found, group)
    beside = [Stream(stream.gpu) for stream in group]
    pushes(beside)
    meet(found, beside)
    assert not any(stream.places for stream in beside)
    for stream, first in zip(beside, group, strict=True):  # they wait for the first group's
        stream.seen = {**stream.seen, first: first.seen[first]}
    pushes(beside)
    meet(found, beside)
    assert all(len(stream.places) == 1 for stream in beside)
    pushes(group)
    meet(found, group)
    assert all(len(stream.places) == 1 for stream in group), "now it is the other way round"
    assert found.count == 4


@pytest.mark.parametrize("is_behind", [False, True])
def test_work_of_a_gpu_that_another_one_waits_for_comes_first(group, is_behind):
    beside = Stream(group[0].gpu)
    group[-1].seen = {**group[-1].seen, beside: 2}
    group[0].seen = {**group[0].seen, beside: 1 + is_behind}
    pushes(group)
    found = CaptureRendezvous()
    meet(found, group)
    assert found.count == 1
    assert all(bool(stream.places) == is_behind for stream in group)
