"""Liveness: from when until when each value's bytes matter, in steps of the lowered program.

Steps count transfers and nodes in the order in which the plan enqueues them: the transfers before
a split, then its nodes; the read-backs come last. The nodes of a group act as one step, that of the
last of them: what they read lives until then, and what they compute lives from where each of them
stands in the program, so that every life holds in program order too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ggsched.ir.graph import Graph
from ggsched.plan.fusions import Fusion
from ggsched.plan.memory import Life
from ggsched.plan.splits import Splits


@dataclass(frozen=True, slots=True)
class Liveness:
    """Steps of the lowered program, and lives measured in them.

    Attributes:
        node_step: Step of each node; that of the last node for all nodes of a group.
        lives: Life of each value. Values bound to weights and states and values in host slots
            live from the first step to the last.
        held: For the last node of each group the values that the others read, whose bytes its
            result must not take over.
    """

    node_step: tuple[int, ...]
    transfer_step: tuple[int, ...]
    lives: tuple[Life, ...]
    held: Mapping[int, frozenset[int]] = field(default_factory=dict)


def liveness(graph: Graph, splits: Splits, fusions: Sequence[Fusion] = ()) -> Liveness:
    """Return when each value is born and when it dies."""
    node_step = [0] * len(graph.nodes)
    transfer_step = [0] * len(splits.transfers)
    count = len(splits.values)
    birth, death = [-1] * count, [-1] * count
    step, next_transfer = 0, 0
    transfers, bindings = splits.transfers, splits.bindings
    ends = [(s.first, s.end) for s in splits.splits] + [(0, 0)]
    for split_id, (first, end) in enumerate(ends):
        while next_transfer < len(transfers) and transfers[next_transfer].before == split_id:
            t = transfers[next_transfer]
            transfer_step[next_transfer] = step
            for v in (t.src, t.dst) if t.rows is None else (t.src, t.rows.ids, t.dst):
                if birth[v] < 0:
                    birth[v] = step
                death[v] = step
            step += 1
            next_transfer += 1
        for i in range(first, end):
            node_step[i] = step
            for v in bindings[i]:
                if birth[v] < 0:
                    birth[v] = step
                death[v] = step
            step += 1
    for f in fusions:
        last = node_step[f.nodes[-1]]
        for n in f.nodes:
            node_step[n] = last
            for v in bindings[n]:
                death[v] = max(death[v], last)
    lives = _lives(splits, birth, death, Life(0, max(0, step - 1)))
    held = _held_values(splits, fusions)
    return Liveness(tuple(node_step), tuple(transfer_step), lives, held)


def _lives(
    splits: Splits, birth: Sequence[int], death: Sequence[int], whole: Life
) -> tuple[Life, ...]:
    lives = list(map(Life, birth, death))
    for v in splits.values:
        if v.bound or v.kind in ("input", "output"):
            lives[v.id] = whole
    return tuple(lives)


def _held_values(splits: Splits, fusions: Sequence[Fusion]) -> dict[int, frozenset[int]]:
    """Return for the last node of each group the values that the others read from outside.

    The group's result must not take over their bytes.
    """
    bindings = splits.bindings
    held = {}
    for f in fusions:
        earlier = f.nodes[:-1]
        inside = {bindings[n][-1] for n in earlier}
        held[f.nodes[-1]] = frozenset(v for n in earlier for v in bindings[n][:-1]) - inside
    return held
