"""Which micro-batches a session runs for a prompt and so many tokens, before it runs any."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from ggsched.errors import UsageError
from ggsched.ir.graph import Graph
from ggsched.models.graph import build_model_graph
from ggsched.models.spec import ModelSpec

_BUCKETS: Final = (32, 256, 512, 1024)
_STEP: Final = 512


class BatchSize(NamedTuple):
    """What the graph of a micro-batch depends on.

    Attributes:
        n_tokens: Tokens that enter.
        n_kv: Rows of the KV cache that attention looks at.
        n_out: Tokens that get logits.
    """

    n_tokens: int
    n_kv: int
    n_out: int

    def graph(self, spec: ModelSpec, n_ctx: int) -> Graph:
        """Return the graph of such a micro-batch, with a KV cache of ``n_ctx`` rows."""
        return build_model_graph(
            spec, n_tokens=self.n_tokens, n_kv=self.n_kv, n_out=self.n_out, n_ctx=n_ctx
        )


def trajectory(
    n_prompt: int, n_predict: int, *, n_ctx: int, step: int, all_logits: bool = False
) -> Iterator[BatchSize]:
    """Yield the micro-batches of a prompt and the decoding steps that follow, in order.

    Args:
        n_prompt: Tokens of the prompt; at least one.
        n_predict: Tokens to generate at most; the last one is not fed back.
        n_ctx: Rows of the KV cache; generation ends when it is full.
        step: Tokens of one micro-batch at most.
        all_logits: Whether each token of the prompt gets logits, as for ``run --logits``.

    Raises:
        UsageError: a prompt that is empty or that does not fit the context.
    """
    if not 1 <= n_prompt <= n_ctx:
        raise UsageError(
            f"a prompt of {n_prompt} tokens", why=f"it has 1 to {n_ctx}, which the context holds"
        )
    for start in range(0, n_prompt, step):
        n = min(step, n_prompt - start)
        yield BatchSize(n, kv_bucket(start + n, n_ctx), n if all_logits else 1)
    for past in range(n_prompt, min(n_ctx, n_prompt + n_predict - 1)):
        yield BatchSize(1, kv_bucket(past + 1, n_ctx), 1)


def kv_bucket(n_used: int, n_ctx: int) -> int:
    """Return the rows of the cache that attention looks at: ``n_used``, rounded up.

    To 32, 256, 512 or 1024, then to multiples of 512, and of an eighth of the power of two above
    from 4096 on. So a growing sequence seldom needs a new plan, which takes as long as dozens of
    tokens on a fast device, and looks at 256 rows or at less than twice what it uses.
    """
    if n_used <= _BUCKETS[-1]:
        return min(next(rows for rows in _BUCKETS if n_used <= rows), n_ctx)
    step = max(_STEP, (1 << (n_used - 1).bit_length()) // 8)
    return min(-(-n_used // step) * step, n_ctx)
