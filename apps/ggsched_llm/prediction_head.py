"""The head of a file that predicts a further token: a block behind the last one (``nextn``).

At position i it takes what the model had in front of its output matrix at i-1, h, and the
embedding of the token of i, and predicts the token of i+1:

    x = eh_proj [norm(embedding) ; norm(h)]
    h' = norm(block(x)),  logits = output h'

h is behind the model's last norm, h' behind the head's own, and h' takes the place of h where the
head is applied again, for one token more. These are equations 21 to 23 of the DeepSeek-V3 report
(arXiv 2412.19437), which writes h first; the published weights have the embedding first, as in vLLM
(``vllm/model_executor/models/deepseek_mtp.py``, and ``glm4_moe_mtp.py``, which is the same) and in
llama.cpp (``graph_mtp`` of ``src/models/qwen35moe.cpp``), whose norms of h and h' these are. vLLM
takes h' from in front of the head's norm for GLM-4.5 and DeepSeek-V3, and from behind it for
Qwen3-Next. GLM-4.5 and DeepSeek-V3 differ in the block alone. Of several heads the first is used.

The first token has no h, so its row of the head's caches is never looked at. Which h belongs to a
row of the cache is kept in ``blk.N.h_cache``, (n_ctx + 1, n_embd), one row further down: row i has
the h of i-1. Each run of the model fills the head's caches, for which attention and network of the
head are not needed; a graph that drafts overwrites rows that the model has not come to.
"""

from collections.abc import Iterator
from dataclasses import replace

from ggsched.ir.graph import Graph
from ggsched.ir.tensor import Tensor
from ggsched_llm.arch import ARCHITECTURES
from ggsched_llm.hparams import HParams
from ggsched_llm.layers import BatchShape, ModelBuilder
from ggsched_llm.spec import ModelSpec, WeightNeed, linear_needs


def head_needs(hp: HParams) -> Iterator[WeightNeed]:
    """Yield the weights of the head; without some it shares those of the model."""
    blk, matrix = f"blk.{hp.n_layer}.", (hp.n_vocab, hp.n_embd)
    for need in ARCHITECTURES[hp.arch].needs(replace(hp, n_layer=hp.n_layer + 1)):
        if need.name.startswith(blk):
            yield need
    yield from linear_needs(f"{blk}nextn.eh_proj", hp.n_embd, 2 * hp.n_embd, bias=False)
    for name in ("enorm", "hnorm", "shared_head_norm"):
        optional = name == "shared_head_norm"
        yield WeightNeed(f"{blk}nextn.{name}.weight", (hp.n_embd,), optional=optional)
    for name in ("embed_tokens", "shared_head_head"):
        yield WeightNeed(f"{blk}nextn.{name}.weight", matrix, optional=True, matrix=True)


def fill_head(kit: ModelBuilder, normed: Tensor) -> None:
    """Keep hidden states (T, n_embd) behind the last norm, and fill the head's caches."""
    g, hp, rows = kit.g, kit.hp, kit.batch.n_ctx
    remember, blk = ARCHITECTURES[hp.arch].remember, f"blk.{hp.n_layer}"
    assert remember is not None  # the model was loaded with its head
    with g.scope(blk):
        kept = g.rows(_hidden(kit), 1, rows + 1)
        g.set_rows(kept, normed, kit.kv_rows, name="h_cache_set")
        x = _joined(kit, _hidden_before(kit, kit.kv_rows), kit.tokens)
        remember(kit, kit.norm(x, f"{blk}.attn_norm", "attn_norm"), hp.n_layer)


def draft_graph(model: ModelSpec, batch: BatchShape) -> Graph:
    """Build the graph that applies the head once for each row of a batch, each to its own output.

    It has the inputs of a micro-batch, of whose tokens the first one counts. Its outputs are, for
    each row, the token behind it and the probability that the head gives it, (1, 1) i32 and
    (1, 1, 1) f32.
    """
    hp, name = model.hparams, model.hparams.name or model.hparams.arch
    kit = ModelBuilder(model, batch, f"{name} draft T{batch.n_tokens} N{batch.n_kv}")
    g, blk, outputs = kit.g, f"blk.{hp.n_layer}", list[Tensor]()
    places = kit.positions, kit.kv_rows, kit.bounds
    token, hidden = g.rows(kit.tokens, 0, 1), _hidden_before(kit, g.rows(kit.kv_rows, 0, 1))
    own_norm = f"{blk}.nextn.shared_head_norm"
    for i in range(batch.n_tokens):
        kit.positions, kit.kv_rows, kit.bounds = (g.rows(t, i, i + 1) for t in places)
        with g.scope(blk):
            x = _joined(kit, hidden, token)
        x = ARCHITECTURES[hp.arch].block(kit, x, hp.n_layer)
        norm = own_norm if kit.has(f"{own_norm}.weight") else "output_norm"
        hidden = kit.norm(x, norm, "result_norm")
        logits = kit.logits(hidden, f"{blk}.nextn.shared_head_head")
        top = g.top_k(logits, 1, name="result_top")
        shares = g.reshape(g.soft_max(logits), *logits.shape, 1)
        outputs += top, g.get_rows(shares, top, name="result_probability")
        token = g.reshape(top, 1)
    return g.build(*outputs)


def _hidden(kit: ModelBuilder) -> Tensor:
    hp, rows = kit.hp, kit.batch.n_ctx + 1
    dtype = kit.spec.hidden_dtype
    return kit.state(f"blk.{hp.n_layer}.h_cache", rows, hp.n_embd, dtype)


def _hidden_before(kit: ModelBuilder, rows: Tensor) -> Tensor:
    """Return the hidden states of the tokens in front of those of some rows of the cache."""
    kept = kit.g.rows(_hidden(kit), 0, kit.batch.n_ctx)
    return kit.g.get_rows(kept, rows, name="h_before")


def _joined(kit: ModelBuilder, hidden: Tensor, tokens: Tensor) -> Tensor:
    """Return the input (T, n_embd) of the head's block."""
    g, part = kit.g, f"blk.{kit.hp.n_layer}.nextn."
    own = f"{part}embed_tokens.weight"
    table = kit.weight(own if kit.has(own) else "token_embd.weight")
    embedded = kit.norm(g.get_rows(table, tokens, name="nextn_embd"), f"{part}enorm", "enorm")
    both = g.concat(embedded, kit.norm(hidden, f"{part}hnorm", "hnorm"), axis=1, name="eh")
    return kit.linear(both, f"{part}eh_proj", "eh_proj")
