"""A plan cut by machines: what each of them runs, and which bytes go from one to another.

A part holds the commands of one machine's devices in the order of the plan, with their ids. The
host of each machine enqueues its part and knows nothing of the others; what it needs of them comes
in messages. Every machine has host memory of its own, with the arenas of the plan: a ``Send`` reads
bytes of its machine's, and the ``Receive`` of the same tag writes the same bytes of the other's.
``docs/reference/network.md`` states the rules (NET-1..6).
"""

from collections.abc import Sequence
from typing import cast

import msgspec

from ggsched.plan.bundle import Plan
from ggsched.plan.command import Command
from ggsched.plan.effects import Effects
from ggsched.plan.memory import Region
from ggsched.topology.caps import DeviceFacts


class Send(msgspec.Struct, frozen=True, tag="send", gc=False):
    """Host bytes to another machine. They may change as soon as it has been enqueued (NET-1).

    Attributes:
        id: The command that they are for.
        stream: Stream of the command that made them, for messages.
        tag: Number of the message; no other message of the plan has it.
        machine: The receiving machine.
        src: The bytes, in a host arena.
    """

    id: int
    stream: int
    tag: int
    machine: int
    src: Region

    @property
    def text(self) -> str:
        """What it does, for people."""
        return f"send #{self.tag} {self.src.text} to machine {self.machine}"

    @property
    def effects(self) -> Effects:
        """What it touches and waits for."""
        return Effects((self.stream,), host_reads=(self.src,))


class Receive(msgspec.Struct, frozen=True, tag="receive", gc=False):
    """Host bytes from another machine. The host waits until they are there (NET-2).

    Attributes:
        id: The command that they are for.
        stream: Its stream, for messages.
        tag: Number of the message.
        machine: The sending machine.
        dst: Where they go, in a host arena.
    """

    id: int
    stream: int
    tag: int
    machine: int
    dst: Region

    @property
    def text(self) -> str:
        """What it does, for people."""
        return f"receive #{self.tag} {self.dst.text} from machine {self.machine}"

    @property
    def effects(self) -> Effects:
        """What it touches and waits for."""
        return Effects((self.stream,), host_writes=(self.dst,))


PartCommand = Command | Send | Receive


class Part(msgspec.Struct, frozen=True):
    """What one machine does in a run.

    Attributes:
        machine: Its number.
        commands: What its host enqueues, in order.
        inputs: Names of the inputs that its host memory has to hold before.
        outputs: Tensor ids of the outputs that its host memory holds afterwards.
    """

    machine: int
    commands: tuple[PartCommand, ...]
    inputs: tuple[str, ...]
    outputs: tuple[int, ...]

    @property
    def text(self) -> str:
        """The part for people, one line for each command."""
        return "\n".join(f"c{c.id:<4} {c.text}" for c in self.commands)


def local_plan(plan: Plan, part: Part, devices: Sequence[DeviceFacts]) -> Plan:
    """Return the plan that a machine runs: all of the plan, with its own commands and slots.

    Args:
        part: What the machine does.
        devices: The devices of the plan as the machine knows them.
    """
    return msgspec.structs.replace(
        plan,
        devices=tuple(devices),
        commands=cast(tuple[Command, ...], part.commands),
        inputs=tuple(s for s in plan.inputs if s.name in part.inputs),
        outputs=tuple(s for s in plan.outputs if s.tensor in part.outputs),
    )
