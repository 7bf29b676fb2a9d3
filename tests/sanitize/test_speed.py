"""Checking takes steps that grow with the plan or trace and not with its square."""

import sys

import pytest

from ggsched.sanitize import check_plan, check_trace
from ggsched.trace.schema import Access, Actor, Alloc, Free, Record, Trace, Wait, Work
from ggsched_testing.plan_builder import PlanWriter, fake_device

N = 16
ACTORS = (Actor(0, "H", "host"), Actor(1, "A", "stream"), Actor(2, "B", "stream"))


def alternating_chain(n):
    """A chain that changes device at every node, with all the events that this needs."""
    w = PlanWriter(fake_device("gpu:0"), fake_device("gpu:1"))
    q = [w.stream(0), w.stream(1)]
    arenas = [w.arena("compute", side, 2 * N) for side in (0, 1)]
    x = w.host_input("x", N)
    here = w.value(arenas[0], 0, N, of=x)
    w.transfer(q[0], x, here)
    for i in range(n):
        side, other = i % 2, 1 - i % 2
        result = w.value(arenas[side], N, N)
        w.launch(q[side], w.node("rw", here, result))
        w.order(q[side], q[other])
        here = w.value(arenas[other], 0, N, of=result)
        w.transfer(q[other], result, here)
        w.order(q[other], q[side])
    out = w.host_output("y", N, of=here)
    w.transfer(q[n % 2], here, out)
    w.sync(q[n % 2])
    return w.plan()


def cache_written_in_rows(n):
    """A state on one device that is written row by row and copied whole after each."""
    w = PlanWriter(fake_device("gpu:0"), fake_device("gpu:1"))
    q, r = w.stream(0), w.stream(1)
    rows = 64
    kv, far = w.fixed("state", 0, "kv", rows * N), w.arena("compute", 1, rows * N)
    for i in range(n):
        row = i % rows * N
        w.launch(q, w.node("w", (kv, row, row + N)))
        w.order(q, r)
        w.transfer(r, kv, w.value(far, 0, rows * N, of=kv))
        w.order(r, q)
    return w.plan()


def many_small_values(n):
    """Values side by side in one arena, written on one stream and read on another."""
    w = PlanWriter(fake_device("gpu:0"))
    q, r = w.stream(), w.stream()
    arena, small = w.arena("compute", 0, n * N), w.arena("compute", 0, n * N)
    values = [w.value(arena, i * N, N) for i in range(n)]
    for v in values:
        w.launch(q, w.node("w", v))
    w.order(q, r)
    for i, v in enumerate(values):
        w.launch(r, w.node("rw", v, w.value(small, i * N, N)))
    w.order(r, q)
    return w.plan()


def steps(function, *arguments):
    """Return how many lines and calls of Python a function takes; time depends on the machine."""
    count = 0

    def lines(frame, event, arg):
        nonlocal count
        count += event == "line"
        return lines

    def calls(frame, event, arg):
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.gettrace(), sys.getprofile()
    sys.settrace(lines)
    sys.setprofile(calls)
    try:
        function(*arguments)
    finally:
        sys.setprofile(before[1])
        sys.settrace(before[0])
    return count


def test_steps_grow_with_the_square_where_work_does():
    def pairs(n):
        return [None for _ in range(n) for _ in range(n) if len("")]

    assert steps(pairs, 80) > 50 * steps(pairs, 10)


@pytest.mark.parametrize("make", [alternating_chain, cache_written_in_rows, many_small_values])
def test_steps_per_node_stay(make):
    """Eight times the nodes in about eight times the steps; the square would be 64 times."""
    small, large = make(100), make(800)
    assert check_plan(small).is_clean
    assert check_plan(large).is_clean
    assert steps(check_plan, large) < 12 * steps(check_plan, small)


def memory_used_again(n):
    """Blocks of an allocator: each is freed, and its addresses are used for another."""
    entries, live = [], {}
    for i in range(n):
        block = i % 8
        if block in live:
            entries.append(Free(1, live[block], 0))
        entries.append(Alloc(1, i, f"m{i}", N, address=block * N, space="pool"))
        entries.append(Work(1, "w", 0, (), (Access(i, 0, N),)))
        live[block] = i
    return Trace("allocator", ACTORS, tuple(entries))


def rows_here_and_there(n):
    """Two streams write rows of a table by turns, in order, no row twice."""
    entries = [Alloc(0, 0, "table", n * N)]
    for i in range(n):
        entries.append(
            Work(1 + i % 2, "w", 0, (), (Access(0, i * 7919 % n * N, N + i * 7919 % n * N),))
        )
        entries.append(Record(1 + i % 2, i, 0))
        entries.append(Wait(2 - i % 2, i, 0))
    return Trace("rows", ACTORS, tuple(entries))


@pytest.mark.parametrize("make", [memory_used_again, rows_here_and_there])
def test_steps_per_record_stay(make):
    small, large = make(500), make(4000)
    assert check_trace(small).is_clean
    assert check_trace(large).is_clean
    assert steps(check_trace, large) < 12 * steps(check_trace, small)
