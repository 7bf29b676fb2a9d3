"""The screen decides what the rules decide, record by record, whatever the size of its batches."""

import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from msgspec.structs import replace

from ggsched.sanitize import check_trace
from ggsched.sanitize.from_trace import without_events
from ggsched.sanitize.screen import Screen
from ggsched.trace.schema import Access, Actor, Alloc, Free, Sync, Trace, Work
from tests.sanitize.test_traces_against_brute_force import HOSTS, racing_pairs, traces

FAULTS = ("none",) * 4 + ("actor", "by", "memory", "outside", "huge", "tag", "undefined", "order")


def with_one_host(trace):
    """Return a trace with one thread of the host, which enqueues everything."""
    entries = []
    for entry in trace.entries:
        entry = replace(entry, actor=max(entry.actor - HOSTS + 1, 0))
        if isinstance(entry, Sync) and entry.stream is not None:
            entry = replace(entry, stream=entry.stream - HOSTS + 1)
        entries.append(entry if isinstance(entry, Alloc | Sync) else replace(entry, by=0))
    actors = (trace.actors[0], *trace.actors[HOSTS:])
    actors = tuple(Actor(i, a.name, a.kind, a.device) for i, a in enumerate(actors))
    return Trace(trace.name, actors, tuple(entries), events="latest")


@st.composite
def spoiled(draw):
    """A trace of which a record may name what is not there, or say more than others do."""
    trace = draw(traces())
    if draw(st.booleans()):
        trace = with_one_host(trace)
    entries, fault = list(trace.entries), draw(st.sampled_from(FAULTS))
    k = draw(st.integers(0, len(entries) - 1))
    match entries[k], fault:
        case entry, "actor":
            entries[k] = replace(entry, actor=draw(st.sampled_from([-1, 99])))
        case (Work() | Free()) as entry, "by":
            entries[k] = replace(entry, by=draw(st.sampled_from([-2, len(trace.actors) - 1])))
        case Work(writes=((memory, start, end, _), *_)) as entry, _:
            written = {
                "memory": Access(memory + 100, start, end),
                "outside": Access(memory, start, end + 100),
                "huge": Access(memory, 1 << 70, 1 << 71),
                "tag": Access(memory, start, end, "y"),
            }.get(fault, entry.writes[0])
            entries[k] = replace(entry, writes=(written,))
        case Alloc() as entry, _:
            entries[k] = replace(entry, is_defined=fault != "undefined")
    if fault == "order":
        entries.append(entries.pop(k))
    return replace(trace, entries=tuple(entries))


@pytest.mark.parametrize("batch", [0, 3, 1 << 12])
@given(trace=spoiled())
def test_report_is_that_without_a_screen(batch, trace):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("ggsched.sanitize.screen._BATCH", batch)
        screened = check_trace(trace)
        patched.setattr(Screen, "_names_what_exists", lambda *_: False)
        assert screened == check_trace(trace)
    event("clean" if screened.is_clean else screened.findings[0].kind)


@pytest.mark.parametrize("pieces", [0, 64])
@pytest.mark.parametrize("batch", [0, 3, 1 << 12])
@given(trace=traces().map(with_one_host) | traces())
def test_screen_names_a_space_where_something_races_and_no_other(pieces, batch, trace):
    """Where accesses are not cut into too many pieces: such spaces are named unseen."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("ggsched.sanitize.screen._BATCH", batch)
        patched.setattr("ggsched.sanitize.screen._MAX_PIECES", pieces)
        screen = Screen(without_events(trace))
        for added in enumerate(trace.entries):
            screen.add(*added)
    assert screen.is_known
    racing = bool(racing_pairs(trace))
    assert bool(screen.racy()) == racing or (not pieces and not racing)
