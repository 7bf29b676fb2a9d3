"""Cuts a plan by machines: the commands of each, and a message for each value that crosses.

The planner knows no machines. Devices of different machines have neither copy nor wait paths to
each other, so what passes between them goes through host memory, behind a wait of the host
(``HostSync``) for the side that made it. The host of the plan is one thread; the parts have one
each. That is as good, because all memory but the host's belongs to one machine, and each machine
has host memory of its own:

* Of two accesses to the same bytes of one machine's memory, the first can only be known to be over
  by streams and events of that machine, or by a wait of the host for one of its events, which
  stands in its part in the same order.
* Bytes of host memory that another machine made come in a message just before the first command
  that reads them. There the plan's host has waited for their maker, and nothing has overwritten
  them yet.
* All messages stand in one order, that of the plan, in all parts; sending does not wait. So nobody
  waits in a circle.

``ggsched_cluster.check_parts`` checks the result with code of its own.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from ggsched.errors import PlanError
from ggsched.ids import show
from ggsched.ir.intervals import IntervalMap
from ggsched.passes.enqueue_ahead import enqueue_ahead
from ggsched.plan.bundle import Plan
from ggsched.plan.command import Command
from ggsched.plan.effects import Effects
from ggsched.plan.memory import Region
from ggsched.plan.parts import Part, PartCommand, Receive, Send
from ggsched.plan.splits import HOST


class _Held(NamedTuple):
    """Which machines have bytes of host memory.

    Attributes:
        machines: Machines whose host memory holds them; may be empty.
        stream: Stream of the command that wrote them; -1 for the host, whose inputs go to every
            machine that reads them.
    """

    machines: frozenset[int]
    stream: int = -1


_NOBODY: Final = _Held(frozenset())


def cut_by_machine(plan: Plan, machine_of: Sequence[int]) -> tuple[Part, ...]:
    """Return the part of each machine that does something or holds an output, by its number.

    Args:
        plan: A plan over a topology without paths between machines.
        machine_of: The machine of each device.

    Raises:
        PlanError: a command that touches memory, or waits for an event, of two machines.
    """
    return _Cut(plan, machine_of).parts()


class _Cut:
    def __init__(self, plan: Plan, machine_of: Sequence[int]) -> None:
        self._plan, self._machine_of = plan, machine_of
        self._everyone = frozenset(machine_of)
        self._host = {a.id: IntervalMap(_NOBODY) for a in plan.memory.arenas if a.device == HOST}
        self._commands: dict[int, list[PartCommand]] = {m: [] for m in sorted(self._everyone)}
        self._read: dict[int, set[str]] = {m: set() for m in self._everyone}
        self._slots = {arena: IntervalMap("") for arena in self._host}
        self._recorded: dict[int, int] = {}
        self._tag = 0
        for slot in plan.inputs:
            region = plan.memory.regions[slot.value]
            self._hold(region, _Held(self._everyone))
            if region.nbytes:
                self._slots[region.arena].put(region.offset, region.end, slot.name)

    def parts(self) -> tuple[Part, ...]:
        """Follow the commands in order."""
        for command in self._plan.commands:
            effects = command.effects
            machine = self._machine(command, effects)
            for region in (*effects.reads, *effects.host_reads):
                if region.arena in self._host and region.nbytes:
                    self._bring(command, machine, region)
            for region in effects.writes:
                self._hold(region, _Held(frozenset((machine,)), effects.streams[0]))
            for event in effects.records:
                self._recorded[event] = machine
            self._commands[machine].append(command)
        outputs = self._outputs()
        return tuple(
            Part(m, self._ahead(commands), self._inputs(m), tuple(outputs[m]))
            for m, commands in self._commands.items()
            if commands or outputs[m]
        )

    def _ahead(self, commands: Sequence[PartCommand]) -> tuple[PartCommand, ...]:
        devices, streams = self._plan.devices, self._plan.streams.streams
        in_order = [q for q, s in enumerate(streams) if devices[s.device].copy_order == "stream"]
        return enqueue_ahead(commands, self._host, in_order)

    def _machine(self, command: Command, effects: Effects) -> int:
        """Return the machine that a command belongs to."""
        plan = self._plan
        regions = [r for step in effects.steps for r in step.operands]
        regions += (*effects.reads, *effects.writes)
        devices = {plan.streams.streams[q].device for q in effects.streams}
        devices |= {plan.memory.arenas[r.arena].device for r in regions} - {HOST}
        machines = {self._machine_of[d] for d in devices}
        machines |= {self._recorded[e] for e in effects.waits if e in self._recorded}
        if len(machines) != 1:
            names = ", ".join(sorted(plan.devices[d].name for d in devices))
            raise PlanError(
                f"needs several machines: {command.text}",
                where=show("command", command.id),
                why=f"it concerns {names}",
                hint="plan over a topology without copy and wait paths between machines",
            )
        (machine,) = machines
        return machine

    def _bring(self, command: Command, machine: int, region: Region) -> None:
        """Let a machine have host bytes before a command of its own reads them."""
        self._need_inputs(machine, region)
        pieces = list(self._host[region.arena].pieces(region.offset, region.end))
        for start, end, held in pieces:
            if machine in held.machines:
                continue
            bytes_ = Region(region.arena, start, end - start)
            if not held.machines:
                where = show("command", command.id)
                raise PlanError(f"reads {bytes_.text}, which nothing has written", where=where)
            sender, tag, stream = min(held.machines), self._tag, command.stream
            self._tag += 1
            self._commands[sender].append(Send(command.id, held.stream, tag, machine, bytes_))
            self._commands[machine].append(Receive(command.id, stream, tag, sender, bytes_))
            self._hold(bytes_, held._replace(machines=held.machines | {machine}))

    def _hold(self, region: Region, held: _Held) -> None:
        if region.arena in self._host and region.nbytes:
            self._host[region.arena].put(region.offset, region.end, held)

    def _need_inputs(self, machine: int, region: Region) -> None:
        """Note the inputs of which a machine reads a byte."""
        pieces = self._slots[region.arena].pieces(region.offset, region.end)
        self._read[machine].update(name for _, _, name in pieces if name)

    def _inputs(self, machine: int) -> tuple[str, ...]:
        """Return the inputs that a machine reads, in the order of the plan."""
        return tuple(s.name for s in self._plan.inputs if s.name in self._read[machine])

    def _outputs(self) -> dict[int, list[int]]:
        """Return the outputs that each machine hands over."""
        found: dict[int, list[int]] = {m: [] for m in self._commands}
        for slot in self._plan.outputs:
            region = self._plan.memory.regions[slot.value]
            machine = self._one_holder(region)
            if machine is None:
                raise PlanError("an output of which no machine has all bytes", where=slot.name)
            found[machine].append(slot.tensor)
            self._need_inputs(machine, region)
        return found

    def _one_holder(self, region: Region) -> int | None:
        holders = set(self._everyone)
        for held in self._held(region):
            holders &= held.machines
        return min(holders, default=None)

    def _held(self, region: Region) -> Iterator[_Held]:
        pieces = self._host[region.arena].pieces(region.offset, region.end)
        return (held for _, _, held in pieces)
