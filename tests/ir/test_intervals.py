"""The interval map against one that keeps every byte by itself."""

from hypothesis import given
from hypothesis import strategies as st

from ggsched.ir.intervals import IntervalMap, overlap
from ggsched.plan.memory import Region

NBYTES = 24
ranges = st.tuples(st.integers(0, NBYTES), st.integers(0, NBYTES)).map(sorted)


@given(puts=st.lists(ranges, max_size=30), asked=ranges)
def test_equals_the_naive_map(puts, asked):
    some, naive = IntervalMap(-1), [-1] * NBYTES
    for number, (start, end) in enumerate(puts):
        some.put(start, end, number)
        naive[start:end] = [number] * (end - start)
        assert some.starts == sorted(set(some.starts))
        assert some.starts[0] == 0
        assert len(some.starts) == len(some.values)
    start, end = asked
    found = list(some.pieces(start, end))
    assert [value for a, b, value in found for _ in range(a, b)] == naive[start:end]
    assert all(a < b for a, b, _ in found)
    assert [a for a, _, _ in found[1:]] == [b for _, b, _ in found[:-1]]


@given(cuts=st.lists(ranges, max_size=30))
def test_cut_segments_cover_what_was_asked(cuts):
    some = IntervalMap([0], list)
    for start, end in cuts:
        first, last = some.cut(start, end)
        assert (some.starts[first], some.starts[last]) == (start, end)
        for k in range(first, last):
            some.values[k][0] += 1
    for at in range(NBYTES):
        ((_, _, count),) = some.pieces(at, at + 1)
        assert count == [sum(a <= at < b for a, b in cuts)]


def test_parts_share_a_value_unless_it_is_copied():
    for copy, same in ((None, True), (list, False)):
        some = IntervalMap([], copy)
        some.cut(4, 8)
        assert (some.values[0] is some.values[1]) is same


@given(a=ranges, b=ranges)
def test_overlap_is_a_common_byte(a, b):
    regions = [Region(0, start, end - start) for start, end in (a, b)]
    common = set(range(*a)) & set(range(*b))
    if a[0] < a[1] and b[0] < b[1]:
        assert overlap(*regions) is bool(common)
