"""The screen decides what the rules decide, record by record, whatever the size of its batches."""

from contextlib import contextmanager

import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from msgspec.structs import replace

from ggsched.sanitize import check_trace
from ggsched.sanitize.from_trace import without_events
from ggsched.sanitize.screen import Screen
from ggsched.trace import schema
from ggsched.trace.schema import NOBODY, Access, Actor, Alloc, Free, Record, Sync, Trace, Wait, Work
from tests.sanitize.test_traces_against_brute_force import actors_of, racing_pairs, traces


@contextmanager
def limits(batch, pieces=64):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("ggsched.sanitize.screen._BATCH", batch)
        patched.setattr("ggsched.sanitize.screen._MAX_PIECES", pieces)
        yield patched


# --- traces of every kind -------------------------------------------------------------------------


@st.composite
def wild(draw):
    """A trace with up to four features that others lack, or faults."""
    trace = draw(traces())
    chosen = draw(st.lists(st.sampled_from([*FEATURES]), max_size=4, unique=True))
    for name in chosen:
        trace = FEATURES[name](draw, trace)
    return trace


def with_entries(trace, entries):
    return replace(trace, entries=tuple(entries))


def change_one(kind, change):
    """Return a feature that changes a record of a kind, if there is one."""

    def feature(draw, trace):
        entries = list(trace.entries)
        places = [i for i, e in enumerate(entries) if isinstance(e, kind)]
        if places:
            k = draw(st.sampled_from(places))
            entries[k] = change(draw, trace, entries[k])
        return with_entries(trace, entries)

    return feature


def change_access(change):
    """Return a feature that changes a read or a write of one piece of work."""

    def changed(draw, trace, work):
        name = draw(st.sampled_from(["reads", "writes"]))
        accesses = list(getattr(work, name))
        if accesses:
            k = draw(st.integers(0, len(accesses) - 1))
            accesses[k] = change(draw, accesses[k])
        return replace(work, **{name: tuple(accesses)})

    return change_one(Work, changed)


def insert(draw, trace, record):
    entries = list(trace.entries)
    entries.insert(draw(st.integers(1, len(entries))), record)
    return with_entries(trace, entries)


def an_actor(draw, trace):
    return draw(st.integers(0, len(trace.actors) - 1))


def a_thread(draw, trace):
    """Draw who enqueues, or nobody."""
    return draw(st.integers(NOBODY, sum(a.kind == "host" for a in trace.actors) - 1))


def replayed(draw, trace):
    """Work and order are enqueued again, as those of a captured graph."""
    first = draw(st.integers(0, len(trace.entries) - 1))
    again = [e for e in trace.entries[first : first + 6] if not isinstance(e, Alloc | Free)]
    return with_entries(trace, [*trace.entries, *again * draw(st.integers(1, 3))])


def rows(draw, trace):
    """A piece of work touches some rows of one byte of a memory, in any order."""

    def some(draw, trace, work):
        memory = draw(st.sampled_from((*work.reads, *work.writes, Access(0, 0, 4))))
        runs = draw(st.lists(st.integers(0, 3), max_size=6))
        made = tuple(Access(memory.memory, k, k + 1) for k in runs)
        return replace(work, **{draw(st.sampled_from(["reads", "writes"])): made})

    return change_one(Work, some)(draw, trace)


def far(draw, trace):
    """Addresses, or memory beyond these, do not fit in fewer bits."""
    address = draw(st.sampled_from([-(1 << 40), *(1 << n for n in (31, 32, 53, 61, 62, 63, 70))]))
    nbytes = draw(st.sampled_from([0, 1 << 31, 1 << 62, 1 << 63]))
    entries = [
        replace(e, address=e.address + address, nbytes=nbytes or e.nbytes)
        if isinstance(e, Alloc)
        else e
        for e in trace.entries
    ]
    return with_entries(trace, entries)


def own_spaces(draw, trace):
    """Some memory has a space of its own."""
    entries = [
        replace(e, space="", address=0) if isinstance(e, Alloc) and draw(st.booleans()) else e
        for e in trace.entries
    ]
    return with_entries(trace, entries)


def copies_apart(draw, trace):
    """Streams do not keep copies and launches in order; some work is a copy."""
    orders = st.sampled_from(["stream", "barrier", "host"])
    actors = tuple(
        replace(a, copy_order=draw(orders)) if a.kind == "stream" else a for a in trace.actors
    )
    entries = [
        replace(e, is_copy=draw(st.booleans())) if isinstance(e, Work) else e for e in trace.entries
    ]
    return replace(trace, actors=actors, entries=tuple(entries))


def many_lanes(draw, trace):
    """So many streams that clocks have several chunks, or that the screen gives up."""
    count = len(trace.actors)
    more = draw(st.sampled_from([11, 12, 20, 260]))
    actors = tuple(Actor(count + i, f"B{i}", "stream", "gpu:0") for i in range(more))
    entries = [
        replace(e, actor=e.actor + more)
        if trace.actors[e.actor].kind == "stream" and draw(st.booleans())
        else e
        for e in trace.entries
        if 0 <= e.actor < count
    ]
    return replace(trace, actors=(*trace.actors, *actors), entries=tuple(entries))


def moved_to_the_end(draw, trace):
    entries = list(trace.entries)
    entries.append(entries.pop(draw(st.integers(0, len(entries) - 1))))
    return with_entries(trace, entries)


def moved_to_the_front(draw, trace):
    entries = list(trace.entries)
    entries.insert(0, entries.pop(draw(st.integers(0, len(entries) - 1))))
    return with_entries(trace, entries)


BIG = st.sampled_from([-(1 << 63), -1, 1 << 31, 1 << 62, (1 << 63) - 1, 1 << 63, 1 << 70])
KINDS = Work | Alloc | Free | Sync
FEATURES = {
    "replay": replayed,
    "rows": rows,
    "far": far,
    "own spaces": own_spaces,
    "copies apart": copies_apart,
    "many lanes": many_lanes,
    "to the end": moved_to_the_end,
    "to the front": moved_to_the_front,
    "events once": lambda draw, trace: replace(trace, events="once"),
    "unknown actor": change_one(
        KINDS, lambda draw, trace, e: replace(e, actor=draw(st.sampled_from([-1, 99])))
    ),
    "unknown thread": change_one(
        Work | Free | Sync,
        lambda draw, trace, e: replace(e, by=draw(st.sampled_from([-2, len(trace.actors) - 1]))),
    ),
    "wait of a stream": change_one(
        Sync,
        lambda draw, trace, e: replace(e, actor=an_actor(draw, trace), by=a_thread(draw, trace)),
    ),
    "wait for anyone": change_one(
        Sync, lambda draw, trace, e: replace(e, stream=draw(st.integers(-1, len(trace.actors))))
    ),
    "barrier": lambda draw, trace: insert(
        draw, trace, schema.Barrier(an_actor(draw, trace), a_thread(draw, trace))
    ),
    "capture": lambda draw, trace: insert(
        draw, trace, schema.CaptureBegin(an_actor(draw, trace), a_thread(draw, trace))
    ),
    "end of a capture": lambda draw, trace: insert(
        draw, trace, schema.CaptureEnd(an_actor(draw, trace), a_thread(draw, trace))
    ),
    "free": lambda draw, trace: insert(
        draw, trace, Free(an_actor(draw, trace), draw(st.integers(0, 2)), a_thread(draw, trace))
    ),
    "second alloc": change_one(Alloc, lambda draw, trace, e: replace(e, memory=0)),
    "undefined": change_one(Alloc, lambda draw, trace, e: replace(e, is_defined=False)),
    "size": change_one(
        Alloc, lambda draw, trace, e: replace(e, nbytes=draw(st.sampled_from([-1, 0, 1])))
    ),
    "unknown memory": change_access(lambda draw, a: a._replace(memory=a.memory + draw(BIG))),
    "no byte": change_access(lambda draw, a: a._replace(end=a.start)),
    "whole": change_access(lambda draw, a: a._replace(start=0, end=4)),
    "outside": change_access(lambda draw, a: a._replace(end=a.end + draw(st.integers(1, 20)))),
    "before": change_access(lambda draw, a: a._replace(start=-1)),
    "huge": change_access(lambda draw, a: Access(a.memory, draw(BIG), draw(BIG))),
    "tag": change_access(lambda draw, a: a._replace(tag=draw(st.sampled_from("xy")))),
}


def followed(trace, compares_each):
    """Return a screen that has followed a trace, and compares after each record if it shall."""
    screen = Screen(without_events(trace))
    for added in enumerate(trace.entries):
        screen.add(*added)
        if compares_each:
            screen._compare()
    return screen


# --- against the rules ----------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [0, 3, 1 << 12])
@given(trace=wild(), pieces=st.sampled_from([1, 2, 64]))
def test_report_is_that_without_a_screen(batch, trace, pieces):
    with limits(batch, pieces) as patched:
        screened = check_trace(trace)
        patched.setattr(Screen, "_names_what_exists", lambda *_: False)
        assert screened == check_trace(trace)
    event("clean" if screened.is_clean else screened.findings[0].kind)


@pytest.mark.parametrize("pieces", [0, 64])
@pytest.mark.parametrize("batch", [0, 3, 1 << 12])
@given(trace=traces(), compares_each=st.booleans())
def test_screen_names_a_space_where_something_races_and_no_other(
    pieces, batch, trace, compares_each
):
    """Where accesses are not cut into too many pieces: such spaces are named unseen."""
    with limits(batch, pieces):
        screen = followed(trace, compares_each)
        spaces = screen.racy()
    assert screen.is_known
    streams = {a.id for a in trace.actors if a.kind == "stream"}
    assert spaces is not None or NOBODY in {
        e.by for e in trace.entries if e.actor in streams and not isinstance(e, Alloc)
    }
    racing = bool(racing_pairs(trace))
    assert spaces is None or bool(spaces) == racing or (not pieces and not racing)


ALL = (Access(0, 0, 4),)
KEPT = {
    "the reads of each lane": (
        *(Work(1, "r", 0, ALL), Work(2, "r", 0, ALL), Record(2, 0, 0)),
        *(Wait(3, 0, 0), Work(3, "w", 0, (), ALL)),
    ),
    "the last read of a lane": (
        *(Work(1, "r", 0, ALL), Record(1, 0, 0), Work(1, "r", 0, ALL)),
        *(Wait(3, 0, 0), Work(3, "w", 0, (), ALL)),
    ),
    "a write beside a read of its lane": (
        *(Work(1, "w", 0, (), ALL), Work(1, "r", 0, ALL), Work(2, "r", 0, ALL)),
    ),
    "reads after a write": (
        *(Work(1, "w", 0, (), ALL), Record(1, 0, 0), Wait(2, 0, 0), Work(2, "r", 0, ALL)),
        *(Wait(3, 0, 0), Work(3, "w", 0, (), ALL)),
    ),
}


@pytest.mark.parametrize("compares_each", [False, True])
@pytest.mark.parametrize("records", KEPT.values(), ids=KEPT)
def test_what_a_later_batch_needs_is_kept(records, compares_each):
    memory = Alloc(0, 0, "m0", 4, is_defined=True, space="pool")
    trace = Trace("kept", actors_of(1), (memory, *records), events="latest")
    assert racing_pairs(trace)
    assert followed(trace, compares_each).racy() == {0}


BEGIN = (Alloc(0, 0, "m0", 4),)


def traced(*records, first=BEGIN, streams=4):
    actors = (Actor(0, "H", "host"), *(Actor(i + 1, f"S{i}", "stream") for i in range(streams)))
    return Trace("hand", actors, (*first, *records), events="latest")


def work(access, **more):
    return Work(1, "w", 0, (), (access,), **more)


UNKNOWN = {
    "one byte too many": traced(work(Access(0, 0, 5))),
    "one byte before": traced(work(Access(0, -1, 4))),
    "an end before the start": traced(work(Access(0, 3, 2))),
    "numbers of seventy bits": traced(work(Access(0, 1 << 70, 1 << 71))),
    "another memory": traced(work(Access(1, 0, 4))),
    "memory before it begins": traced(work(ALL[0]), Alloc(0, 0, "m0", 4), first=()),
    "memory after its end": traced(Free(1, 0, 0), work(ALL[0])),
    "a second end": traced(Free(1, 0, 0), Free(1, 0, 0)),
    "a second begin": traced(Alloc(0, 0, "m0", 4)),
    "less than no bytes": traced(first=(Alloc(0, 0, "m0", -1),)),
    "another actor": traced(Work(5, "w", 0)),
    "another thread": traced(Work(1, "w", 1)),
    "a wait for another actor": traced(Sync(0, stream=5)),
    "a capture by a thread": traced(schema.CaptureBegin(0)),
    "an address of 62 bits": traced(
        work(ALL[0]), first=(Alloc(0, 0, "m0", 4, space="p", address=1 << 62),)
    ),
    "lanes that are too many": traced(streams=256),
}


@pytest.mark.parametrize("compares_each", [False, True])
@pytest.mark.parametrize("trace", UNKNOWN.values(), ids=UNKNOWN)
def test_what_the_screen_does_not_know_is_left_to_the_rules(trace, compares_each):
    screen = followed(trace, compares_each)
    assert screen.racy() is None
    assert not screen.is_known


def test_a_record_by_nobody_after_accesses_were_dropped_leaves_all_spaces_to_the_rules():
    trace = traced(work(ALL[0]), Sync(0, stream=1), Work(2, "r", reads=ALL))
    assert followed(trace, True).racy() is None
    assert followed(trace, False).racy() == {0}


def test_lanes_beyond_the_first_of_a_clock_race():
    trace = traced(Work(18, "w", 0, (), ALL), Work(2, "r", 0, ALL), streams=20)
    assert followed(trace, False).racy() == {0}


@pytest.mark.parametrize(
    ("access", "is_plain"),
    [
        (Access(0, 0, 4), True),
        (Access(0, 0, 3), False),
        (Access(0, 1, 4), False),
        (Access(0, 0, 4, "t"), False),
    ],
)
def test_contents_are_looked_at_unless_all_is_written_first(access, is_plain):
    assert followed(traced(work(access)), True).is_plain is is_plain
    assert not followed(traced(Work(1, "r", 0, (access,))), True).is_plain


def test_a_second_thread_knows_nothing_of_what_the_first_has_waited_for():
    waited = Work(2, "w", 0, (), ALL), Sync(0, stream=2), Work(2, "r", 0, (Access(0, 0, 1),))
    records = (*waited, Work(1, "r", reads=ALL))
    trace = Trace("two", actors_of(2), (*BEGIN, *records), events="latest")
    assert followed(trace, True).racy() == {0}
