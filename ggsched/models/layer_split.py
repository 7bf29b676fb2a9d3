"""Contiguous layers to stages, so that the slowest stage is as fast as can be.

In a pipeline each micro-batch passes all stages, and once it is full one micro-batch leaves in the
time of the slowest stage. Which contiguous split makes that smallest is the linear partition
problem; solved exactly by dynamic programming, with a cost for each pair of layer and stage, since
stages may be devices of different kinds, and with a limit of memory for each stage.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf


@dataclass(frozen=True, slots=True)
class LayerSplit:
    """How many layers each stage gets, in order.

    Attributes:
        counts: Layers of each stage; a stage may be empty.
        slowest: Cost of the most expensive stage.
        total: Cost of all stages.
    """

    counts: tuple[int, ...]
    slowest: float
    total: float


def split_layers(
    costs: Sequence[Sequence[float]],
    nbytes: Sequence[int] = (),
    limits: Sequence[int | None] = (),
) -> LayerSplit | None:
    """Return the split with the cheapest slowest stage, or None where no split fits.

    Of several one is taken whose first stages are the best, and then the cheapest, for the layers
    that they have.

    Args:
        costs: By stage and layer, 0 or more.
        nbytes: Bytes of each layer; none count if not given.
        limits: Bytes that each stage has room for, None for any number.
    """
    stages, layers = len(costs), len(costs[0]) if costs else 0
    if not stages:
        return None
    sums = [[0.0, *accumulate(row)] for row in costs]
    sizes = [0, *accumulate(nbytes or [0] * layers)]
    room = [None] * stages if not limits else list(limits)
    # best[i]: the best (slowest, total) of the stages so far with the first i layers.
    best: list[tuple[float, float]] = [(0.0, 0.0)] + [(inf, inf)] * layers
    cuts: list[list[int]] = []
    for stage in range(stages):
        limit = room[stage]
        found: list[tuple[float, float]] = []
        cut: list[int] = []
        for end in range(layers + 1):
            choice, at = (inf, inf), 0
            for start in range(end + 1):
                if best[start][0] == inf:
                    continue
                if limit is not None and sizes[end] - sizes[start] > limit:
                    continue
                cost = sums[stage][end] - sums[stage][start]
                slowest, total = best[start]
                candidate = max(slowest, cost), total + cost
                if candidate < choice:
                    choice, at = candidate, start
            found.append(choice)
            cut.append(at)
        best = found
        cuts.append(cut)
    if best[layers][0] == inf:
        return None
    counts, end = [0] * stages, layers
    for stage in reversed(range(stages)):
        counts[stage] = end - cuts[stage][end]
        end = cuts[stage][end]
    return LayerSplit(tuple(counts), *best[layers])
