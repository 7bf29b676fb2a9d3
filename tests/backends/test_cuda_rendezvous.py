"""Which launches of a capture meet, where their words lie, and whose turn it is."""

from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("cuda.bindings", reason="cuda-bindings are in the extra 'nvrtc'")

from ggsched_cuda import driver, rendezvous
from ggsched_cuda.rendezvous import (
    MAX_PEERS,
    MAX_RENDEZVOUS,
    SPACING,
    WORD_NBYTES,
    CaptureRendezvous,
    RendezvousTurns,
)


class Gpu:
    """Hands out memory, far from that of others."""

    def __init__(self, number):
        self.start, self.freed = number << 32, []

    def take_zeros(self, nbytes):
        assert nbytes == SPACING * MAX_RENDEZVOUS
        return self.start

    def free(self, address):
        self.freed.append(address)


class Stream:
    """A guest: what it recorded last, and with which words it has met another one."""

    def __init__(self, gpu):
        self.gpu, self.last, self.met = gpu, object(), []

    def launch_rendezvous(self, words):
        self.met.append(words)
        self.last = object()


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
