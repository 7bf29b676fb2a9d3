"""LCH-7: constants that are taken once and for all, and other operands that are read too early."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ggsched.backend.arrays import bind_host
from ggsched.backend.base import BaseDevice, BaseProgram
from ggsched.backend.program import BoundNode, Operand
from ggsched.backend.protocols import Stream
from ggsched.errors import UsageError
from ggsched_testing.sim import SimDevice, SimProgram
from tests.mutants.baselines import CPU, SIM
from tests.mutants.mutant import breaks
from tests.mutants.mutate_calls import Around, MutatedCalls, bytes_of, nothing, restoring

# --- read too early ---------------------------------------------------------------------------


class _Eager(SimProgram):
    """A program that reads more than its constants ahead of its turn."""

    def begin(self) -> None:
        """Choose what is read early, once it is compiled."""
        self.early = [o for work in self._work for o in work.read if self.is_early(o)]

    def is_early(self, operand: Operand) -> bool:
        """Whether an operand is read early."""
        return operand.is_constant


@breaks("LCH-7", "With a constant in it, a program reads all its operands early.", SIM)
class EverythingIsReadEarly(_Eager):
    """The kernel does not wait at all."""

    def is_early(self, operand: Operand) -> bool:
        return bool(self.early)

    def begin(self) -> None:
        made = {id(work.node.output.buffer) for work in self._work}
        super().begin()
        self.early = [o for o in self.early if id(o.buffer) not in made]


@breaks("LCH-7", "What lies in one buffer with a constant is read early, too.", SIM)
class WholeBuffersAreConstant(_Eager):
    """The mark is kept with the memory."""

    def begin(self) -> None:
        self.__dict__["marked"] = {id(o.buffer) for o in self.early}
        super().begin()

    def is_early(self, operand: Operand) -> bool:
        return id(operand.buffer) in self.__dict__["marked"]


@breaks("LCH-7", "What was a constant once is read early for ever.", SIM)
class ConstantForEver(SimDevice):
    """The mark outlives the program."""

    def compile(self, nodes: Sequence[BoundNode], stream: Stream) -> SimProgram:
        known: set[Any] = self.__dict__.setdefault("constants", set())

        def marked(o: Operand) -> Operand:
            place = id(o.buffer), o.offset, o.nbytes
            if o.is_constant:
                known.add(place)
            return replace(o, is_constant=place in known)

        changed = [replace(n, inputs=tuple(map(marked, n.inputs))) for n in nodes]
        return super().compile(changed, stream)


# --- taken once and for all -------------------------------------------------------------------


def _with_others(
    nodes: Sequence[BoundNode], other: Callable[[Operand], Operand]
) -> list[BoundNode]:
    """Return nodes with other operands in the place of constants."""

    def changed(o: Operand) -> Operand:
        return other(o) if o.is_constant and o.nbytes else o

    return [replace(n, inputs=tuple(map(changed, n.inputs))) for n in nodes]


@breaks("LCH-7", "Constants are copied when they are compiled.", CPU)
class ConstantsAreCopied(BaseDevice):
    """They are packed for the kernel."""

    def compile(self, nodes: Sequence[BoundNode], stream: Stream) -> BaseProgram:
        def copied(o: Operand) -> Operand:
            room = self.allocate(o.nbytes)
            np.frombuffer(room.host_view(), np.uint8)[:] = bytes_of(o)[
                o.offset : o.offset + o.nbytes
            ]
            return replace(o, buffer=room, offset=0)

        return super().compile(_with_others(nodes, copied), stream)


@breaks("LCH-7", "The first constant of a buffer is taken for every one of it.", CPU)
class OneConstantPerBuffer(BaseDevice):
    """Descriptors are found again by the buffer alone."""

    def compile(self, nodes: Sequence[BoundNode], stream: Stream) -> BaseProgram:
        offsets: dict[int, int] = self.__dict__.setdefault("offsets", {})

        def found(o: Operand) -> Operand:
            offset = offsets.setdefault(id(o.buffer), o.offset)
            fits = offset + o.nbytes <= o.buffer.nbytes
            return replace(o, offset=offset) if fits else o

        return super().compile(_with_others(nodes, found), stream)


@breaks("LCH-7", "A node of constants alone is computed once.", CPU)
class ConstantsAreFolded(MutatedCalls):
    """Its result is constant, too, or so it seems."""

    def compile(self, nodes: Sequence[BoundNode], stream: Stream) -> BaseProgram:
        program = super().compile(nodes, stream)
        folded = [n for n in nodes if n.inputs and all(o.is_constant for o in n.inputs)]
        if program.body is not None and folded:
            restore = restoring([bind_host(n.output) for n in folded])
            program.body = Around(program.body, nothing, restore)
        return program


@breaks("LCH-7", "Nodes with constants are refused.", CPU)
class ConstantsAreRefused(BaseDevice):
    """It does not know of them."""

    def compile(self, nodes: Sequence[BoundNode], stream: Stream) -> BaseProgram:
        if any(o.is_constant for n in nodes for o in n.inputs):
            raise UsageError("cannot compile an operand like this", where=nodes[0].label)
        return super().compile(nodes, stream)
