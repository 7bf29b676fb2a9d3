"""The verdict on traces is that of sets of records known to be done, whatever is forgotten."""

from collections import defaultdict

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from ggsched.sanitize import check_trace
from ggsched.trace.schema import (
    NOBODY,
    Access,
    Actor,
    Alloc,
    Free,
    Record,
    Sync,
    Trace,
    Wait,
    Work,
)

HOSTS = 2
COUNT = 5
BLOCK, BLOCKS = 4, 3


def actors_of(hosts):
    """Return as many threads, and streams."""
    return tuple(
        Actor(i, f"A{i}", "host" if i < hosts else "stream", "" if i < hosts else "gpu:0")
        for i in range(COUNT)
    )


ACTORS = actors_of(HOSTS)


@st.composite
def traces(draw):
    """One or two threads and some streams touch blocks of an address space, which are used again.

    Of one thread it may be known that it enqueues everything.
    """
    alive, records, count = {}, [], 0
    hosts, least = draw(st.sampled_from([(1, 0), (1, NOBODY), (HOSTS, NOBODY)]))
    streams, threads = st.integers(hosts, COUNT - 1), st.integers(least, hosts - 1)

    def begin(block):
        nonlocal count
        new = Alloc(
            draw(st.integers(0, COUNT - 1)),
            count,
            f"m{count}",
            BLOCK * draw(st.integers(1, BLOCKS - block)),
            is_defined=True,
            space="pool",
            address=BLOCK * block,
        )
        for block_of, old in list(alive.items()):
            if old.address < new.address + new.nbytes and new.address < old.address + old.nbytes:
                records.append(Free(draw(streams), old.memory, draw(threads)))
                del alive[block_of]
        alive[block] = new
        records.append(new)
        count += 1

    def accesses():
        found = []
        for memory in draw(st.lists(st.sampled_from(list(alive.values())), max_size=2)):
            first = draw(st.integers(0, memory.nbytes - 1))
            end = draw(st.integers(first + 1, memory.nbytes))
            found.append(Access(memory.memory, first, end))
        return tuple(found)

    begin(0)
    for _ in range(draw(st.integers(1, 24))):
        verb = draw(st.sampled_from(["work"] * 5 + ["record", "wait", "sync", "begin"]))
        number = draw(st.integers(0, 2))
        if verb == "work":
            actor, by = draw(streams), draw(threads)
            if draw(st.integers(0, 4)) == 0:
                actor, by = draw(st.integers(0, hosts - 1)), NOBODY
            records.append(Work(actor, "w", by, accesses(), accesses()))
        elif verb == "record":
            records.append(Record(draw(streams), number, draw(threads)))
        elif verb == "wait":
            records.append(Wait(draw(streams), number, draw(threads)))
        elif verb == "sync":
            target = draw(st.none() | streams)
            known = number if draw(st.booleans()) and target is not None else None
            target = None if known is not None else target
            records.append(Sync(draw(st.integers(0, hosts - 1)), event=known, stream=target))
        else:
            begin(draw(st.integers(0, BLOCKS - 1)))
    return Trace("drawn", actors_of(hosts), tuple(records), events="latest")


def racing_pairs(trace):
    """Return (earlier, later) of all records that race, by sets instead of clocks."""
    known, events = defaultdict(set), {}
    memories = {e.memory: e for e in trace.entries if isinstance(e, Alloc)}
    touched, freed, pairs = [], [], set()
    for i, entry in enumerate(trace.entries):
        mine = known[entry.actor]
        mine |= known[getattr(entry, "by", NOBODY)]
        if isinstance(entry, Alloc):
            for j, old in freed:
                if ranges_meet(span(old), span(entry)):
                    mine |= known["free", j]
        elif isinstance(entry, Record):
            events[entry.event] = set(mine)
        elif isinstance(entry, Wait):
            mine |= events.get(entry.event, set())
        elif isinstance(entry, Sync):
            if entry.event is not None:
                mine |= events.get(entry.event, set())
            else:
                for stream in (a.id for a in trace.actors if a.kind == "stream"):
                    mine |= known[stream] if entry.stream in (None, stream) else set()
        else:
            spans = (
                [(True, *span(memories[entry.memory]))]
                if isinstance(entry, Free)
                else [
                    (
                        is_write,
                        memories[a.memory].address + a.start,
                        memories[a.memory].address + a.end,
                    )
                    for is_write, some in ((False, entry.reads), (True, entry.writes))
                    for a in some
                ]
            )
            for writes, start, end in spans:
                pairs |= {
                    (j, i)
                    for j, wrote, first, last in touched
                    if j not in mine
                    and (wrote or writes)
                    and ranges_meet((first, last), (start, end))
                }
            touched += [(i, *some) for some in spans]
            mine.add(i)
            if isinstance(entry, Free):
                known["free", i] = set(mine)
                freed.append((i, memories[entry.memory]))
    return pairs


def span(memory):
    return memory.address, memory.address + memory.nbytes


def ranges_meet(a, b):
    return a[0] < b[1] and b[0] < a[1]


@pytest.mark.parametrize("forgets", [True, False])
@given(trace=traces())
def test_verdict_is_that_of_the_sets_whatever_is_forgotten(forgets, trace):
    with pytest.MonkeyPatch.context() as patched:
        if forgets:
            patched.setattr("ggsched.sanitize.races.FORGET_ABOVE", (0, 0))
        found = [f for f in check_trace(trace).findings if f.kind == "race"]
    truth = racing_pairs(trace)
    event("racy" if truth else "clean")
    assert bool(found) == bool(truth), truth
    assert {(f.earlier.command, f.later.command) for f in found} <= truth


def test_what_the_last_work_of_a_stream_does_not_know_is_kept_until_its_end(monkeypatch):
    monkeypatch.setattr("ggsched.sanitize.races.FORGET_ABOVE", (0, 0))
    a, b, c = range(HOSTS, HOSTS + 3)
    trace = Trace(
        "last",
        ACTORS,
        (
            Alloc(0, 0, "m0", 8, is_defined=True),
            Work(a, "w", 0, (), (Access(0, 4, 8),)),
            Record(a, 0, 0),
            Wait(b, 0, 0),
            Work(c, "rw", 1, (Access(0, 0, 4),), (Access(0, 4, 8),)),
            Work(b, "r", 0, (Access(0, 0, 2),)),
        ),
    )
    assert {(f.earlier.command, f.later.command) for f in check_trace(trace).findings} == {(1, 4)}


def races_of(trace):
    return {(f.earlier.command, f.later.command) for f in check_trace(trace).findings}


def two_memories():
    for i in (0, 1):
        yield Alloc(0, i, f"m{i}", 8, is_defined=True, space="pool", address=8 * i)


def test_work_on_another_memory_hears_its_thread_too():
    """What a stream is given later, nobody knows by whom, comes after that work."""
    trace = Trace(
        "heard",
        actors_of(1),
        (
            *two_memories(),
            Work(1, "w", 0, (), (Access(0, 0, 4),)),
            Sync(0, stream=1),
            Work(2, "no access", 0),
            Work(1, "w", 0, (), (Access(0, 4, 8),)),
            Work(2, "r", NOBODY, (Access(0, 0, 8),)),
        ),
    )
    assert racing_pairs(trace) == races_of(trace) == {(5, 6)}


def test_to_forget_tells_a_stream_nothing_of_its_thread(monkeypatch):
    """Whoever waits for the stream before its next work does not know what the thread knows."""
    monkeypatch.setattr("ggsched.sanitize.races.FORGET_ABOVE", (0, 0))
    a, b, c = range(HOSTS, HOSTS + 3)
    trace = Trace(
        "told",
        ACTORS,
        (
            *two_memories(),
            Work(a, "w", 0, (), (Access(0, 0, 4),)),
            Sync(0, stream=a),
            Work(c, "w", 1, (), (Access(0, 4, 6),)),
            Sync(1, stream=b),
            Work(1, "w", NOBODY, (), (Access(0, 0, 4),)),
            Work(b, "r", 0, (Access(1, 0, 4),)),
        ),
    )
    assert racing_pairs(trace) == races_of(trace) == {(2, 6)}
