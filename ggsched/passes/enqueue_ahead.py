"""Lets a machine enqueue what comes next before its host waits for bytes that it sends.

A plan is written for one host, which waits for a value just after the commands that make it. In the
part of a machine the host would then enqueue the next micro-batch only when the one before is over
and sent, and the device would idle that long, once for each message. So a wait that bytes are sent
after is moved behind commands that follow, up to the next thing that the host waits for.

A command ``c`` may go before the wait for an event ``e`` if

* the device would not read or write too early: what ``e`` stands for and the host does not know
  otherwise to be over, commands of the run before among it, is before it on the stream of ``c``,
  which keeps copies and launches in order (STR-1), or touches other bytes (reads of both aside);
* the host does not read or write too early: ``c`` does nothing at once, except to read host bytes
  that no device of the machine writes;
* ``c`` does not write the bytes that are to be sent.

Messages keep their order, and none waits for a message that it did not wait for: the wait is moved
behind commands only that the host enqueues without waiting. ``ggsched_cluster.check_parts`` looks
at the result with code of its own.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from ggsched.ir.intervals import overlap
from ggsched.plan.command import HostSync, Record
from ggsched.plan.effects import Effects
from ggsched.plan.memory import Region
from ggsched.plan.parts import PartCommand, Receive, Send

LOOKED_AT: Final = 64
"""Commands of other streams that a command is compared with; where there are more, it stays."""


def enqueue_ahead(
    commands: Sequence[PartCommand], host_arenas: Collection[int], in_order: Collection[int]
) -> tuple[PartCommand, ...]:
    """Return the commands of a machine in another order.

    Args:
        commands: As the plan has them, with messages.
        host_arenas: Those of host memory.
        in_order: Streams that keep copies and launches in order.
    """
    return tuple(_Ahead(commands, frozenset(host_arenas), frozenset(in_order)).commands())


class _Ahead:
    def __init__(
        self,
        commands: Sequence[PartCommand],
        host_arenas: frozenset[int],
        in_order: frozenset[int],
    ) -> None:
        self._given = commands
        self._host_arenas, self._in_order = host_arenas, in_order
        self._unknown: defaultdict[int, list[Effects]] = defaultdict(list)
        self._known: defaultdict[int, int] = defaultdict(int)
        self._recorded: dict[int, tuple[int, int]] = {}
        self._held: list[PartCommand] = []
        self._made = [
            region
            for c in commands
            if not isinstance(c, Receive)
            for region in c.effects.writes
            if region.arena in host_arenas
        ]

    def commands(self) -> Iterator[PartCommand]:
        """Yield them, with waits held back as long as possible."""
        for command in self._given:
            self._note(command)  # what the host does not know to be over when the next run begins
        self._recorded.clear()
        for number, command in enumerate(self._given):
            if self._held:
                before = self._given[number - 1]
                if isinstance(command, Send) and isinstance(before, HostSync | Send):
                    self._held.append(command)
                    continue
                if not self._may_pass(command):
                    yield from self._released()
            if isinstance(command, HostSync) and self._is_for_a_message(number):
                self._held = [command]
                continue
            self._note(command)
            yield command
        yield from self._released()

    def _is_for_a_message(self, number: int) -> bool:
        """Whether a wait is followed by what sends the bytes that it is for."""
        wait, after = self._given[number], self._given[number + 1 : number + 2]
        return (
            isinstance(wait, HostSync)
            and wait.event in self._recorded
            and any(isinstance(c, Send) for c in after)
        )

    def _released(self) -> list[PartCommand]:
        held, self._held = self._held, []
        for command in held:
            self._note(command)
        return held

    def _note(self, command: PartCommand) -> None:
        """Note what the host has enqueued, and what it knows to be over."""
        if isinstance(command, Send | Receive):
            return
        if isinstance(command, HostSync):
            stream = command.stream
            end = self._known[stream] + len(self._unknown[stream])
            if command.event is not None:
                stream, end = self._recorded.get(command.event, (stream, 0))
            over = end - self._known[stream]
            if over > 0:
                del self._unknown[stream][:over]
                self._known[stream] = end
            return
        effects = command.effects
        if effects.reads or effects.writes:
            for stream in effects.streams:
                self._unknown[stream].append(effects)
        if isinstance(command, Record):
            stream = command.stream
            end = self._known[stream] + len(self._unknown[stream])
            self._recorded[command.event] = (stream, end)

    def _may_pass(self, command: PartCommand) -> bool:
        if isinstance(command, Send | Receive | HostSync):
            return False
        effects = command.effects
        if len(effects.streams) != 1 or effects.host_reads or effects.host_writes:
            return False
        if effects.reads_at_enqueue and self._reads_what_is_made(effects):
            return False
        sent = [c.src for c in self._held if isinstance(c, Send)]
        if _meet(effects.writes, sent):
            return False
        own = effects.streams[0] if effects.streams[0] in self._in_order else -1
        others = [u for s, u in self._unknown.items() if s != own]
        if sum(map(len, others)) > LOOKED_AT:
            return False
        return not any(_conflict(effects, e) for some in others for e in some)

    def _reads_what_is_made(self, effects: Effects) -> bool:
        return _meet([r for r in effects.reads if r.arena in self._host_arenas], self._made)


def _conflict(a: Effects, b: Effects) -> bool:
    return _meet(a.writes, (*b.reads, *b.writes)) or _meet(a.reads, b.writes)


def _meet(some: Sequence[Region], others: Sequence[Region]) -> bool:
    return any(a.arena == b.arena and overlap(a, b) for a in some for b in others)
