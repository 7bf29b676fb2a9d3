"""The map of last accesses against one that keeps every byte by itself."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from ggsched.passes.order.access_intervals import ArenaHistory, Conflict

NBYTES = 24
LANES = 3

accesses = st.lists(
    st.tuples(
        st.booleans(),
        st.integers(0, NBYTES - 1),
        st.integers(1, NBYTES),
        st.integers(0, LANES - 1),
    ),
    max_size=30,
)


class Naive:
    """For each byte its last writer and, since then, the last reader of each lane."""

    def __init__(self):
        self.writer = [-1] * NBYTES
        self.readers = [{} for _ in range(NBYTES)]

    def read(self, start, end, item, lane):
        found = set()
        for k in range(start, end):
            if self.writer[k] >= 0:
                found.add(("RAW", k, self.writer[k]))
            self.readers[k][lane] = item
        return found

    def write(self, start, end, item, lane):
        found = set()
        for k in range(start, end):
            found |= {("WAR", k, reader) for reader in self.readers[k].values() if reader != item}
            if self.writer[k] >= 0:
                found.add(("WAW", k, self.writer[k]))
            self.writer[k], self.readers[k] = item, {}
        return found


def by_byte(found):
    """Conflicts of ranges as conflicts of bytes; each range is inside the arena and not empty."""
    out = set()
    for kind, _, start, end, earlier in map(structs.astuple, found):
        assert 0 <= start < end <= NBYTES
        out |= {(kind, k, earlier) for k in range(start, end)}
    return out


@given(accesses=accesses)
def test_equals_the_naive_map(accesses):
    history, naive = ArenaHistory(), Naive()
    for item, (writes, start, length, lane) in enumerate(accesses):
        end = min(NBYTES, start + length)
        found = []
        if writes:
            history.write(start, end, item, lane, found)
            wanted = naive.write(start, end, item, lane)
        else:
            history.read(start, end, item, lane, found)
            wanted = naive.read(start, end, item, lane)
        within = {(k, at, e) for k, at, e in by_byte(found) if start <= at < end}
        assert within == wanted
        assert by_byte(found) == within, "a conflict outside the bytes of the access"


def test_an_item_that_reads_and_writes_does_not_wait_for_itself():
    history = ArenaHistory()
    found = []
    history.read(0, 8, 5, 0, found)
    history.write(0, 8, 5, 0, found)
    assert found == []


def test_writes_join_segments():
    history = ArenaHistory()
    for k in range(0, NBYTES, 2):
        history.write(k, k + 2, k, 0, [])
    history.write(0, NBYTES, 99, 0, [])
    found = []
    history.read(0, NBYTES, 100, 1, found)
    assert found == [Conflict("RAW", 0, 0, NBYTES, 99)]
