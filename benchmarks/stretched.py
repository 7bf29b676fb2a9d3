"""Memory of a concurrent plan the way ggml takes it: lives stretched over the concurrent region.

In llama.cpp (#16991) the nodes of concurrent branches are interleaved before memory is planned, so
that whatever is touched between a fork and its join lives until the join; beyond that memory is
planned as if everything ran in one order. A region is what lies between two nodes that everything
before or after them is ordered with.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence

from ggsched.passes.memory.packing import MemoryBlock, pack
from ggsched.passes.pipeline import Schedule


def stretched_nbytes(schedule: Schedule, device: int, overwrites: Mapping[int, int]) -> int:
    """Return the bytes that the intermediate results of a device need.

    Args:
        schedule: With several streams.
        device: The device.
        overwrites: Which values take over the bytes of which others, as in ``Memory``.
    """
    cuts, end = _cuts(schedule), max(schedule.live.node_step) + len(schedule.splits.transfers)

    def first(step: int) -> int:
        k = bisect_right(cuts, step)
        return step if k and cuts[k - 1] == step else cuts[k - 1] + 1 if k else 0

    def last(step: int) -> int:
        k = bisect_left(cuts, step)
        return step if k < len(cuts) and cuts[k] == step else cuts[k] - 1 if k < len(cuts) else end

    blocks = _blocks(schedule, device, overwrites)
    return pack([MemoryBlock(first(b.birth), last(b.death), b.nbytes) for b in blocks])[1]


def unshared_nbytes(schedule: Schedule, device: int) -> int:
    """Return the bytes that they need if none are shared."""
    return sum(block.nbytes for block in _blocks(schedule, device, {}))


def _blocks(schedule: Schedule, device: int, overwrites: Mapping[int, int]) -> list[MemoryBlock]:
    """Return the lives of the values of a device's arena, with those that take over their bytes."""
    lives, alignment = schedule.live.lives, schedule.topology.devices[device].alignment
    blocks: dict[int, MemoryBlock] = {}
    root: dict[int, int] = {}
    for v in schedule.splits.values:
        if v.device != device or v.bound or v.kind not in ("home", "replica"):
            continue
        taken = overwrites.get(v.id)
        if taken is None:
            root[v.id] = v.id
            blocks[v.id] = MemoryBlock(*lives[v.id], -(-v.nbytes // alignment) * alignment)
        else:
            root[v.id] = base = root[taken]
            blocks[base] = blocks[base]._replace(death=lives[v.id].death)
    return list(blocks.values())


def _cuts(schedule: Schedule) -> list[int]:
    """Return the steps of nodes with which everything before and after them is ordered."""
    lanes, live, visibility = schedule.order.lanes, schedule.live, schedule.visibility
    assert visibility is not None, "with several streams"
    lane_of = {}
    known = {}
    for node, bound in zip(schedule.graph.nodes, schedule.splits.bindings, strict=True):
        value, step = bound[-1], live.node_step[node.id]
        lane_of[step] = lanes.of_stream[schedule.streams.of_node[node.id]][0]
        if live.lives[value].birth == step:
            known[step] = visibility.first[value]
    steps = sorted(lane_of)
    waits_for_all = _waiting_for_all(steps, lane_of, known, lanes.count)
    least = [1 << 60] * lanes.count  # of each lane, what all later nodes of other lanes know
    cuts = []
    for step in reversed(steps):
        if step in waits_for_all and least[lane_of[step]] >= step:
            cuts.append(step)
        for lane, last in enumerate(known.get(step, ())):
            if lane != lane_of[step]:
                least[lane] = min(least[lane], last)
    return cuts[::-1]


def _waiting_for_all(
    steps: Sequence[int],
    lane_of: dict[int, int],
    known: dict[int, tuple[int, ...]],
    count: int,
) -> set[int]:
    last = [-1] * count
    found = set()
    for step in steps:
        seen = known.get(step)
        if seen is not None and all(
            at <= seen[lane] for lane, at in enumerate(last) if lane != lane_of[step]
        ):
            found.add(step)
        last[lane_of[step]] = step
    return found
