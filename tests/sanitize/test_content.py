"""What is found in the bytes themselves: undefined, given away, too old, out of order."""

import msgspec

from ggsched.plan.splits import HOST
from ggsched.sanitize import check_plan
from ggsched_testing.plan_builder import PlanWriter, fake_device

N = 16


def writer():
    w = PlanWriter(fake_device("gpu:0"), fake_device("gpu:1"))
    return w, w.stream(0), w.stream(1)


def kinds(plan):
    return [f.kind for f in check_plan(plan).findings]


def only(plan):
    findings = check_plan(plan).findings
    assert len(findings) == 1, check_plan(plan).to_text()
    return findings[0]


def test_read_of_unwritten_memory():
    w, q, _ = writer()
    arena = w.arena("compute", 0, 4 * N)
    a, y = w.value(arena, 0, N), w.value(arena, N, N)
    w.launch(q, w.node("rw", a, y))
    f = only(w.plan())
    assert (f.kind, f.command, f.arena, f.start, f.end) == ("undefined", 0, arena, 0, N)


def test_what_an_earlier_run_left_is_undefined():
    w, q, _ = writer()
    arena = w.arena("compute", 0, 4 * N)
    a, y = w.value(arena, 0, N), w.value(arena, N, N)
    w.launch(q, w.node("rw", a, y), w.node("w", a))
    assert only(w.plan()).kind == "undefined"


def test_partial_write_defines_nothing():
    w, q, _ = writer()
    arena = w.arena("compute", 0, 4 * N)
    a, y = w.value(arena, 0, N), w.value(arena, N, N)
    w.launch(q, w.node("p", a), w.node("rw", a, y))
    assert only(w.plan()).kind == "undefined"


def test_output_that_nothing_fills():
    w, _, _ = writer()
    w.host_output("y", N)
    assert only(w.plan()).what.startswith("the host reads v0")


def test_weights_and_states_are_defined():
    w, q, _ = writer()
    arena = w.arena("compute", 0, 4 * N)
    weight, state = w.fixed("weight", 0, "w", N), w.fixed("state", 0, "kv", N)
    y = w.value(arena, 0, N)
    w.launch(q, w.node("rrw", weight, state, y), w.node("p", state), w.node("rw", y, state))
    assert kinds(w.plan()) == []


def test_write_of_a_weight():
    w, q, _ = writer()
    weight = w.fixed("weight", 0, "w", N)
    w.launch(q, w.node("w", weight))
    assert only(w.plan()).kind == "weight"


def test_state_given_to_another_value():
    w, q, _ = writer()
    state = w.fixed("state", 0, "kv", N)
    arena = w._regions[state].arena
    t = w.value(arena, 0, N, of=state)
    w._values[t] = msgspec.structs.replace(w._values[t], storage=9, bound="")
    w.launch(q, w.node("w", t))
    found = check_plan(w.plan()).findings
    assert [(f.kind, f.relation) for f in found] == [("reuse", ""), ("relation", "arena_kinds")]


def test_r24_tail_of_a_block_given_away():
    w, q, _ = writer()
    arena = w.arena("compute", 0, 4 * N)
    n, x, y = w.value(arena, 0, 10), w.value(arena, 8, 8), w.value(arena, 32, N)
    w.launch(q, w.node("w", n), w.node("w", x), w.node("rw", n, y))
    f = only(w.plan())
    assert (f.kind, f.start, f.end) == ("reuse", 8, 10)
    assert "holds v1 by now" in f.what


def test_r25_result_over_an_operand_that_is_still_read():
    w, q, _ = writer()
    arena = w.arena("compute", 0, 4 * N)
    g, p = w.value(arena, 0, N), w.value(arena, N, N)
    over = w.value(arena, N, N, over=p)
    last = w.value(arena, 0, N, over=g)
    w.launch(q, w.node("w", g), w.node("w", p), w.node("rw", g, over), w.node("rrw", g, p, last))
    assert "which v2 took over before" in only(w.plan()).what


def test_partial_write_into_bytes_given_away():
    w, q, _ = writer()
    arena = w.arena("compute", 0, 4 * N)
    a, b = w.value(arena, 0, N), w.value(arena, 0, N)
    w.launch(q, w.node("w", a), w.node("w", b), w.node("p", a))
    assert "writes into v0" in only(w.plan()).what


def test_taking_over_a_dying_operand_is_fine():
    w, q, _ = writer()
    arena = w.arena("compute", 0, 4 * N)
    a = w.value(arena, 0, N)
    b = w.value(arena, 0, N, over=a)
    y = w.value(arena, N, N)
    w.launch(q, w.node("w", a), w.node("rw", a, b), w.node("rw", b, y))
    assert kinds(w.plan()) == []


def two_copies(refresh):
    """A storage is copied, written again, and read from the copy."""
    w, q, r = writer()
    home = w.value(w.arena("compute", 0, N), 0, N)
    there = w.arena("compute", 1, 4 * N)
    copy, y = w.value(there, 0, N, of=home), w.value(there, N, N)
    w.launch(q, w.node("w", home))
    w.order(q, r)
    w.transfer(r, home, copy)
    w.order(r, q)
    w.launch(q, w.node("p", (home, 8, 12)))
    if refresh:
        w.order(q, r)
        w.transfer(r, home, copy)
    w.launch(r, w.node("rw", (copy, 4, 12), (y, 0, 8)))
    w.sync(q)
    w.sync(r)
    return w.plan()


def test_stale_replica():
    assert only(two_copies(refresh=False)).kind == "stale"
    assert kinds(two_copies(refresh=True)) == []


def test_r14_write_to_a_copy_is_lost():
    w, q, r = writer()
    home = w.fixed("state", 0, "kv", N)
    there = w.arena("compute", 1, 4 * N)
    copy, y = w.value(there, 0, N, of=home), w.value(w.arena("compute", 0, N), 0, N)
    w.transfer(r, home, copy)
    w.launch(r, w.node("p", copy))
    w.launch(q, w.node("rw", home, y))
    assert only(w.plan()).kind == "stale"


def test_staleness_passes_through_staging():
    w, q, r = writer()
    home = w.value(w.arena("compute", 0, N), 0, N)
    staging = w.value(w.arena("staging", HOST, N), 0, N, of=home)
    there = w.arena("compute", 1, 4 * N)
    copy, y = w.value(there, 0, N, of=home), w.value(there, N, N)
    w.launch(q, w.node("w", home))
    w.transfer(q, home, staging)
    w.launch(q, w.node("p", home))
    w.sync(q)
    w.transfer(r, staging, copy)
    w.launch(r, w.node("rw", copy, y))
    w.sync(r)
    assert set(kinds(w.plan())) == {"stale"}


# --- program order ------------------------------------------------------------------------------


def test_launches_against_the_program():
    w, q, _ = writer()
    arena = w.arena("compute", 0, 4 * N)
    state, y = w.fixed("state", 0, "kv", N), w.value(arena, N, N)
    w.launch(q, w.node("rw", state, y))
    w.launch(q, w.node("p", state))
    plan = w.plan()
    assert kinds(plan) == []
    first, second = plan.commands
    swapped = (msgspec.structs.replace(second, id=0), msgspec.structs.replace(first, id=1))
    f = only(msgspec.structs.replace(plan, commands=swapped))
    assert (f.kind, f.command) == ("disorder", 1)


def test_launches_that_share_nothing_may_be_listed_in_any_order():
    w, q, r = writer()
    a, b = w.value(w.arena("compute", 0, N), 0, N), w.value(w.arena("compute", 1, N), 0, N)
    w.launch(q, w.node("w", a))
    w.launch(r, w.node("w", b))
    plan = w.plan()
    first, second = plan.commands
    swapped = (msgspec.structs.replace(second, id=0), msgspec.structs.replace(first, id=1))
    assert kinds(msgspec.structs.replace(plan, commands=swapped)) == []


def test_steps_against_the_program():
    w, q, _ = writer()
    state = w.fixed("state", 0, "kv", N)
    y = w.value(w.arena("compute", 0, N), 0, N)
    w.launch(q, w.node("rw", state, y), w.node("p", state))
    plan = w.plan()
    steps = tuple(reversed(plan.commands[0].steps))
    commands = (msgspec.structs.replace(plan.commands[0], steps=steps),)
    assert only(msgspec.structs.replace(plan, commands=commands)).kind == "disorder"
