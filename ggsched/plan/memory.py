"""Arenas, and where in them each value lives."""

from typing import Literal, NamedTuple

import msgspec

from ggsched.ids import show

ArenaKind = Literal["compute", "weight", "state", "cache", "input", "output", "staging"]


class Region(NamedTuple):
    """Bytes ``[offset, offset + nbytes)`` of an arena."""

    arena: int
    offset: int
    nbytes: int

    @property
    def end(self) -> int:
        """One past the last byte."""
        return self.offset + self.nbytes

    @property
    def span(self) -> tuple[int, int, int]:
        """Arena, first byte, and one past the last."""
        return self.arena, self.offset, self.end

    @property
    def text(self) -> str:
        """The bytes for people, e.g. ``a3[0:4096]``."""
        return f"{show('arena', self.arena)}[{self.offset}:{self.end}]"


class Arena(msgspec.Struct, frozen=True, gc=False):
    """One buffer that the plan cuts up.

    Attributes:
        id: Index in ``Memory.arenas``.
        kind: ``compute`` memory is private to the plan, with undefined content when a run
            starts. ``weight`` and ``state`` hold one named tensor each, live longer than the
            plan, and are defined when it starts. ``cache`` memory lives longer than the plan
            too and holds rows of the weight that it is named after; which, is known when the
            plan runs. ``input``, ``output`` and ``staging`` are host memory.
        device: Index in the topology, or -1 for host memory.
        alignment: Alignment in bytes of the arena and of every region in it.
        name: Name of the weight or state, also of the weight that is cached, else "".
    """

    id: int
    kind: ArenaKind
    device: int
    nbytes: int
    alignment: int
    name: str = ""


class Life(NamedTuple):
    """When a value's bytes matter, in steps of the lowered program, both ends included."""

    birth: int
    death: int


class Memory(msgspec.Struct, frozen=True):
    """The memory plan.

    Attributes:
        arenas: All arenas, by id.
        regions: Region of each value, by value id.
        overwrites: For each value that took over the bytes of a dying operand, that operand's
            value id.
        lower_bound: For each arena that was packed (compute and host memory) the most bytes that
            must be live at once. No packing needs less. With several streams those of the heaviest
            set of values that may be live together; with hints those of program order.
        hinted_bound: The same with retention hints (bytes that are left alone so that a device may
            make one call of several groups), for each arena of which they raise it. No packing
            that follows all hints needs less.
    """

    arenas: tuple[Arena, ...]
    regions: tuple[Region, ...]
    overwrites: dict[int, int]
    lower_bound: dict[int, int]
    hinted_bound: dict[int, int] = {}
