"""Binds copies of rows, and counts copies of whole layers, for the executor."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from ggsched.backend.program import ChosenRows
from ggsched.backend.protocols import Buffer, HostMemory, Stream
from ggsched.errors import DeviceFault
from ggsched.plan.bundle import Plan
from ggsched.plan.command import Copy, CopyRows, Download, Upload
from ggsched.run.expert_ledger import Account, ExpertLedger
from ggsched.run.resources import Resources
from ggsched.run.row_cache import RowCache

# --- copies of rows -------------------------------------------------------------------------------

# The ids of one routing decision are read once, however many weights they choose rows of.
# Adjoining rows go in one copy. Everything is enqueued on the command's stream, so it keeps that
# stream's order (STR-1) and needs nothing of a backend but ``upload`` and ``copy``.


Call = Callable[[], None]

Note = Callable[[HostMemory, int], None]
"""Called when the host reads ids, with their memory and the number of copies that follow."""


class Decision:
    """The rows that one routing decision named, read once in each run."""

    def __init__(self, ids: HostMemory, ledger: ExpertLedger) -> None:
        self.ids = ids
        self._ledger = ledger
        self._run = -1
        self._rows: tuple[int, ...] = ()

    def rows(self, run: int) -> tuple[int, ...]:
        """Return the numbers that are named in a run, each once, in ascending order."""
        if run != self._run:
            self._rows = tuple(np.unique(np.frombuffer(self.ids, np.int32)).tolist())
            self._run = run
            self._ledger.id_reads += 1
        return self._rows


@dataclass(frozen=True, slots=True)
class Cached:
    """Rows that are kept on the device: where, and which."""

    buffer: Buffer
    rows: RowCache


@dataclass(frozen=True, slots=True)
class RowCopier:
    """One ``CopyRows`` command, bound.

    Attributes:
        name: Of the weight, for errors.
        stream: Stream that the copies go on.
        source: Buffer of the weight, or its host view.
        source_offset: First byte of its first row.
        target: Buffer that the rows go to.
        target_offset: Where its first row would lie.
        count: Rows of the weight.
        decision: What names the rows.
        chosen: Called with the rows, for checks of the rows read.
        account: Where bytes are counted.
        cached: Rows kept from earlier runs, or None.
        note: Called when the host reads the ids.
    """

    name: str
    stream: Stream
    source: Buffer | HostMemory
    source_offset: int
    target: Buffer
    target_offset: int
    row_nbytes: int
    count: int
    decision: Decision
    chosen: ChosenRows
    account: Account
    cached: Cached | None = None
    note: Note | None = None

    def run(self, run: int) -> None:
        """Enqueue the copies of a run.

        Raises:
            DeviceFault: an id is not a row of the weight.
        """
        rows = self.decision.rows(run)
        if rows and not 0 <= rows[0] <= rows[-1] < self.count:
            raise DeviceFault(
                f"ids from {rows[0]} to {rows[-1]} for {self.count} rows",
                where=self.name,
                why="the router chose rows that do not exist, or its ids were read too early",
            )
        found = self.cached.rows.find(rows) if self.cached is not None else {}
        missing = [row for row in rows if row not in found] if found else rows
        runs = merged(missing)
        kept, evicted = self._admitted(missing, len(found))
        if self.note is not None:
            self.note(self.decision.ids, len(runs) + len(found) + len(kept))
        for first, number in runs:
            self._bring(first, number)
        self._from_cache(found)
        self._to_cache(kept)
        self.chosen.ranges = tuple(
            (first * self.row_nbytes, (first + number) * self.row_nbytes)
            for first, number in (runs if not found else merged(rows))
        )
        account = self.account
        account.decisions += 1
        account.chosen_rows += len(rows)
        account.uploaded_rows += len(missing)
        account.uploaded_nbytes += len(missing) * self.row_nbytes
        account.cached_rows += len(found)
        account.evicted_rows += evicted
        account.copies += len(runs)

    def _bring(self, first: int, number: int) -> None:
        at, nbytes = first * self.row_nbytes, number * self.row_nbytes
        start, to = self.source_offset + at, self.target_offset + at
        if isinstance(self.source, memoryview):
            self.stream.upload(self.source[start : start + nbytes], self.target, to)
        else:
            self.stream.copy(self.source, start, self.target, to, nbytes)

    def _admitted(self, missing: Sequence[int], in_use: int) -> tuple[dict[int, int], int]:
        if self.cached is None:
            return {}, 0
        return self.cached.rows.admit(missing, in_use)

    def _from_cache(self, found: dict[int, int]) -> None:
        if self.cached is not None:
            n, to, buffer = self.row_nbytes, self.target_offset, self.cached.buffer
            for row, slot in found.items():
                self.stream.copy(buffer, slot * n, self.target, to + row * n, n)

    def _to_cache(self, kept: dict[int, int]) -> None:
        """Keep rows that have just come; their slots are read before, on the same stream."""
        if self.cached is not None:
            n, at, buffer = self.row_nbytes, self.target_offset, self.cached.buffer
            for row, slot in kept.items():
                self.stream.copy(self.target, at + row * n, buffer, slot * n, n)


def merged(rows: Sequence[int]) -> list[tuple[int, int]]:
    """Return ascending numbers as runs of neighbours, each as (first, how many)."""
    runs: list[tuple[int, int]] = []
    first = last = -2
    for row in rows:
        if row != last + 1:
            if last >= 0:
                runs.append((first, last - first + 1))
            first = row
        last = row
    if last >= 0:
        runs.append((first, last - first + 1))
    return runs


# --- binding --------------------------------------------------------------------------------------


class ExpertBinding:
    """What the copies of expert weights of one plan share.

    Args:
        resources: Its buffers.
        note: Called when the host reads ids.

    Attributes:
        run: Number of the run; ids are read once in each.
    """

    def __init__(self, plan: Plan, resources: Resources, note: Note | None) -> None:
        self._plan, self._resources, self._note = plan, resources, note
        self._decisions: dict[int, Decision] = {}
        self.run = 0

    def failed(self) -> None:
        """Trust no row that a run which was cut short may have left behind."""
        for cache in self._resources.store.row_caches:
            cache.forget()

    def bind(self, command: CopyRows) -> Call:
        """Return a call that enqueues the copies of a command."""
        r, t = self._resources, self._plan.splits.transfers[command.transfer]
        source = r.buffers[command.src.arena]
        copier = RowCopier(
            name=self._plan.splits.values[t.src].bound,
            stream=r.streams[command.stream],
            source=source.host_view() if command.through_host_view else source,
            source_offset=command.src.offset,
            target=r.buffers[command.dst.arena],
            target_offset=command.dst.offset,
            row_nbytes=command.row_nbytes,
            count=command.dst.nbytes // command.row_nbytes,
            decision=self._decision(command),
            chosen=r.chosen[t.dst],
            account=self._account(command),
            cached=self._cached(command),
            note=self._note,
        )
        return lambda: copier.run(self.run)

    def counted(self, command: Upload | Download | Copy, call: Call) -> Call:
        """Return a call that also counts, if the command brings a whole layer to a ring."""
        t = self._plan.splits.transfers[command.transfer]
        if self._plan.splits.values[t.dst].ring < 0:
            return call
        return partial(_count, call, self._account(command), command.dst.nbytes)

    def _decision(self, command: CopyRows) -> Decision:
        rows = self._plan.splits.transfers[command.transfer].rows
        assert rows is not None
        if rows.ids not in self._decisions:
            memory = self._resources.host_bytes(command.ids)
            self._decisions[rows.ids] = Decision(memory, self._resources.store.ledger)
        return self._decisions[rows.ids]

    def _account(self, command: Upload | Download | Copy | CopyRows) -> Account:
        t = self._plan.splits.transfers[command.transfer]
        weight, target = self._plan.splits.values[t.src], self._plan.splits.values[t.dst]
        device = self._plan.devices[target.device].name
        return self._resources.store.ledger.account(weight.bound, device)

    def _cached(self, command: CopyRows) -> Cached | None:
        if command.cache is None:
            return None
        arena = self._plan.memory.arenas[command.cache.arena]
        buffer: Buffer = self._resources.buffers[arena.id]
        slots = command.cache.nbytes // command.row_nbytes
        return Cached(buffer, self._resources.store.row_cache(arena, slots))


def _count(call: Call, account: Account, nbytes: int) -> None:
    call()
    account.layers += 1
    account.layer_nbytes += nbytes
