"""From a model to the graph of one micro-batch.

Inputs that the host sets before each run:

    tokens       (n_tokens,) i32       ids
    positions    (n_tokens,) i32       position of each token in its sequence
    kv_rows      (n_tokens,) i32       row of the KV cache that each token writes, all different
    bounds       (n_tokens, 2) i32     first cache row that each token sees, and the end of them
    bounds_window (n_tokens, 2) i32    the same for windowed layers
    out_rows     (n_out,) i32          which of the tokens get logits (not if there is just one)

    slots        (n_tokens,) i32       state of recurrent blocks that each token belongs to

States, zero at first: ``blk.N.k_cache`` and ``blk.N.v_cache``, (n_ctx, n_head_kv * head_dim).
Recurrent blocks have ``blk.N.conv_state`` and ``blk.N.linear_state`` instead, a row for each slot.
Output: logits (n_out, n_vocab) f32. A graph that chooses has in their place the index of the
largest, (n_out, 1) i32, the first of several and NaN only where nothing else is, and the logit that
it has, (n_out, 1, 1) f32. If it keeps its choice, ``tokens`` is no input, but a state that each run
takes its token from and leaves the next one in: ``next_token``, (1,) i32. With a head that predicts
further tokens there are states and graphs more, see ``ggsched_llm.prediction_head``.
"""

from collections.abc import Iterator
from typing import Final

from ggsched.errors import UsageError
from ggsched.ir.dtype import F32, I32, KV_DTYPES, DType
from ggsched.ir.graph import Graph
from ggsched_llm.arch import ARCHITECTURES
from ggsched_llm.hparams import HParams
from ggsched_llm.layers import BatchShape, ModelBuilder
from ggsched_llm.prediction_head import draft_graph, fill_head, head_needs
from ggsched_llm.spec import ModelSpec, WeightNeed
from ggsched_llm.token_inputs import NEXT_TOKEN

CHOOSING_OPS: Final = (("top_k", F32), ("get_rows", F32))
"""What a graph that chooses has, besides what others have, and the types of first operands."""

KEEPING_OPS: Final = (("cpy", I32),)
"""What a graph that keeps its choice has besides."""


def model_needs(hp: HParams) -> Iterator[WeightNeed]:
    """Yield the weights that a model of these hyperparameters needs or can use."""
    yield WeightNeed("token_embd.weight", (hp.n_vocab, hp.n_embd), matrix=True)
    yield WeightNeed("output_norm.weight", (hp.n_embd,))
    # Without it the embedding serves as the output matrix as well.
    yield WeightNeed("output.weight", (hp.n_vocab, hp.n_embd), optional=True, matrix=True)
    yield from ARCHITECTURES[hp.arch].needs(hp)
    if hp.predicts:
        yield from head_needs(hp)


def build_model_graph(
    model: ModelSpec,
    *,
    n_tokens: int,
    n_kv: int,
    n_out: int,
    n_ctx: int,
    kv_dtype: DType | None = None,
    chooses: bool = False,
    keeps: bool = False,
) -> Graph:
    """Build the graph of one micro-batch; see the module for inputs, states and output.

    Args:
        model: What to build.
        n_tokens: Tokens in the micro-batch.
        n_kv: Leading rows of the KV cache that attention looks at: the length of the cache
            rounded up, so that one plan serves while the cache grows.
        n_out: Tokens that get logits; 0 for the graph that drafts ``n_tokens`` tokens with the
            model's head.
        n_ctx: Rows of the KV cache.
        kv_dtype: Type of the KV cache, f32 or f16; None for the model's.
        chooses: Whether the device looks for the largest logits, which stay there.
        keeps: Whether it keeps what it chose for the next run. Only of one token.

    Raises:
        UsageError: sizes that make no sense together.
    """
    batch = BatchShape(n_tokens, n_kv, n_out, n_ctx, kv_dtype or model.cache_dtype)
    _check(batch, least=0 if model.hparams.predicts else 1)
    if not n_out:
        return draft_graph(model, batch)
    if keeps and not (chooses and n_tokens == 1):
        what = "only a graph that chooses, for one token, can keep its choice"
        raise UsageError(what, where="build_model_graph")
    hp = model.hparams
    kind = " next" if keeps else " top" if chooses else ""
    name = f"{hp.name or hp.arch}{kind} T{n_tokens} N{n_kv}"
    kit = ModelBuilder(model, batch, name, token_in=NEXT_TOKEN if keeps else "")
    x = kit.embed()
    for layer in range(hp.n_layer):
        x = ARCHITECTURES[hp.arch].block(kit, x, layer)
    normed = kit.norm(x, "output_norm", "result_norm")
    if hp.predicts:
        fill_head(kit, normed)
        if kit.out_rows is not None:
            normed = kit.g.get_rows(normed, kit.out_rows)
    logits = kit.logits(normed)
    if not chooses:
        return kit.g.build(logits)
    top = kit.g.top_k(logits, 1, name="result_top")
    table = kit.g.reshape(logits, *logits.shape, 1)
    kept = top
    if keeps:  # in front of the lookup, so that there is one order for all of it
        kept = kit.g.cpy(kit.g.reshape(top, n_tokens), kit.tokens, name="next_token_set")
    ids = kit.g.reshape(kept, *top.shape)
    return kit.g.build(top, kit.g.get_rows(table, ids, name="result_largest"))


def _check(batch: BatchShape, least: int) -> None:
    if not 1 <= batch.n_tokens <= batch.n_kv <= batch.n_ctx:
        raise UsageError(
            f"n_tokens={batch.n_tokens}, n_kv={batch.n_kv}, n_ctx={batch.n_ctx}",
            where="build_model_graph",
            why="needs 1 <= n_tokens <= n_kv <= n_ctx",
            hint="the tokens of the micro-batch are in the cache too",
        )
    if not least <= batch.n_out <= batch.n_tokens:
        what = f"n_out={batch.n_out} of n_tokens={batch.n_tokens}"
        raise UsageError(
            what, where="build_model_graph", why=f"it must be from {least} to n_tokens"
        )
    if batch.kv_dtype not in KV_DTYPES:
        what = f"a KV cache of {batch.kv_dtype}"
        raise UsageError(what, where="build_model_graph", hint="use f32, f16, bf16 or q8_0")
