"""Schedules: in which order each device of a pipeline takes up its pieces of work, as data.

A joined graph runs part after part; on a device, which keeps program order, that is the schedule
that pipelines over micro-batches use for inference (the forward half of GPipe, Huang et al. 2019).
Another order is a list of actions for each device; several stages on one device, taken up in turns,
are the interleaved stages of Megatron-LM (Narayanan et al. 2021). A schedule changes the order of
nodes and nothing else, and only where nothing depends on it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ggsched.errors import GraphError
from ggsched.ir.graph import Graph, Node, verify_graph
from ggsched.ir.join import Joined


@dataclass(frozen=True, slots=True)
class Action:
    """The nodes of one stage in one part."""

    part: int
    stage: int


Schedule = Sequence[Sequence[Action]]
"""What each device does, in order."""


def rounds(parts: int, stages_of: Sequence[Sequence[int]], size: int) -> list[list[Action]]:
    """Return the schedule in which a device with several stages takes up some parts at a time.

    Args:
        parts: Number of parts.
        stages_of: The stages of each device, in order.
        size: Parts that go through a stage before the next stage of that device has its turn;
            the number of devices fills the pipeline.
    """
    return [
        [
            Action(k, s)
            for first in range(0, parts, size)
            for s in stages
            for k in range(first, min(first + size, parts))
        ]
        for stages in stages_of
    ]


def apply_schedule(joined: Joined, stage_of: Sequence[int], schedule: Schedule) -> Joined:
    """Return the joined graph with its nodes in the order of a schedule.

    Args:
        joined: Several parts as one graph.
        stage_of: The stage of each node of the joined graph.
        schedule: What each device does; every piece of work once.

    Raises:
        GraphError: a piece of work that is missing or there twice, an order in which every device
            waits for another, or one that changes what the graph means.
    """
    graph = joined.graph
    pieces = _pieces(joined, stage_of)
    _check_complete(pieces, schedule)
    before = predecessors(graph, graph.nodes)
    order = _order(pieces, schedule, before)
    position = {n: i for i, n in enumerate(order)}
    for n, earlier in enumerate(before):
        for e in earlier:
            if position[e] > position[n]:
                raise GraphError(
                    f"{graph.label(graph.nodes[n])} would come before "
                    f"{graph.label(graph.nodes[e])}, on which it depends",
                    where="schedule",
                )
    nodes = tuple(replace(graph.nodes[n], id=i) for i, n in enumerate(order))
    again = Graph(graph.name, graph.tensors, nodes, graph.outputs, graph.constants)
    verify_graph(again)
    part_of = tuple(joined.part_of[n] for n in order)
    return replace(joined, graph=again, part_of=part_of)


def _pieces(joined: Joined, stage_of: Sequence[int]) -> dict[Action, list[int]]:
    pieces: dict[Action, list[int]] = {}
    for n, (part, stage) in enumerate(zip(joined.part_of, stage_of, strict=True)):
        pieces.setdefault(Action(part, stage), []).append(n)
    return pieces


def _check_complete(pieces: dict[Action, list[int]], schedule: Schedule) -> None:
    seen: set[Action] = set()
    for actions in schedule:
        for action in actions:
            if action in seen:
                raise GraphError(f"{action} is listed twice", where="schedule")
            seen.add(action)
    missing = sorted(pieces.keys() - seen, key=lambda a: (a.part, a.stage))
    if missing:
        raise GraphError(f"{missing[0]} is missing", where="schedule")


def _order(
    pieces: dict[Action, list[int]], schedule: Schedule, before: Sequence[Sequence[int]]
) -> list[int]:
    """Return the nodes in an order that all devices' lists agree with."""
    done: set[int] = set()
    order: list[int] = []
    turn = [0] * len(schedule)
    moved = True
    while moved:
        moved = False
        for device, actions in enumerate(schedule):
            if turn[device] == len(actions):
                continue
            nodes = pieces.get(actions[turn[device]], [])
            own = set(nodes)
            if all(e in done or e in own for n in nodes for e in before[n]):
                order += nodes
                done |= own
                turn[device] += 1
                moved = True
    stuck = [f"{a[t]}" for a, t in zip(schedule, turn, strict=True) if t < len(a)]
    if stuck:
        raise GraphError(
            f"every device waits for another: {', '.join(stuck)}",
            where="schedule",
            hint="a piece of work stands before one that it depends on",
        )
    return order


def predecessors(graph: Graph, nodes: Sequence[Node]) -> list[list[int]]:
    """Return for each of some nodes in order the latest of them that it must follow.

    Reads of one storage are independent; a write follows all that touched it.
    """
    writer: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    before: list[list[int]] = []
    for i, node in enumerate(nodes):
        found: set[int] = set()
        for tid, mode in zip(node.tensors, node.modes, strict=True):
            storage = graph.tensors[tid].storage
            if storage in writer:
                found.add(writer[storage])
            if mode == "r":
                readers.setdefault(storage, []).append(i)
        written = graph.tensors[node.output].storage
        found.update(readers.pop(written, ()))
        writer[written] = i
        before.append(sorted(found - {i}))
    return before
