"""Binds copies of rows, and counts copies of whole layers, for the executor."""

from functools import partial

from ggsched.backend.protocols import Buffer
from ggsched.plan.bundle import Plan
from ggsched.plan.command import Copy, CopyRows, Download, Upload
from ggsched.run.copy_rows import Cached, Call, Decision, Note, RowCopier
from ggsched.run.expert_ledger import Account
from ggsched.run.resources import Resources


class ExpertBinding:
    """What the copies of expert weights of one plan share.

    Args:
        plan: The plan.
        resources: Its buffers.
        note: Called when the host reads ids.
    """

    def __init__(self, plan: Plan, resources: Resources, note: Note | None) -> None:
        self._plan, self._resources, self._note = plan, resources, note
        self._decisions: dict[int, Decision] = {}
        self._run = 0

    def next_run(self) -> None:
        """Begin a run: ids are read anew."""
        self._run += 1

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
        return lambda: copier.run(self._run)

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
