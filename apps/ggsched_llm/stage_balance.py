"""Divides contiguous layers among devices, so that the slowest stage is as fast as can be.

In a pipeline each micro-batch passes all stages, and once it is full one micro-batch leaves in the
time of the slowest stage. Which contiguous split makes that smallest is the linear partition
problem. It is solved exactly by dynamic programming, with a cost for each pair of layer and stage,
since stages may be devices of different kinds, and with a limit of memory for each stage.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf

from ggsched.units import seconds_text
from ggsched_llm.layer_costs import LayerCosts
from ggsched_llm.offload import span_text


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


def balanced_layers(
    costs: LayerCosts, n_offloaded: int, n_cpu_moe: int, limits: Sequence[int | None] = ()
) -> LayerSplit | None:
    """Return the split of the last layers whose slowest stage is fastest, or None if none fits.

    Args:
        n_offloaded: How many layers are divided.
        n_cpu_moe: Leading blocks whose experts stay on the host device.
        limits: Bytes of weights and caches that each stage has room for, None for any number.
    """
    first = len(costs.nbytes) - n_offloaded
    seconds = [costs.seconds_on(s, n_cpu_moe)[first:] for s in costs.stages]
    return split_layers(seconds, costs.nbytes_with(n_cpu_moe)[first:], limits)


def split_reasons(
    costs: LayerCosts,
    counts: Sequence[int],
    n_cpu_moe: int,
    limits: Sequence[int | None],
    n_tokens: int,
) -> tuple[str, ...]:
    """Return what each stage takes, and what it would take with a neighbour's nearest layer.

    Args:
        costs: Of the layers, for one micro-batch.
        counts: Layers of each stage.
        n_cpu_moe: As for ``balanced_layers``.
        limits: As for ``balanced_layers``.
        n_tokens: Tokens of the micro-batch.
    """
    last, nbytes = len(costs.nbytes) - 1, costs.nbytes_with(n_cpu_moe)
    ends = [last + 1 - sum(counts) + end for end in accumulate(counts)]
    spans = [range(end - count, end) for end, count in zip(ends, counts, strict=True)]

    def text(stage: int, *more: int) -> str:
        own = (*spans[stage], *more)
        limit = limits[stage] if limits else None
        if limit is not None and sum(nbytes[i] for i in own) > limit:
            return "has no room"
        seconds = costs.seconds_on(costs.stages[stage], n_cpu_moe)
        took = seconds_text(sum(seconds[i] for i in own))
        return f"would take {took}" if more else took

    reasons = []
    for k, own in enumerate(spans):
        said = f"{text(k)} predicted for {n_tokens} tokens"
        if k and own:
            said += f"; with {span_text(own[0], own[0], last)} stage {k} {text(k - 1, own[0])}"
        if own and own[-1] < last:
            behind = own[-1] + 1
            said += f"; with {span_text(behind, behind, last)} this one {text(k, behind)}"
        reasons.append(said)
    return tuple(reasons)
