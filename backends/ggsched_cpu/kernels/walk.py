"""The native loop that runs a table of kernels, alone or as a member of a team.

All members walk the table together. A member first takes the part of its own number, then parts
from a shared counter; after each entry they meet at a barrier, unless the entry says that only
member 0 has anything to do in it and in the next.

At a barrier each member writes how many it has reached into a line of its own and reads the lines
of all others, so that a line crosses between two processors once; with one counter for all it does
so once for each member, one after another, and once more to let them go. It has a line for odd
barriers and one for even ones: all others are done with the next one by then, so the member makes
it its own while it computes. Numbers grow from job to job.

Between two barriers the counters of parts are those of their parity, and member 0 resets the
others: nobody has used these since the barrier before, and nobody does until the next.

A member that has nothing to do spins for a while, then sleeps on a semaphore of libc.
"""

from typing import Final

from ggsched_cpu.kernels.emit import KERNEL, SCRATCH_NBYTES, Builder, Value, i64
from ggsched_cpu.kernels.target import Target

ENTRY_SLOTS: Final = 4
"""Of an entry of a table, 64 bits each: kernel, arguments, parts, flags."""

SERIAL: Final = 1
"""Flag: member 0 does all parts."""

NO_BARRIER: Final = 2
"""Flag: this entry and the next are the business of member 0 alone, or either may run first."""

COUNTER_SHIFT: Final = 8
"""From this bit on flags are the number of the counter of parts: entries without a barrier between
them have different ones."""

COUNTERS: Final = 4
"""How many counters of parts there are between two barriers."""

# Slots of the control block, 64 bits each; what different members write is in different lines.
JOB, STOP, TABLE, COUNT, THREADS, IDLE_NS, BARRIER_SPINS = 0, 8, 9, 10, 11, 12, 13
SEM_WAIT, SEM_POST, YIELD, CLOCK, TIMES, POSITION = 16, 17, 18, 19, 20, 21
NEXT, FAULT_AT, FAULT = 24, 40, 41
MEMBERS: Final = 48
"""From here on lines for each member: whether it sleeps, then its semaphore; barriers reached; the
time, as it looked last."""
LINE: Final = 8
NEXT_COUNTERS: Final = tuple(NEXT + LINE * parity + i for parity in (0, 1) for i in range(COUNTERS))
_OF_MEMBER: Final = 4 * LINE
_REACHED: Final = 8 * LINE
_LOOKED: Final = 3 * 8 * LINE
CLOCK_MONOTONIC: Final = 1

EAGER_LOOKS: Final = 200
"""How often a member at a barrier looks without a pause between: some microseconds."""

_YIELD: Final = 1
"""Number of the hint."""

MEMBER: Final = (("control", "ptr"), ("id", "i64"), ("job", "i64"), ("scratch", "ptr"))
RUN: Final = (("control", "ptr"), ("scratch", "ptr"))


def control_slots(threads: int) -> int:
    """Return the length of a control block."""
    return MEMBERS + _OF_MEMBER * threads


def _slot(b: Builder, number: int) -> Value:
    return b.offset(b.parameter("control"), 8 * number)


def _read(b: Builder, number: int, order: str = "acquire") -> Value:
    return b.value("i64", f"load atomic i64, {_slot(b, number)} {order}, align 8")


def _write(b: Builder, number: int, value: Value, order: str = "release") -> None:
    b.line(f"store atomic {value}, {_slot(b, number)} {order}, align 8")


def _function(b: Builder, number: int) -> Value:
    return b.load("ptr", _slot(b, number), 8)


def _pause(b: Builder) -> None:
    if b.target.is_x86:
        b.declared["llvm.x86.sse2.pause"] = "declare void @llvm.x86.sse2.pause()"
        b.line("call void @llvm.x86.sse2.pause()")
    else:
        b.declared["llvm.aarch64.hint"] = "declare void @llvm.aarch64.hint(i32)"
        b.line(f"call void @llvm.aarch64.hint(i32 {_YIELD})")


def _walk(b: Builder, member: Value, threads: Value, scratch: Value) -> None:
    table, count = b.load("ptr", _slot(b, TABLE), 8), b.load("i64", _slot(b, COUNT), 8)
    times = b.load("ptr", _slot(b, TIMES), 8)
    is_first = b.compare("eq", member, 0)
    is_timed = b.binary("and", b.compare("ne", times, Value("null", "ptr")), is_first)
    is_alone = b.compare("eq", threads, 1)
    even, odd = (b.load("i64", _reached(b, member, i64(parity)), 8) for parity in (0, 1))
    reached = b.var(b.select(b.compare("sgt", even, odd), even, odd))
    with b.loop(0, count) as number:
        entry = b.offset(table, b.mul(number, 8 * ENTRY_SLOTS))
        parts = b.load("i64", b.offset(entry, 16), 8)
        flags = b.load("i64", b.offset(entry, 24), 8)
        fault = _read(b, FAULT_AT, "monotonic")
        is_serial = b.compare("ne", b.binary("and", flags, SERIAL), 0)
        sharing = b.select(is_serial, i64(1), threads)
        most = b.umin(sharing, parts)
        works = b.binary("and", b.compare("eq", fault, 0), b.compare("ult", member, most))
        with b.when(is_first):
            _write(b, POSITION, number, "monotonic")
        with b.when(works):
            own = b.mul(b.binary("lshr", flags, COUNTER_SHIFT), 8)
            counter = b.offset(_counters(b, b.get(reached)), own)
            _parts(b, number, entry, parts, member, sharing, scratch, counter)
        has_none = b.compare("ne", b.binary("and", flags, NO_BARRIER), 0)
        is_quiet = b.binary("or", is_alone, has_none)
        with b.when(b.binary("xor", is_quiet, Value("true", "i1"))):
            b.set(reached, b.add(b.get(reached), 1))
            _barrier(b, member, threads, b.get(reached))
        with b.when(is_timed):
            _note(b, times, b.add(number, 1))


def _parts(
    b: Builder,
    number: Value,
    entry: Value,
    parts: Value,
    member: Value,
    threads: Value,
    scratch: Value,
    counter: Value,
) -> None:
    """Take parts until there are none."""
    kernel = b.load("ptr", entry, 8)
    args = b.load("ptr", b.offset(entry, 8), 8)
    mine = b.var(member)
    again, more, shared, single, end = (
        b.fresh(n) for n in ("again", "more", "shared", "single", "end")
    )
    b.label(again)
    result = b.call(KERNEL.split(" ")[0], kernel, args, b.get(mine), parts, scratch)
    with b.when(b.compare("ne", result, 0)):
        first = b.value(
            "{ i64, i1 }",
            f"cmpxchg {_slot(b, FAULT_AT)}, i64 0, {b.add(number, 1)} monotonic monotonic",
        )
        with b.when(b.value("i1", f"extractvalue {first}, 1")):
            b.store(result, _slot(b, FAULT), 8)
    b.line(f"br {b.compare('ugt', parts, threads)}, label %{more}, label %{end}")
    b.begin(more)
    b.line(f"br {b.compare('eq', threads, 1)}, label %{single}, label %{shared}")
    b.begin(single)
    b.set(mine, b.add(b.get(mine), 1))
    one = b.compare("ult", b.get(mine), parts)
    b.line(f"br {one}, label %{again}, label %{end}")
    b.begin(shared)
    taken = b.value("i64", f"atomicrmw add {counter}, i64 1 monotonic")
    b.set(mine, taken)
    b.line(f"br {b.compare('ult', taken, parts)}, label %{again}, label %{end}")
    b.begin(end)


def _counters(b: Builder, reached: Value) -> Value:
    """Return where parts are counted behind some number of barriers."""
    return b.offset(_slot(b, NEXT), b.mul(b.binary("and", reached, 1), 8 * LINE))


def _barrier(b: Builder, member: Value, threads: Value, now: Value) -> None:
    """Wait until all members have reached barrier ``now``."""
    with b.when(b.compare("eq", member, 0)):
        for i in range(COUNTERS):
            counter = b.offset(_counters(b, now), 8 * i)
            b.line(f"store atomic {threads}, {counter} monotonic, align 8")
    b.line(f"store atomic {now}, {_reached(b, member, now)} release, align 8")
    spins = b.var(i64(0))
    b.set(spins, i64(0))
    with b.loop(0, threads) as other:
        theirs = _reached(b, other, now)
        wait, spin, rest, tired, end = (
            b.fresh(n) for n in ("wait", "spin", "rest", "tired", "end")
        )
        b.label(wait)
        there = b.value("i64", f"load atomic i64, {theirs} acquire, align 8")
        b.line(f"br {b.compare('sge', there, now)}, label %{end}, label %{spin}")
        b.begin(spin)
        b.set(spins, b.add(b.get(spins), 1))
        # A pause takes as long as a line that crosses between processors: not at first.
        is_early = b.compare("ult", b.get(spins), EAGER_LOOKS)
        b.line(f"br {is_early}, label %{wait}, label %{rest}")
        b.begin(rest)
        _pause(b)
        is_tired = b.compare("ugt", b.get(spins), b.load("i64", _slot(b, BARRIER_SPINS), 8))
        b.line(f"br {is_tired}, label %{tired}, label %{wait}")
        b.begin(tired)
        # The member that is waited for may have no processor: let it have this one.
        b.call("i32", _function(b, YIELD))
        b.line(f"br label %{wait}")
        b.begin(end)
    b.prefetch(_reached(b, member, b.add(now, 1)), to_write=True)


def _reached(b: Builder, member: Value, number: Value) -> Value:
    """Return where a member says that it has reached a barrier of this number."""
    odd = b.mul(b.binary("and", number, 1), 8 * LINE)
    return b.offset(b.offset(_line(b, member), _REACHED), odd)


def _note(b: Builder, times: Value, number: Value) -> None:
    at = b.offset(times, b.mul(number, 16))
    b.call("i32", _function(b, CLOCK), Value(str(CLOCK_MONOTONIC), "i32"), at)


def run_alone(name: str, target: Target) -> Builder:
    """``void (control, scratch)``: the caller runs the table of the control block by itself."""
    b = Builder(name, target, RUN, "void")
    _begin_times(b)
    _walk(b, i64(0), i64(1), b.parameter("scratch"))
    return b


def _begin_times(b: Builder) -> None:
    times = b.load("ptr", _slot(b, TIMES), 8)
    with b.when(b.compare("ne", times, Value("null", "ptr"))):
        _note(b, times, i64(0))


def lead(name: str, target: Target) -> Builder:
    """``void (control, scratch)``: wake the members and run the table with them, as member 0."""
    b = Builder(name, target, RUN, "void")
    _begin_times(b)
    _start_job(b)
    _walk(b, i64(0), b.load("i64", _slot(b, THREADS), 8), b.parameter("scratch"))
    return b


def stop(name: str, target: Target) -> Builder:
    """``void (control, scratch)``: let the members end."""
    b = Builder(name, target, RUN, "void")
    _write(b, STOP, i64(1))
    _start_job(b)
    return b


def _start_job(b: Builder) -> None:
    job = _read(b, JOB, "monotonic")
    _write(b, JOB, b.add(job, 1), "seq_cst")
    with b.loop(1, b.load("i64", _slot(b, THREADS), 8)) as member:
        line = _line(b, member)
        slept = b.value("i64", f"atomicrmw xchg {line}, i64 0 seq_cst")
        with b.when(b.compare("ne", slept, 0)):
            b.call("i32", _function(b, SEM_POST), b.offset(line, 8))


def _idle_end(b: Builder, line: Value) -> Value:
    """Return when a member that has nothing to do from now on sleeps."""
    return b.add(_nanoseconds(b, line), b.load("i64", _slot(b, IDLE_NS), 8))


def _nanoseconds(b: Builder, line: Value) -> Value:
    """Return the time."""
    at = b.offset(line, _LOOKED)
    b.call("i32", _function(b, CLOCK), Value(str(CLOCK_MONOTONIC), "i32"), at)
    seconds = b.mul(b.load("i64", at, 8), 1_000_000_000)
    return b.add(seconds, b.load("i64", b.offset(at, 8), 8))


def _line(b: Builder, member: Value) -> Value:
    return b.offset(_slot(b, MEMBERS), b.mul(member, 8 * _OF_MEMBER))


def member(name: str, target: Target) -> Builder:
    """``void (control, id, job, scratch)``: take part in every job after ``job``, until the end."""
    b = Builder(name, target, MEMBER, "void")
    seen = b.var(b.parameter("job"))
    line = _line(b, b.parameter("id"))
    until = b.var(_idle_end(b, line))
    idle, spin, sleep, doze, awake, work, quit_ = (
        b.fresh(n) for n in ("idle", "spin", "sleep", "doze", "awake", "work", "quit")
    )
    b.label(idle)
    now = _read(b, JOB)
    b.line(f"br {b.compare('ne', now, b.get(seen))}, label %{work}, label %{spin}")
    b.begin(spin)
    _pause(b)
    is_tired = b.compare("sgt", _nanoseconds(b, line), b.get(until))
    b.line(f"br {is_tired}, label %{sleep}, label %{idle}")
    b.begin(sleep)
    # Either the leader sees that this member sleeps, or this member sees the job.
    b.line(f"store atomic i64 1, {line} seq_cst, align 8")
    late = b.compare("eq", _read(b, JOB, "seq_cst"), b.get(seen))
    b.line(f"br {late}, label %{doze}, label %{awake}")
    b.begin(awake)
    slept = b.value("i64", f"atomicrmw xchg {line}, i64 0 seq_cst")
    # Where the leader has seen it, there is a post to be taken.
    b.line(f"br {b.compare('ne', slept, 0)}, label %{idle}, label %{doze}")
    b.begin(doze)
    failed = b.call("i32", _function(b, SEM_WAIT), b.offset(line, 8))
    b.line(f"br {b.compare('ne', failed, 0)}, label %{doze}, label %{idle}")
    b.begin(work)
    b.set(seen, b.add(b.get(seen), 1))
    with b.when(b.compare("ne", _read(b, STOP), 0)):
        b.line(f"br label %{quit_}")
        b.begin(b.fresh("after"))
    threads = b.load("i64", _slot(b, THREADS), 8)
    _walk(b, b.parameter("id"), threads, b.parameter("scratch"))
    b.set(until, _idle_end(b, line))
    b.line(f"br label %{idle}")
    b.begin(quit_)
    return b


__all__ = ["SCRATCH_NBYTES", "control_slots", "lead", "member", "run_alone", "stop"]
