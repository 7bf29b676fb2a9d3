"""Rehearsal: the plans that a run of a session uses, one after the other, without running them."""

from collections.abc import Callable, Iterator, Sequence

from ggsched.errors import UsageError
from ggsched.ir.graph import Graph
from ggsched.models.micro_batches import MicroBatch, MicroBatches
from ggsched.plan.bundle import Plan

MakeGraph = Callable[[int, int, int], Graph]
"""Returns the graph of (tokens, tokens before them, tokens that get logits)."""


def rehearse(
    graph: MakeGraph,
    micro_batches: MicroBatches,
    n_prompt: int,
    n_predict: int,
    *,
    n_ctx: int,
    step: int,
    together: int,
    all_logits: bool = False,
) -> Iterator[Plan]:
    """Yield the plans of a prompt and of the decoding steps that follow, in order of their use.

    Args:
        graph: Makes graphs of the model.
        micro_batches: Decides which micro-batches run as one graph.
        n_prompt: Tokens of the prompt; at least one.
        n_predict: Tokens to generate at most; the last one is not fed back.
        n_ctx: Rows of the KV cache; generation ends when it is full.
        step: Tokens of one micro-batch at most.
        together: Micro-batches of one batch, which may run as one graph.
        all_logits: Whether each token of the prompt gets logits.

    Raises:
        UsageError: a prompt that is empty or that does not fit the context.
        PlanError: a graph cannot be placed.
    """
    if not 1 <= n_prompt <= n_ctx:
        raise UsageError(
            f"a prompt of {n_prompt} tokens", why=f"it has 1 to {n_ctx}, which the context holds"
        )
    parts = []
    for start in range(0, n_prompt, step):
        n = min(step, n_prompt - start)
        is_last = start + n == n_prompt
        made = graph(n, start, n if all_logits else 1)
        parts.append(MicroBatch(made, all_logits or is_last))
    for first in range(0, len(parts), together):
        yield from _plans(micro_batches, parts[first : first + together])
    for past in range(n_prompt, min(n_ctx, n_prompt + n_predict - 1)):
        yield from _plans(micro_batches, [MicroBatch(graph(1, past, 1), True)])


def _plans(micro_batches: MicroBatches, parts: Sequence[MicroBatch]) -> Iterator[Plan]:
    if micro_batches.pays(parts):
        yield micro_batches.plan(parts)
        return
    for part in parts:
        yield micro_batches.scheduler.plan(part.graph, micro_batches.constraints)
