"""A screen for traces: most have no race, and then no access has to be looked at by itself.

Records are followed with clocks, and their accesses are compared in batches of arrays. The screen
names the address spaces in which something may race; ``races`` looks at these alone and decides. A
space that the screen does not name has no race: on each byte every access is compared with the
write before it, and every read with the next write. Between batches only accesses are kept that
have no later write, and of these not those that all later work comes after (docs/adr/0101-*).
"""

from collections import deque
from collections.abc import Sequence
from itertools import chain, count
from typing import Any, Final

import numpy as np

from ggsched.sanitize.events import UNKNOWN, EventStream
from ggsched.sanitize.from_trace import event_of
from ggsched.sanitize.order import HappensBefore
from ggsched.trace import schema

_MAX_LANES: Final = 256
"""With more lanes the clocks of a batch take too much memory."""

_MAX_PIECES: Final = 64
"""A space whose accesses consist of more pieces each, on average, is left to ``races``."""

_BATCH: Final = 3 << 10
"""Accesses; more of them take more memory and hardly less time."""


class Screen:
    """Follows the records of a trace.

    Args:
        stream: Actors and memories of the trace; memories may be added while it is followed.

    Attributes:
        is_known: Whether all records so far name only what exists and is in use.
        is_plain: Whether, besides, no access says what the bytes are, and none reads bytes that
            nothing has written.
    """

    def __init__(self, stream: EventStream) -> None:
        self._memories = stream.memories
        self._order = HappensBefore(stream)
        lanes = len(self._order.log)
        self._order.log = [deque(maxlen=0) for _ in range(lanes)]  # which nobody reads
        hosts = [i for i, actor in enumerate(stream.actors) if actor.is_host]
        self._actors, self._enqueuers = len(stream.actors), {schema.NOBODY, *hosts}
        self._is_host = [actor.is_host for actor in stream.actors]
        self._host = hosts[0] if len(hosts) == 1 else None
        self._life: dict[int, list[int]] = {}
        """Numbers of the records that begin and end each memory."""
        self._undefined: set[int] = set()
        self.is_known, self.is_plain = lanes <= _MAX_LANES, True
        self._racy: set[int] = set()
        self._has_forgotten = False
        self._accesses: list[schema.Access] = []
        self._counts: list[int] = []  # of the reads and the writes of each piece of work in turn
        self._marks: list[tuple[int, int, int]] = []
        self._clocks: list[list[int]] = []
        self._kept = np.empty((6, 0), np.int64)
        """Space, start, end, lane, number and whether it writes, of accesses of earlier batches."""

    def add(self, number: int, entry: schema.Entry) -> None:
        """Follow a record."""
        if not self.is_known or not self._names_what_exists(number, entry):
            self.is_known = False
            return
        reads: Sequence[schema.Access] = ()
        if isinstance(entry, schema.Work):
            mark, clock = self._order.work(entry, number, 0)
            reads, writes = entry.reads, entry.writes
        else:
            event = event_of(number, entry, self._memories, ())
            if not isinstance(entry, schema.Free):
                self._order.follow(event)
                return
            mark, clock = self._order.work(event, number, 0)
            self._order.free(event, clock)
            writes = (schema.Access(entry.memory, 0, self._memories[entry.memory].nbytes),)
        if reads or writes:
            self._accesses += reads
            self._accesses += writes
            self._counts += (len(reads), len(writes))
            self._marks.append((*mark, number))
            self._clocks.append(clock[0] if len(clock) == 1 else [*chain(*clock)])
            if len(self._accesses) > max(_BATCH, 2 * self._kept.shape[1]):
                self._compare()

    def racy(self) -> set[int] | None:
        """Return spaces with all races, after the last record; None if that is not known."""
        self._compare()
        is_known = self.is_known and not (self._has_forgotten and self._host is None)
        return self._racy if is_known else None

    def _names_what_exists(self, number: int, entry: schema.Entry) -> bool:
        """Whether actors and memory exist; what accesses name is looked at with all of a batch."""
        if not 0 <= entry.actor < self._actors:
            return False
        if isinstance(entry, schema.Alloc):
            if entry.memory in self._life or entry.nbytes < 0:
                return False
            self._life[entry.memory] = [number, 1 << 62]
            if self._memories[entry.memory].content is not UNKNOWN:
                self._undefined.add(entry.memory)
            return True
        if entry.by != self._host:
            if entry.by not in self._enqueuers:
                return False
            if not self._is_host[entry.actor]:
                self._host = None  # lanes have heard of a thread that does not enqueue it all
        if isinstance(entry, schema.Work):
            return True
        if isinstance(entry, schema.Free):
            life = self._life.get(entry.memory, (0, 0))
            if life[1] != 1 << 62:
                return False
            self._life[entry.memory][1] = number
        if isinstance(entry, schema.Sync):
            return entry.stream is None or 0 <= entry.stream < self._actors
        return not (
            isinstance(entry, schema.CaptureBegin | schema.CaptureEnd)
            and self._is_host[entry.actor]
        )

    # --- a batch ----------------------------------------------------------------------------------

    def _compare(self) -> None:
        """Compare the accesses of a batch with each other and with those that are kept."""
        if not self._accesses or not self.is_known:
            return
        # Most accesses occur again and again: bounds and segments are those of the distinct ones.
        distinct = dict(zip(dict.fromkeys(self._accesses), count()))
        at = np.fromiter(map(distinct.__getitem__, self._accesses), np.int64)
        marks, clocks = np.array(self._marks), np.array(self._clocks)
        counts = np.array(self._counts)
        self._accesses, self._counts, self._marks, self._clocks = [], [], [], []
        work = np.repeat(np.arange(len(counts)) >> 1, counts)
        writes = np.repeat(np.arange(len(counts)) & 1, counts)
        spans = self._looked_up([*distinct], at, marks[work, 2], writes)
        if spans is None:
            self.is_known = False
            return
        old = self._kept.shape[1]
        spans = np.concatenate([self._kept[:3], spans], axis=1)
        rows = np.vstack([at + old, marks[work, :2].T, writes])
        rows = np.concatenate([np.vstack([np.arange(old), self._kept[3:]]), rows], axis=1)
        work = np.concatenate([np.full(old, -1), work])
        is_left = (spans[1] < spans[2]) & ~np.isin(spans[0], [*self._racy])
        used = is_left[rows[0]]
        self._kept = self._raced(spans, rows[:, used], work[used], clocks)

    def _looked_up(self, accesses: list[schema.Access], at: Any, record: Any, writes: Any) -> Any:
        """Return spaces, and first and last bytes there; None if one lies outside its memory."""
        # ``at`` is the place of each access in turn; ``record`` and ``writes`` are of these too.
        columns: Any = zip(*accesses, strict=True)
        memory, start, end, tags = columns
        self.is_plain &= not any(tags)
        if not self._life.keys() >= {*memory}:
            return None
        facts = [self._memories[i] for i in memory]
        if any(max(abs(m.space), abs(m.address) + m.nbytes) >= 1 << 62 for m in facts):
            return None
        try:
            start, end = np.array(start, np.int64), np.array(end, np.int64)
        except OverflowError:
            return None
        first, last = np.empty((2, len(accesses)), np.int64)
        last[at] = np.arange(len(at))  # of several the latest is assigned
        first[at[::-1]] = np.arange(len(at))[::-1]
        begin, free = np.array([self._life[i] for i in memory]).T
        size, space, address = np.array([(m.nbytes, m.space, m.address) for m in facts]).T
        is_outside = (start < 0) | (start > end) | (end > size)
        if (is_outside | (record[first] < begin) | (record[last] > free)).any():
            return None
        for k, i in enumerate(memory) if self._undefined else ():  # in order of first accesses
            if i in self._undefined:
                self._undefined.discard(i)
                self.is_plain &= bool(writes[first[k]] and not start[k] and end[k] == size[k])
        return np.vstack([space, address + start, address + end])

    def _raced(self, spans: Any, rows: Any, work: Any, clocks: Any) -> Any:
        """Note the spaces in which accesses race; return the accesses to keep.

        Args:
            spans: Space, start and end of the distinct accesses.
            rows: Of each access in turn its place among these, lane, number, whether it writes.
            work: Of each the row of ``clocks``; below zero of one that was kept.
        """
        space, start, end = spans
        # Bytes between two neighbouring ends of accesses are a segment; rows are cut into these.
        ends, at = np.unique(np.concatenate([start, end]), return_inverse=True)
        spaces, of = np.unique(space, return_inverse=True)
        keys, at = np.unique(np.tile(of, 2) * len(ends) + at, return_inverse=True)
        span, lane, number, writes = rows
        of, first, pieces = of[span], at[span], at[span + len(space)] - at[span]
        space = space[span]
        totals, rows_of = (np.bincount(of, w, len(spaces)) for w in (pieces, None))
        if (is_cut := totals > _MAX_PIECES * rows_of).any():
            self._racy.update(spaces[is_cut].tolist())
            return self._raced(spans, rows[:, ~is_cut[of]], work[~is_cut[of]], clocks)
        row = np.repeat(np.arange(len(space)), pieces)
        segment = np.arange(len(row)) + np.repeat(first - (np.cumsum(pieces) - pieces), pieces)
        order = np.argsort(segment, kind="stable")  # in each one in the order of the records
        segment, row = segment[order], row[order]
        place, is_write = np.arange(len(row)), writes[row] > 0
        begins = np.flatnonzero(np.diff(segment, prepend=-1))
        of_segment = np.repeat(np.arange(len(begins)), np.diff(begins, append=len(row)))
        begin, stop = begins[of_segment], np.append(begins[1:], len(row))[of_segment]
        write = np.maximum.accumulate(np.where(is_write, place, -1))
        before = np.append(-1, write[:-1])
        following = np.minimum.accumulate(np.where(is_write, place, len(row))[::-1])[::-1]
        for is_pair, earlier, later in (
            (before >= begin, before, place),
            (~is_write & (following < stop), place, following),
        ):
            one, other = row[earlier[is_pair]], row[later[is_pair]]
            is_new = work[other] >= 0
            one, other = one[is_new], other[is_new]
            is_late = clocks[work[other], lane[one]] < number[one]
            self._racy.update(space[one[is_late]].tolist())
        kept = place[place >= np.maximum(write[stop - 1], begin)]
        key = (segment[kept] * _MAX_LANES + lane[row[kept]]) * 2 + writes[row[kept]]
        _, latest = np.unique(key[::-1], return_index=True)
        kept = kept[np.sort(len(kept) - 1 - latest)]
        if self._host is not None:
            self._has_forgotten = True
            threads = dict.fromkeys(range(len(self._order.log)), self._host)
            passed = np.array([*chain(*self._order.passed(threads))])
            kept = kept[passed[lane[row[kept]]] < number[row[kept]]]
        row, segment = row[kept], segment[kept]
        bounds = (ends[keys[segment + k] % len(ends)] for k in (0, 1))
        return np.vstack([space[row], *bounds, rows[1:, row]])
