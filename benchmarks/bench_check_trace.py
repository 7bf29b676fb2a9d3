"""How fast large traces are checked, as programs of others leave them, and in how much memory.

Ratios of two sizes show whether the time grows with the number of records. A trace in lines is
checked while it is read, without a copy of its records.
"""

import tracemalloc
from collections.abc import Callable, Iterator
from itertools import count, islice
from random import Random

from benchmarks.measure import interleaved, ratio, spread
from benchmarks.table import Row
from ggsched.sanitize import check_trace
from ggsched.trace.export import trace_to_lines
from ggsched.trace.schema import Access, Actor, Alloc, Entry, Free, Record, Sync, Trace, Wait, Work
from ggsched_race.streamed import follow_lines

RECORDS = 200_000
STREAMS = range(1, 5)
ACTORS = (Actor(0, "host", "host"), *(Actor(i, f"s{i}", "stream", "gpu:0") for i in STREAMS))
ROUNDS = 2


def run() -> list[Row]:
    """Measure."""
    rows = []
    for records in (scattered_rows, blocks_used_again, steps_of_a_pipeline, lists_of_tensors):
        name = records.__name__.replace("_", " ")
        large, small = (_trace(records, n) for n in (RECORDS, RECORDS // 8))
        sides = {"large": lambda t=large: _check(t), "small": lambda t=small: _check(t)}
        took = interleaved(sides, ROUNDS)
        what = f"{name}: {RECORDS} records"
        rows.append(Row("check_trace", what, *spread(took["large"]), unit="s", bound="<= 5"))
        eight = [8 * seconds for seconds in took["small"]]
        what = f"{name}: time of a record, of an eighth of them"
        rows.append(Row("check_trace", what, *ratio(took["large"], eight), bound="<= 1.3"))
    lines = trace_to_lines(_trace(lists_of_tensors, RECORDS))
    took = interleaved({"lines": lambda: follow_lines(lines, "lists")}, ROUNDS)["lines"]
    what = f"lists of tensors: {RECORDS} records in lines"
    rows.append(Row("check_trace", what, *spread(took), unit="s", bound="<= 5"))
    tracemalloc.start()
    follow_lines(lines[: 1 + lines.index(b"\n", len(lines) // 8)], "lists")
    mib = tracemalloc.get_traced_memory()[1] / (1 << 20)
    tracemalloc.stop()
    what = f"lists of tensors: peak of {RECORDS // 8} records in lines"
    rows.append(Row("check_trace", what, mib, mib, mib, unit="MiB", bound="<= 300"))
    return rows


def _trace(records: Callable[[Random], Iterator[Entry]], count: int) -> Trace:
    entries = tuple(islice(records(Random(0)), count))
    return Trace(records.__name__, ACTORS, entries, events="latest")


def _check(trace: Trace) -> None:
    assert check_trace(trace).is_clean


def scattered_rows(random: Random) -> Iterator[Entry]:
    """Yield work on random rows of one table, each behind the one before, on any stream."""
    rows, row = 1 << 18, 64
    yield Alloc(0, 0, "table", rows * row, is_defined=True)
    event = 0
    while True:
        at = [random.randrange(rows) * row for _ in range(3)]
        a, b, c = (Access(0, start, start + row) for start in at)
        stream = random.choice(STREAMS)
        yield Work(stream, "update", 0, (a, b), (c,))
        yield Record(stream, event, 0)
        yield from (Wait(other, event, 0) for other in STREAMS if other != stream)
        event += 1


def blocks_used_again(random: Random) -> Iterator[Entry]:
    """Yield tensors of a caching allocator; each stream has blocks of its own."""
    size, blocks = 4096, 50
    live: dict[int, int] = {}
    for memory in count(0):
        block = random.randrange(blocks)
        stream = STREAMS[block % len(STREAMS)]
        if block in live:
            yield Free(stream, live[block], 0)
        yield Alloc(stream, memory, f"t{memory}", size, address=block * size, space="segment")
        yield Work(stream, "make", 0, (), (Access(memory, 0, size),))
        yield Work(stream, "use", 0, (Access(memory, 0, size),))
        live[block] = memory


def steps_of_a_pipeline(random: Random) -> Iterator[Entry]:
    """Yield launches that read whole buffers and write parts of others, stage by stage."""
    buffers, size, part = range(64), 1 << 20, 1 << 16
    yield from (Alloc(0, i, f"b{i}", size, is_defined=True) for i in buffers)
    step = event = 0
    while True:
        for stream in STREAMS:
            if event:
                yield Wait(stream, event - 1, 0)
            for _ in range(8):
                a, b, c = random.choices(buffers, k=3)
                start = random.randrange(size // part) * part
                reads = Access(a, 0, size), Access(b, start, start + part)
                yield Work(stream, "launch", 0, reads, (Access(c, start, start + part),))
            yield Record(stream, event, 0)
            event += 1
        step += 1
        if step % 50 == 0:
            yield Sync(0)


def lists_of_tensors(random: Random) -> Iterator[Entry]:
    """Yield launches that read eight tensors and write four, as those of an optimizer do."""
    tensors, size = range(300), 4096
    yield from (Alloc(0, i, f"t{i}", size, is_defined=True) for i in tensors)
    for turn in count(0):
        stream = STREAMS[turn % len(STREAMS)]
        if turn:
            yield Wait(stream, 0, 0)
        for _ in range(30):
            used = [Access(i, 0, size) for i in random.sample(tensors, 12)]
            yield Work(stream, "update", 0, tuple(used[4:]), tuple(used[:4]))
        yield Record(stream, 0, 0)
