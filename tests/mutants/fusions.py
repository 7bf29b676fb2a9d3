"""LCH-6: groups that leave something else than their nodes one by one."""

from collections.abc import Sequence
from dataclasses import replace

from ggsched.backend.arrays import bind_host
from ggsched.backend.base import BaseProgram
from ggsched.backend.program import BoundNode, groups_of
from ggsched.backend.protocols import Stream
from ggsched.errors import UsageError
from tests.mutants.baselines import CPU
from tests.mutants.mutant import breaks
from tests.mutants.mutate_calls import Action, MutatedCalls, nothing


def _groups(nodes: Sequence[BoundNode]) -> list[Sequence[BoundNode]]:
    return [some for some in groups_of(nodes) if len(some) > 1]


@breaks("LCH-6", "A group ends with its last node but one.", CPU)
class GroupEndsTooEarly(MutatedCalls):
    """The kernel stores its sum and forgets what was to be added."""

    def compile(self, nodes: Sequence[BoundNode], stream: Stream) -> BaseProgram:
        kept = []
        for some in groups_of(nodes):
            kept += [replace(n, group=None) for n in some[: len(some) - (len(some) > 1)]]
        return super().compile(kept, stream)


@breaks("LCH-6", "A group clears its result before it reads its operands.", CPU)
class GroupClearsFirst(MutatedCalls):
    """It adds up in place, from zero."""

    def before(self, nodes: Sequence[BoundNode], stream: Stream) -> Action:
        outs = [bind_host(some[-1].output) for some in _groups(nodes)]
        reads = [o for some in _groups(nodes) for o in some[-1].inputs]
        if not any(o == some[-1].output for some in _groups(nodes) for o in reads):
            return nothing

        def clear() -> None:
            for out in outs:
                out.fill(0)

        return clear


@breaks("LCH-6", "A group uses its first operand as scratch.", CPU)
class GroupScratchInOperand(MutatedCalls):
    """What stays inside is put where there is room."""

    def after(self, nodes: Sequence[BoundNode], stream: Stream) -> Action:
        firsts = [bind_host(some[0].inputs[-1]) for some in _groups(nodes)]

        def clear() -> None:
            for array in firsts:
                if array.flags.writeable:
                    array.fill(1)

        return clear


@breaks("LCH-6", "A pattern is declared, and its groups are refused.", CPU)
class GroupIsRefused(MutatedCalls):
    """The kernel does not exist on this version."""

    def compile(self, nodes: Sequence[BoundNode], stream: Stream) -> BaseProgram:
        if _groups(nodes):
            raise UsageError("cannot compile a group", where=nodes[0].label)
        return super().compile(nodes, stream)


@breaks("LCH-6", "A pattern is declared that nobody knows.", CPU, fusions=frozenset({"mul+div"}))
class UnknownPattern(MutatedCalls):
    """A name of its own."""


@breaks(
    "LCH-6",
    "A pattern that is not declared has neighbours.",
    CPU,
    neighbours=frozenset({"rope, mul+div"}),
)
class UnknownNeighbour(MutatedCalls):
    """Memory is kept for what is never there."""
