"""The key of captured graphs: what decides between a replay, an update and a new capture."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal

import msgspec

from ggsched.backend.host_borrow import address_of
from ggsched.backend.protocols import Buffer, HostMemory, Program, Stream
from ggsched.plan.bundle import Plan

Renewal = Literal["replay", "update", "capture"]
"""What becomes of a graph: it is replayed as it is, updated (CAP-4), or made anew."""


@dataclass(frozen=True, slots=True)
class CaptureKey:
    """Everything that a captured graph depends on.

    Attributes:
        topology: Digest of the topology.
        graph: Digest of the graph: ops, shapes, types, views, op parameters.
        commands: Digest of the commands: order, streams, regions.
        memory: Identities of buffers by arena; whoever holds the key holds them.
        host: Addresses and lengths of host memory by arena.
        programs: Identities of programs by split.
        streams: Identities of streams.
    """

    topology: str
    graph: str
    commands: str
    memory: tuple[tuple[int, int], ...]
    host: tuple[tuple[int, int, int], ...]
    programs: tuple[tuple[int, int], ...]
    streams: tuple[int, ...]

    def renewal(self, known: "CaptureKey") -> Renewal:
        """Return what becomes of graphs with a known key when this one is in force.

        Where the same commands have other addresses or other programs there is a chance that the
        device need not make its graph anew.
        """
        if self == known:
            return "replay"
        return "update" if self._form() == known._form() else "capture"

    def _form(self) -> tuple[object, ...]:
        """Return what an update cannot change: all but addresses and which programs."""
        return (
            self.topology,
            self.graph,
            self.commands,
            tuple(item[0] for item in self.memory),
            tuple((item[0], item[2]) for item in self.host),
            tuple(item[0] for item in self.programs),
            self.streams,
        )


def capture_key(
    plan: Plan,
    buffers: Mapping[int, Buffer],
    host: Mapping[int, HostMemory],
    programs: Mapping[int, Program],
    streams: Sequence[Stream],
) -> CaptureKey:
    """Return the key of a plan that is bound to live things."""
    return CaptureKey(
        topology=plan.topology,
        graph=plan.graph,
        commands=blake2b(msgspec.json.encode(plan.commands), digest_size=16).hexdigest(),
        memory=tuple(sorted((arena, id(buffer)) for arena, buffer in buffers.items())),
        host=tuple(sorted((arena, address_of(m), m.nbytes) for arena, m in host.items())),
        programs=tuple(sorted((split, id(program)) for split, program in programs.items())),
        streams=tuple(map(id, streams)),
    )
