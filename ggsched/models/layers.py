"""The parts that all architectures are made of, written as nodes.

Shapes: T tokens of the micro-batch, H query heads, G key/value heads, D width of a head, N rows of
the KV cache that are looked at. Labels are llama.cpp's (``Qcur``, ``kq_soft_max``, ``kqv_out``).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import I32, DType
from ggsched.ir.ops import Param
from ggsched.ir.tensor import Tensor
from ggsched.models.hparams import HParams, RopeParams
from ggsched.models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class BatchShape:
    """Sizes of one micro-batch.

    Attributes:
        n_tokens: Tokens that enter.
        n_kv: Leading rows of the KV cache that attention looks at.
        n_out: Tokens that get logits.
        n_ctx: Rows of the KV cache.
        kv_dtype: Type of the KV cache, f32 or f16.
    """

    n_tokens: int
    n_kv: int
    n_out: int
    n_ctx: int
    kv_dtype: DType


class ModelBuilder:
    """A graph under construction, its inputs, and the parts to add to it."""

    def __init__(self, spec: ModelSpec, batch: BatchShape, name: str) -> None:
        """Start a graph with the inputs of a micro-batch."""
        g = GraphBuilder(name)
        self.g = g
        self.spec = spec
        self.hp: HParams = spec.hparams
        self.batch = batch
        self.tokens = g.input("tokens", (batch.n_tokens,), I32)
        self.positions = g.input("positions", (batch.n_tokens,), I32)
        self.kv_rows = g.input("kv_rows", (batch.n_tokens,), I32)
        mask_shape = (batch.n_tokens, batch.n_kv)
        self.mask = g.input("mask", mask_shape)
        self.mask_window = g.input("mask_window", mask_shape) if self.hp.window else self.mask
        # Of one token there is nothing to choose.
        self.out_rows = None
        if (batch.n_tokens, batch.n_out) != (1, 1):
            self.out_rows = g.input("out_rows", (batch.n_out,), I32)
        self._weights: dict[str, Tensor] = {}

    # --- weights --------------------------------------------------------------------------

    def has(self, name: str) -> bool:
        """Whether the model has a weight (an optional one)."""
        return name in self.spec.weights

    def weight(self, name: str) -> Tensor:
        """Return a weight's tensor, the same at each call."""
        if name not in self._weights:
            spec = self.spec.weights[name]
            self._weights[name] = self.g.weight(name, spec.shape, spec.dtype)
        return self._weights[name]

    # --- parts ----------------------------------------------------------------------------

    def embed(self) -> Tensor:
        """Look the tokens up, giving (T, n_embd)."""
        return self.g.get_rows(self.weight("token_embd.weight"), self.tokens, name="inp_embd")

    def norm(self, x: Tensor, weight: str, label: str) -> Tensor:
        """Normalise the last axis of x and scale it by a weight of that length."""
        normed = self.g.rms_norm(x, self.hp.norm_eps, name=f"{label}_rms")
        return self.g.mul(normed, self.weight(f"{weight}.weight"), name=label)

    def linear(self, x: Tensor, weight: str, label: str) -> Tensor:
        """Multiply x (T, n_in) by a weight (n_out, n_in) and add its bias, if it has one."""
        out = self.g.mul_mat(self.weight(f"{weight}.weight"), x, name=label)
        bias = f"{weight}.bias"
        return self.g.add(out, self.weight(bias), name=f"{label}_b") if self.has(bias) else out

    def attention(self, x: Tensor, layer: int) -> Tensor:
        """Attend from x (T, n_embd) to the KV cache, after writing x's own rows to it.

        The cache rows from ``[0, N)`` that hold no token of the sequence are stale or zero; the
        mask is -inf there. Optional parts are chosen by the weights that the model has: norms of
        each head of Q and K, sinks, biases, frequency factors.
        """
        g, hp, blk = self.g, self.hp, f"blk.{layer}"
        q = self._heads(x, f"{blk}.attn_q", "Qcur", hp.n_head)
        k = self._heads(x, f"{blk}.attn_k", "Kcur", hp.n_head_kv)
        v = self.linear(x, f"{blk}.attn_v", "Vcur")
        # After all products, as in llama.cpp: a device may join neighbours that are alike.
        q, k = self._rotate(q, "Qcur_rope"), self._rotate(k, "Kcur_rope")
        keys = self._cache(f"{blk}.k_cache", g.reshape(k, -1, hp.n_embd_kv), "k_cache_set")
        values = self._cache(f"{blk}.v_cache", v, "v_cache_set")
        # (H, T, D) x (G, N, D) -> (H, T, N)
        kq = g.mul_mat(g.permute(keys, 1, 0, 2), g.permute(q, 1, 0, 2), name="kq")
        sinks = f"{blk}.attn_sinks.weight"
        weights = g.soft_max(
            kq,
            self.mask_window if hp.is_windowed(layer) else self.mask,
            self.weight(sinks) if self.has(sinks) else None,
            scale=hp.attn_scale,
            name="kq_soft_max",
        )
        # (H, T, N) x (G, D, N) -> (H, T, D)
        kqv = g.mul_mat(g.permute(values, 1, 2, 0), weights, name="kqv")
        # With one token there is nothing to reorder, which saves a launch in each block.
        if self.batch.n_tokens > 1:
            kqv = g.cont(g.permute(kqv, 1, 0, 2), name="kqv_merged")
        merged = g.reshape(kqv, -1, hp.n_embd_q)
        return self.linear(merged, f"{blk}.attn_output", "kqv_out")

    def _heads(self, x: Tensor, weight: str, label: str, n_head: int) -> Tensor:
        """Return heads (T, n_head, D) before their rotation."""
        heads = self.g.reshape(self.linear(x, weight, label), -1, n_head, self.hp.head_dim)
        if self.has(f"{weight}_norm.weight"):
            heads = self.norm(heads, f"{weight}_norm", f"{label}_normed")
        return heads

    def _rotate(self, heads: Tensor, label: str) -> Tensor:
        """Rotate heads by the positions of their tokens."""
        factors = self.weight("rope_freqs.weight") if self.has("rope_freqs.weight") else None
        params = rope_params(self.hp.rope)
        return self.g.rope(heads, self.positions, factors, name=label, **params)

    def _cache(self, name: str, rows: Tensor, label: str) -> Tensor:
        """Write rows (T, G*D) to a cache and return its leading rows as (N, G, D)."""
        g, hp, batch = self.g, self.hp, self.batch
        cache = g.state(name, (batch.n_ctx, hp.n_embd_kv), batch.kv_dtype)
        written = g.set_rows(cache, rows, self.kv_rows, name=label)
        return g.reshape(g.rows(written, 0, batch.n_kv), batch.n_kv, hp.n_head_kv, hp.head_dim)

    def feed_forward(self, x: Tensor, layer: int) -> Tensor:
        """Apply the dense gated network to x (T, n_embd)."""
        blk = f"blk.{layer}"
        up = self.linear(x, f"{blk}.ffn_up", "ffn_up")
        gate = self.linear(x, f"{blk}.ffn_gate", "ffn_gate")
        hidden = self.g.swiglu(gate, up, name="ffn_swiglu")
        return self.linear(hidden, f"{blk}.ffn_down", "ffn_out")

    def experts(self, x: Tensor, layer: int, router: Literal["all", "chosen"]) -> Tensor:
        """Apply the chosen experts to x (T, n_embd) and add their results up.

        Args:
            x: Normalised hidden state.
            layer: Number of the block.
            router: ``all``: softmax over all experts, renormalised over the chosen ones;
                ``chosen``: choose by the logits, softmax over the chosen, SwiGLU as in gpt-oss.
        """
        g, hp, blk = self.g, self.hp, f"blk.{layer}"
        logits = self.linear(x, f"{blk}.ffn_gate_inp", "ffn_moe_logits")
        chosen, weights = self._route(logits, router)
        rows = g.reshape(x, -1, 1, hp.n_embd)
        up = self._expert_linear(rows, chosen, f"{blk}.ffn_up_exps", "ffn_moe_up")
        gate = self._expert_linear(rows, chosen, f"{blk}.ffn_gate_exps", "ffn_moe_gate")
        if router == "chosen":
            hidden = g.swiglu_oai(gate, up, name="ffn_moe_swiglu")
        else:
            hidden = g.swiglu(gate, up, name="ffn_moe_swiglu")
        down = self._expert_linear(hidden, chosen, f"{blk}.ffn_down_exps", "ffn_moe_down")
        weighted = g.mul(down, weights, name="ffn_moe_weighted")
        # One node for any number of experts, where a sum of slices needs one for each.
        total = g.sum_rows(g.permute(weighted, 0, 2, 1), name="ffn_moe_out")
        return g.reshape(total, -1, hp.n_embd)

    def _route(self, logits: Tensor, router: Literal["all", "chosen"]) -> tuple[Tensor, Tensor]:
        """Return the chosen experts (T, U) and their weights (T, U, 1)."""
        g, hp = self.g, self.hp
        scores = g.soft_max(logits, name="ffn_moe_probs") if router == "all" else logits
        chosen = g.top_k(scores, hp.n_expert_used, name="ffn_moe_topk")
        table = g.reshape(scores, -1, hp.n_expert, 1)
        picked = g.get_rows(table, chosen, name="ffn_moe_weights")
        flat = g.reshape(picked, -1, hp.n_expert_used)
        if router == "all":
            total = g.sum_rows(flat, name="ffn_moe_weights_sum")
            flat = g.div(flat, total, name="ffn_moe_weights_norm")
        else:
            flat = g.soft_max(flat, name="ffn_moe_weights_softmax")
        return chosen, g.reshape(flat, -1, hp.n_expert_used, 1)

    def _expert_linear(self, x: Tensor, ids: Tensor, weight: str, label: str) -> Tensor:
        """Multiply x (T, U or 1, n_in) by each chosen expert's weight, plus its bias if any."""
        out = self.g.mul_mat_id(self.weight(f"{weight}.weight"), x, ids, name=label)
        bias = f"{weight}.bias"
        if not self.has(bias):
            return out
        return self.g.add_id(out, self.weight(bias), ids, name=f"{label}_b")

    def block(
        self, x: Tensor, layer: int, ffn_norm: str, ffn: Callable[[Tensor, int], Tensor]
    ) -> Tensor:
        """Apply one transformer block to x (T, n_embd): attention, then the network ``ffn``.

        After the attention of the last block only the rows that get logits are kept.
        """
        g, blk = self.g, f"blk.{layer}"
        with g.scope(blk):
            out = self.attention(self.norm(x, f"{blk}.attn_norm", "attn_norm"), layer)
            if layer == self.hp.n_layer - 1 and self.out_rows is not None:
                out = g.get_rows(out, self.out_rows, name="attn_out_rows")
                x = g.get_rows(x, self.out_rows, name="inp_out_rows")
            x = g.add(out, x, name="ffn_inp")
            hidden = ffn(self.norm(x, f"{blk}.{ffn_norm}", "ffn_norm"), layer)
            return g.add(hidden, x, name="l_out")

    def head(self, x: Tensor) -> Tensor:
        """Return the logits (n_out, n_vocab) of the hidden states x (n_out, n_embd)."""
        normed = self.norm(x, "output_norm", "result_norm")
        tied = not self.has("output.weight")
        return self.linear(normed, "token_embd" if tied else "output", "result_output")


def rope_params(rope: RopeParams) -> dict[str, Param]:
    """Return the parameters of the ``rope`` op."""
    return {
        "n_dims": rope.n_dims,
        "pairing": rope.pairing,
        "base": rope.base,
        "freq_scale": rope.freq_scale,
        "ext_factor": rope.ext_factor,
        "attn_factor": rope.attn_factor,
        "beta_fast": rope.beta_fast,
        "beta_slow": rope.beta_slow,
        "n_ctx_orig": rope.n_ctx_orig,
    }
