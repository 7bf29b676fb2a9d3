"""Calls: the nodes of a sharded graph before they are put in order."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ggsched.ir.dtype import DType
from ggsched.ir.ops import Params
from ggsched.ir.tensor import Role
from ggsched.passes.split import READS_ONCE
from ggsched_shard.layout import Window

Key = tuple[str, int, int]
"""A storage of the new graph: what it is, its number, and its participant."""

HEAVY: Final = ("mul_mat", "mul_mat_id", "attention")
"""Ops that begin the part of a step which a participant does alone."""


@dataclass(frozen=True, slots=True)
class Ref:
    """An operand: a window on a storage."""

    key: Key
    window: Window


@dataclass(frozen=True, slots=True)
class Leaf:
    """A storage that no node makes."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    role: Role


@dataclass(frozen=True, slots=True)
class Call:
    """A node to be.

    Attributes:
        op: Name of the op.
        params: Of the node.
        label: Without the participant.
        inputs: Operands.
        out: The storage that is made or written.
        part: The participant that runs it.
        makes: Whether the storage is new; else the node writes through an operand.
        is_heavy: Whether it computes a part of a product, see ``HEAVY``.
    """

    op: str
    params: Params
    label: str
    inputs: tuple[Ref, ...]
    out: Key
    part: int
    makes: bool
    is_heavy: bool = False


def needed_calls(
    calls: Sequence[Call], outputs: Iterable[Key], leaves: Mapping[Key, Leaf]
) -> list[Call]:
    """Return the calls whose results reach an output or a state, in order."""
    wanted = set(outputs)
    kept: list[Call] = []
    for call in reversed(calls):
        leaf = leaves.get(call.out)
        if call.out in wanted or (leaf is not None and leaf.role is Role.STATE):
            kept.append(call)
            wanted.update(ref.key for ref in call.inputs)
    kept.reverse()
    return kept


def ordered_calls(calls: Sequence[Call], peers: Collection[int] = ()) -> list[Call]:
    """Return the calls in the order in which participants should be given them.

    In turns: what one participant does until it needs something of another, then the next
    participant. What is received is taken up in a turn of its own, which ends before the next
    product: a copy between devices may be enqueued behind the work of the one that holds the bytes,
    and would come after that product otherwise.

    Summands that are read where they lie need no copy, and whoever reads them waits for all
    participants alike. So the sum, the norm behind it and its products are one turn, up to the
    next summand.

    Args:
        calls: In an order in which one participant could run them.
        peers: Participants that read each other's results where they lie.
    """
    reads = Counter((key, c.part) for c in calls for key in {r.key for r in c.inputs})
    made = {call.out for call in calls}
    sent = {key for key, part in reads if key[2] not in (part, ANY)}
    turn_of: dict[Key, int] = {}  # of the latest write
    read: dict[Key, int] = {}  # latest turn in which another participant reads
    now: dict[int, int] = {}
    apart: dict[int, int] = {}  # latest turn of a participant that ends before a product
    turns: list[int] = []

    def is_apart(call: Call, key: Key) -> bool:
        """Whether an operand of another participant is copied, or nobody else makes one like it."""
        kind, number, owner = key
        is_copied = call.op not in READS_ONCE or reads[key, call.part] > 1
        is_alone = kind == "t" and (kind, number, call.part) not in made
        return is_copied or is_alone or not {owner, call.part} <= {*peers}

    for call in calls:
        turn = now.get(call.part, 0)
        received = [ref.key for ref in call.inputs if ref.key[2] not in (call.part, ANY)]
        for ref in call.inputs:
            if received and ref.key in sent and ref.key in turn_of:
                turn = max(turn, (turn_of[ref.key] + 1) | 1)
        if not call.makes:
            turn = max(turn, read.get(call.out, -1) + 1)
        if call.is_heavy and apart.get(call.part) == turn:
            turn = (turn | 1) + 1
        for key in received:
            read[key] = max(turn, read.get(key, -1))
        if any(is_apart(call, key) for key in received) or (call.out in sent and not call.is_heavy):
            apart[call.part] = turn
        now[call.part] = turn_of[call.out] = turn
        turns.append(turn)
    order = sorted(range(len(calls)), key=lambda i: (turns[i], calls[i].part, i))
    return [calls[i] for i in order]


ANY: Final = -1
"""In the place of a participant: an input, which the host gives to every device."""
