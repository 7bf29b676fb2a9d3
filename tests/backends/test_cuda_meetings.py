"""Which launches of a capture meet, where their words lie, and whose turn it is."""

from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("cuda.bindings", reason="cuda-bindings are in the extra 'nvrtc'")

from ggsched_cuda import driver, meetings
from ggsched_cuda.meetings import MAX_MEETINGS, SPACING, Meetings, MeetingTurns


class Gpu:
    """Hands out memory, far from that of others."""

    def __init__(self, number):
        self.start, self.freed = number << 32, []

    def take_zeros(self, nbytes):
        assert nbytes == SPACING * MAX_MEETINGS
        return self.start

    def free(self, address):
        self.freed.append(address)


class Stream:
    """A guest: what it recorded last, and with which words it has met another one."""

    def __init__(self, gpu):
        self.gpu, self.last, self.met = gpu, object(), []

    def launch_meeting(self, own, peer):
        self.met.append((own, peer))
        self.last = object()


@pytest.fixture
def pair():
    return Stream(Gpu(1)), Stream(Gpu(2))


def test_two_that_wait_for_each_other_meet(pair):
    a, b = pair
    found = Meetings()
    for k in range(3):
        first, second = (a, b) if k % 2 else (b, a)
        assert found.offer(first, second.last, 1)
        assert len(first.met) == k, "it does not know yet with whom"
        assert found.offer(second, first.last, 1)
    assert found.count == 3
    assert [w for w, _ in a.met] == [p for _, p in b.met]
    assert [p for _, p in a.met] == [w for w, _ in b.met]
    assert [w - a.gpu.start for w, _ in a.met] == [0, SPACING, 2 * SPACING]
    found.free()
    found.free()
    assert (a.gpu.freed, b.gpu.freed) == ([a.gpu.start], [b.gpu.start])


def test_whoever_waits_for_something_earlier_does_not_meet(pair):
    """The other one has gone on: what it tells now would stand for more than is waited for."""
    a, b = pair
    found, early = Meetings(), b.last
    b.last = object()
    assert found.offer(a, early, 1)
    assert not found.offer(b, a.last, 1)
    assert (a.met, b.met, found.count) == ([], [], 0)


def test_who_is_not_waited_for_does_not_meet(pair):
    a, b = pair
    found, of_b = Meetings(), b.last
    assert found.offer(a, of_b, 1)
    found.forget(a)
    assert found.offer(b, a.last, 1), "it waits for somebody to come"
    assert (a.met, b.met) == ([], [])


def test_nobody_waits_for_a_stream_that_recorded_nothing(pair):
    a, b = pair
    a.last = None
    assert not Meetings().offer(a, b.last, 1)


@pytest.mark.parametrize(("words", "other"), [(2, 3), (SPACING // 4 + 1, SPACING // 4 + 1)])
def test_words_that_do_not_fit(pair, words, other):
    a, b = pair
    found = Meetings()
    assert not (found.offer(a, b.last, words) and found.offer(b, a.last, other))
    assert not found.count


def test_a_graph_has_so_many_meetings(pair):
    a, b = pair
    found = Meetings()
    for _ in range(MAX_MEETINGS):
        assert found.offer(a, b.last, 1)
        assert found.offer(b, a.last, 1)
    assert not found.offer(a, b.last, 1)
    assert a.met[-1][0] + SPACING == a.gpu.start + SPACING * MAX_MEETINGS


@given(st.lists(st.integers(0, 2), min_size=1, max_size=40))
def test_a_graph_is_behind_the_last_one_of_another_stream(numbers):
    """Of several streams in any order: neighbours on one stream have its order, others wait."""
    waits, launched = [], []
    streams = [Stream(None) for _ in range(3)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "enqueue_wait", lambda handle, event: waits.append((handle, event)))

        def behind(gpu, handle):
            return SimpleNamespace(handle=(handle, len(launched)))

        patch.setattr(meetings, "Marker", SimpleNamespace(behind=behind))
        turns = MeetingTurns()
        for number in numbers:
            turns.run(None, streams[number], number, lambda: launched.append(0))
    assert len(launched) == len(numbers)
    pairs = enumerate(pairwise(numbers))
    assert waits == [(now, (before, k + 1)) for k, (before, now) in pairs if before != now]
