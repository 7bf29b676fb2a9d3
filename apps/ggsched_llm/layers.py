"""The parts that all architectures are made of, written as nodes.

Shapes: T tokens of the micro-batch, H query heads, G key/value heads, D width of a head, N rows of
the KV cache that are looked at. Labels are llama.cpp's (``Qcur``, ``kqv``, ``kqv_out``).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import I32, DType
from ggsched.ir.ops import Param
from ggsched.ir.tensor import Tensor
from ggsched_llm.hparams import HParams, RopeParams
from ggsched_llm.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class BatchShape:
    """Sizes of one micro-batch.

    Attributes:
        n_tokens: Tokens that enter.
        n_kv: Leading rows of the KV cache that attention looks at.
        n_out: Tokens that get logits; none in a graph that drafts.
        n_ctx: Rows of the KV cache.
        kv_dtype: Type of the KV cache.
    """

    n_tokens: int
    n_kv: int
    n_out: int
    n_ctx: int
    kv_dtype: DType


class ModelBuilder:
    """A graph under construction, its inputs, and the parts to add to it."""

    def __init__(
        self, spec: ModelSpec, batch: BatchShape, name: str, *, token_in: str = ""
    ) -> None:
        """Start a graph with the inputs of a micro-batch.

        Args:
            batch: Sizes.
            name: Of the graph.
            token_in: The state that has the tokens, where they are no input.
        """
        g = GraphBuilder(name)
        self.g = g
        self.spec = spec
        self.hp: HParams = spec.hparams
        self.batch = batch
        self.tokens = (
            g.state(token_in, (batch.n_tokens,), I32)
            if token_in
            else g.input("tokens", (batch.n_tokens,), I32)
        )
        self.positions = g.input("positions", (batch.n_tokens,), I32)
        self.kv_rows = g.input("kv_rows", (batch.n_tokens,), I32)
        pairs = (batch.n_tokens, 2)
        self.bounds = g.input("bounds", pairs, I32)
        self.slots: Tensor | None = None
        if self.hp.recurrent is not None:
            self.slots = g.input("slots", (batch.n_tokens,), I32)
        self.bounds_window = self.bounds
        if self.hp.window:
            self.bounds_window = g.input("bounds_window", pairs, I32)
        # Of one token there is nothing to choose.
        self.out_rows = None
        if batch.n_out and (batch.n_tokens, batch.n_out) != (1, 1):
            self.out_rows = g.input("out_rows", (batch.n_out,), I32)
        self._weights: dict[str, Tensor] = {}
        self._states: dict[str, Tensor] = {}

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

    def state(self, name: str, n_rows: int, width: int, dtype: DType) -> Tensor:
        """Return a state's tensor, the same at each call."""
        if name not in self._states:
            self._states[name] = self.g.state(name, (n_rows, width), dtype)
        return self._states[name]

    # --- parts ----------------------------------------------------------------------------

    def embed(self) -> Tensor:
        """Look the tokens up; return (T, n_embd)."""
        found = self.g.get_rows(self.weight("token_embd.weight"), self.tokens, name="inp_embd")
        scale = self.hp.embedding_scale
        return found if scale == 1.0 else self.g.scale(found, scale, name="inp_scaled")

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

        Which rows of ``[0, N)`` a token sees is given by its bounds; others are stale or zero.
        Optional parts are chosen by the weights that the model has: norms of
        each head of Q and K, sinks, biases, frequency factors, one weight for Q, K and V.
        """
        g, hp, blk = self.g, self.hp, f"blk.{layer}"
        q, k, v, gate = self._queries_keys_values(x, blk)
        # After all products, as in llama.cpp: a device may join neighbours that are alike.
        rope = hp.rope_of(layer)
        q, k = self.rotate(q, rope, "Qcur_rope"), self.rotate(k, rope, "Kcur_rope")
        keys = self.cache(f"{blk}.k_cache", g.reshape(k, -1, hp.n_embd_kv), "k_cache_set")
        values = self.cache(f"{blk}.v_cache", v, "v_cache_set")
        sinks = f"{blk}.attn_sinks.weight"
        kqv = g.attention(
            q,
            keys,
            values,
            sinks=self.weight(sinks) if self.has(sinks) else None,
            bounds=self.bounds_window if hp.is_windowed(layer) else self.bounds,
            scale=hp.attn_scale,
            soft_cap=hp.soft_cap,
            name="kqv",
        )
        if gate is not None:
            kqv = g.mul(kqv, g.sigmoid(gate, name="gate_sigmoid"), name="attn_gated")
        merged = g.reshape(kqv, -1, hp.n_embd_q)
        return self.linear(merged, f"{blk}.attn_output", "kqv_out")

    def remember(self, x: Tensor, layer: int) -> None:
        """Write the rows of x (T, n_embd) to the KV cache, as ``attention`` does, and no more."""
        g, hp, blk = self.g, self.hp, f"blk.{layer}"
        k, v = (self.linear(x, f"{blk}.attn_{part}", f"{part.upper()}cur") for part in "kv")
        heads = self._heads(k, f"{blk}.attn_k", "Kcur", hp.n_head_kv)
        k = self.rotate(heads, hp.rope_of(layer), "Kcur_rope")
        self.cache(f"{blk}.k_cache", g.reshape(k, -1, hp.n_embd_kv), "k_cache_set")
        self.cache(f"{blk}.v_cache", v, "v_cache_set")

    def _queries_keys_values(
        self, x: Tensor, blk: str
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Return heads of Q (T, H, D) and K (T, G, D) before their rotation, V (T, G*D), a gate.

        The gate (T, H, D) is None where attention has none.
        """
        g, hp, gate = self.g, self.hp, None
        widths = (hp.n_embd_q, hp.n_embd_kv, hp.n_embd_kv)
        if self.has(f"{blk}.attn_qkv.weight"):
            q, k, v = self.columns(self.linear(x, f"{blk}.attn_qkv", "wqkv"), widths)
        else:
            q = self.linear(x, f"{blk}.attn_q", "Qcur")
            k = self.linear(x, f"{blk}.attn_k", "Kcur")
            v = self.linear(x, f"{blk}.attn_v", "Vcur")
        if hp.gates_attention:
            q, gate = self.columns(
                g.reshape(q, -1, hp.n_head, 2 * hp.head_dim), (hp.head_dim, hp.head_dim)
            )
        q = self._heads(q, f"{blk}.attn_q", "Qcur", hp.n_head)
        return q, self._heads(k, f"{blk}.attn_k", "Kcur", hp.n_head_kv), v, gate

    def columns(self, x: Tensor, widths: Sequence[int]) -> list[Tensor]:
        """Return views of neighbouring parts of the last axis of x, of these widths."""
        step = x.strides[-1]
        return [
            self.g.view(x, (*x.shape[:-1], n), x.strides, (end - n) * step)
            for n, end in zip(widths, accumulate(widths), strict=True)
        ]

    def _heads(self, x: Tensor, weight: str, label: str, n_head: int) -> Tensor:
        """Return x (T, n_head * D) as heads (T, n_head, D), normalised if the model does that.

        The norm is one for all heads together if its weight is as long.
        """
        name, heads = f"{weight}_norm", x
        width = self.spec.norm_width(name)
        if width > self.hp.head_dim:
            x, width = self.norm(x, name, f"{label}_normed"), 0
        if len(x.shape) == len(("token", "element")):
            shape = (x.shape[0], n_head, self.hp.head_dim)
            row, item = x.strides
            heads = self.g.view(x, shape, (row, self.hp.head_dim * item, item))
        return self.norm(heads, name, f"{label}_normed") if width else heads

    def rotate(self, heads: Tensor, rope: RopeParams, label: str) -> Tensor:
        """Rotate heads by the positions of their tokens.

        Which factors a model takes depends on how long a sequence can be.
        """
        long = self.batch.n_ctx // self.spec.n_slots > rope.n_ctx_orig
        names = ("rope_freqs.weight", f"rope_factors_{'long' if long else 'short'}.weight")
        factors = next((self.weight(name) for name in names if self.has(name)), None)
        return self.g.rope(heads, self.positions, factors, name=label, **rope_params(rope))

    def _capped(self, x: Tensor, cap: float, label: str) -> Tensor:
        """Return ``cap * tanh(x / cap)``."""
        bounded = self.g.tanh(self.g.scale(x, 1.0 / cap, name=f"{label}_per_cap"))
        return self.g.scale(bounded, cap, name=f"{label}_capped")

    def cache(self, name: str, rows: Tensor, label: str) -> Tensor:
        """Write rows (T, G*D) to a cache and return its leading rows as (N, G, D)."""
        g, hp, batch = self.g, self.hp, self.batch
        cache = self.state(name, batch.n_ctx, hp.n_embd_kv, batch.kv_dtype)
        written = g.set_rows(cache, rows, self.kv_rows, name=label)
        return g.reshape(g.rows(written, 0, batch.n_kv), batch.n_kv, hp.n_head_kv, hp.head_dim)

    def feed_forward(self, x: Tensor, layer: int, *, suffix: str = "") -> Tensor:
        """Apply the dense gated network to x (T, n_embd).

        Args:
            x: Normalised hidden state.
            layer: Number of the block.
            suffix: Ending of the weights' names, as of shared experts.
        """
        g, names = self.g, [f"blk.{layer}.ffn_{part}{suffix}" for part in ("up", "gate", "down")]
        up_name, gate_name, down_name = names
        up = self.linear(x, up_name, f"ffn_up{suffix}")
        if self.has(f"{gate_name}.weight"):
            gate = self.linear(x, gate_name, f"ffn_gate{suffix}")
        else:
            gate, up = self.columns(up, (up.shape[1] // 2, up.shape[1] // 2))
        if self.hp.activation == "silu":
            hidden = g.swiglu(gate, up, name=f"ffn_swiglu{suffix}")
        else:
            hidden = g.mul(g.gelu(gate, name=f"ffn_gelu{suffix}"), up, name=f"ffn_gated{suffix}")
        return self.linear(hidden, down_name, f"ffn_out{suffix}")

    def experts(
        self,
        x: Tensor,
        layer: int,
        router: Literal["all", "chosen"],
        logits: Tensor | None = None,
    ) -> Tensor:
        """Apply the chosen experts to x (T, n_embd) and add their results up.

        Args:
            x: Normalised hidden state.
            layer: Number of the block.
            router: ``all``: softmax over all experts, renormalised over the chosen ones if the
                model does that;
                ``chosen``: choose by the logits, softmax over the chosen, SwiGLU as in gpt-oss.
            logits: The router's, if they are there already.
        """
        g, hp, blk = self.g, self.hp, f"blk.{layer}"
        if logits is None:
            logits = self.linear(x, f"{blk}.ffn_gate_inp", "ffn_moe_logits")
        bias = f"{blk}.exp_probs_b.bias"
        chosen, weights = self._route(logits, router, self.weight(bias) if self.has(bias) else None)
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

    def _route(
        self, logits: Tensor, router: Literal["all", "chosen"], bias: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the chosen experts (T, U) and their weights (T, U, 1)."""
        g, hp = self.g, self.hp
        scores = logits
        if router == "all" and hp.routes_by_sigmoid:
            scores = g.sigmoid(logits, name="ffn_moe_probs")
        elif router == "all":
            scores = g.soft_max(logits, name="ffn_moe_probs")
        biased = scores if bias is None else g.add(scores, bias, name="ffn_moe_probs_biased")
        if hp.n_groups_used < hp.n_expert_groups:
            biased = self._best_groups(biased)
        chosen = g.top_k(biased, hp.n_expert_used, name="ffn_moe_topk")
        table = g.reshape(scores, -1, hp.n_expert, 1)
        picked = g.get_rows(table, chosen, name="ffn_moe_weights")
        flat = g.reshape(picked, -1, hp.n_expert_used)
        if router == "all" and hp.renormalises_experts:
            total = g.sum_rows(flat, name="ffn_moe_weights_sum")
            flat = g.div(flat, total, name="ffn_moe_weights_norm")
        elif router == "chosen":
            flat = g.soft_max(flat, name="ffn_moe_weights_softmax")
        if hp.expert_scale != 1.0:
            flat = g.scale(flat, hp.expert_scale, name="ffn_moe_weights_scaled")
        return chosen, g.reshape(flat, -1, hp.n_expert_used, 1)

    def _best_groups(self, scores: Tensor) -> Tensor:
        """Return scores (T, E) of experts, those of groups that are not the best ones far lower.

        A group is as good as its two best experts together (DeepSeek V3), or as its best one where
        the router is a softmax (V2). Groups as good as the last one in use are in use too.
        """
        g, groups = self.g, self.hp.n_expert_groups
        members = g.reshape(scores, -1, groups, scores.shape[1] // groups)
        deciding = min(2, members.shape[2]) if self.hp.routes_by_sigmoid else 1
        best = g.top_k(members, deciding, name="ffn_moe_group_best")
        found = g.get_rows(g.reshape(members, *members.shape, 1), best)
        total = g.reshape(g.sum_rows(g.reshape(found, -1, groups, deciding)), -1, groups)
        used = g.top_k(total, self.hp.n_groups_used, name="ffn_moe_group_topk")
        ranked = g.reshape(g.get_rows(g.reshape(total, -1, groups, 1), used), *used.shape)
        end = (used.shape[1] - 1) * ranked.strides[1]
        last = g.view(ranked, (used.shape[0], 1), ranked.strides, end)
        behind = g.sub(total, last)
        lower = g.clamp(g.scale(behind, 1e38), -1e30, 0.0)
        masked = g.add(members, g.reshape(lower, -1, groups, 1), name="ffn_moe_probs_masked")
        return g.reshape(masked, *scores.shape)

    def dense_or_experts(self, x: Tensor, layer: int) -> Tensor:
        """Apply a dense network in the first blocks, else experts and one that all tokens share."""
        if layer < self.hp.n_dense:
            return self.feed_forward(x, layer)
        shared = self.feed_forward(x, layer, suffix="_shexp")
        return self.g.add(self.experts(x, layer, router="all"), shared, name="ffn_out")

    def experts_and_shared(self, x: Tensor, layer: int, residual: Tensor) -> Tensor:
        """Add the results of the chosen experts and of the shared one, which has a gate.

        What is small comes first, and the sum of the chosen experts last: a device may join
        neighbours that are alike, and that sum with what begins the next block.

        Args:
            x: Normalised hidden state.
            layer: Number of the block.
            residual: What their results are added to.
        """
        g = self.g
        gate = g.reshape(self.weight(f"blk.{layer}.ffn_gate_inp_shexp.weight"), 1, -1)
        opening = g.mul_mat(gate, x, name="shexp_gate_inp")
        logits = self.linear(x, f"blk.{layer}.ffn_gate_inp", "ffn_moe_logits")
        shared = self.feed_forward(x, layer, suffix="_shexp")
        share = g.sigmoid(opening, name="shexp_gate")
        gated = g.mul(shared, share, name="ffn_shexp_gated")
        begun = g.add(gated, residual, name="ffn_shexp_out")
        return g.add(self.experts(x, layer, router="all", logits=logits), begun, name="l_out")

    def _expert_linear(self, x: Tensor, ids: Tensor, weight: str, label: str) -> Tensor:
        """Multiply x (T, U or 1, n_in) by each chosen expert's weight, plus its bias if any."""
        out = self.g.mul_mat_id(self.weight(f"{weight}.weight"), x, ids, name=label)
        bias = f"{weight}.bias"
        if not self.has(bias):
            return out
        return self.g.add_id(out, self.weight(bias), ids, name=f"{label}_b")

    def block(
        self,
        x: Tensor,
        layer: int,
        ffn_norm: str,
        ffn: Callable[..., Tensor],
        *,
        norms_after: tuple[str, str] | None = None,
        attention: Callable[[Tensor, int], Tensor] | None = None,
        adds_residual: bool = False,
    ) -> Tensor:
        """Apply one transformer block to x (T, n_embd): attention, then the network ``ffn``.

        After the attention of the last block only the rows that get logits are kept.

        Args:
            x: Hidden state.
            layer: Number of the block.
            ffn_norm: Norm of the network's input.
            ffn: The network.
            attention: What attends, ``self.attention`` by default.
            norms_after: Norms of the results of attention and network, before they are added.
            adds_residual: Whether the network takes the residual, as a third operand, and adds it.
        """
        g, blk = self.g, f"blk.{layer}"
        after = [f"{blk}.{name}" for name in norms_after or ()]
        with g.scope(blk):
            attend = attention or self.attention
            out = attend(self.norm(x, f"{blk}.attn_norm", "attn_norm"), layer)
            out, x = self.wanted_rows(out, x, layer)
            out = self.norm(out, after[0], "attn_post_norm") if after else out
            x = g.add(out, x, name="ffn_inp")
            normed = self.norm(x, f"{blk}.{ffn_norm}", "ffn_norm")
            if adds_residual:
                return ffn(normed, layer, x)
            hidden = ffn(normed, layer)
            hidden = self.norm(hidden, after[1], "ffn_post_norm") if after else hidden
            return g.add(hidden, x, name="l_out")

    def wanted_rows(self, out: Tensor, x: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Return the rows that get logits, in the last block, of a result and of its residual.

        Those are all rows where a head that predicts further tokens wants them.
        """
        if layer != self.hp.n_layer - 1 or self.out_rows is None or self.hp.predicts:
            return out, x
        rows = self.g.get_rows(out, self.out_rows, name="attn_out_rows")
        return rows, self.g.get_rows(x, self.out_rows, name="inp_out_rows")

    def logits(self, normed: Tensor, matrix: str = "output") -> Tensor:
        """Return the logits (n_out, n_vocab) of normalised hidden states (n_out, n_embd).

        Without such a matrix the model's own serves, or the embedding.
        """
        names = (matrix, "output", "token_embd")
        name = next(name for name in names if self.has(f"{name}.weight"))
        logits = self.linear(normed, name, "result_output")
        cap = self.hp.logit_cap
        return self._capped(logits, cap, "result_output") if cap else logits


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
