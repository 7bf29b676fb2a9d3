"""What a model is, apart from its weights."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class RopeParams:
    """Rotary embedding, with the meaning of the ``rope`` op's parameters.

    Attributes:
        n_dims: Leading elements of each head that are rotated.
        pairing: ``adjacent`` or ``halves``.
        base: Base of the frequencies.
        freq_scale: Factor on all angles, 1 / the context extension.
        ext_factor: Share of YaRN's blend, 0 without YaRN.
        attn_factor: Factor on the rotated vectors.
        beta_fast: YaRN's upper number of rotations.
        beta_slow: YaRN's lower number of rotations.
        n_ctx_orig: Context length in tokens before it was extended.
    """

    n_dims: int
    pairing: Literal["adjacent", "halves"]
    base: float
    freq_scale: float = 1.0
    ext_factor: float = 0.0
    attn_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    n_ctx_orig: int = 0


@dataclass(frozen=True, slots=True)
class Latent:
    """Widths of latent attention.

    Attributes:
        rank: Elements of a latent row, from which all heads take keys and values.
        key_dim: Width of a head's key, with the part that is rotated.
        value_dim: Width of a head's value.
        query_rank: Elements of the latent row of queries; 0 if they have none.
    """

    rank: int
    key_dim: int
    value_dim: int
    query_rank: int = 0


@dataclass(frozen=True, slots=True)
class Recurrent:
    """Blocks that remember a sequence in states of fixed size: linear attention and Mamba-2.

    Attributes:
        layers: Which blocks those are.
        taps: Of the convolution along the tokens, this one among them.
        n_groups: Heads of queries and keys.
        n_heads: Heads of values, each with a matrix for its state.
        key_dim: Width of a query or key.
        value_dim: Width of a value.
        tiled: Head h of the values reads head ``h % n_groups``, not ``h // (n_heads / n_groups)``.
    """

    layers: tuple[bool, ...]
    taps: int
    n_groups: int
    n_heads: int
    key_dim: int
    value_dim: int
    tiled: bool = False

    @property
    def width(self) -> int:
        """Width of all heads of values together."""
        return self.n_heads * self.value_dim

    @property
    def n_channels(self) -> int:
        """Channels of the convolution: queries, keys and values."""
        return 2 * self.n_groups * self.key_dim + self.width


@dataclass(frozen=True, slots=True)
class HParams:
    """What a model is, apart from its weights.

    Attributes:
        arch: Architecture.
        name: ``general.name``, or "".
        n_ctx_train: Context length in tokens that the model was trained for.
        n_vocab: Number of tokens.
        n_embd: Width of the hidden state.
        n_layer: Number of blocks.
        n_head: Query heads.
        n_head_kv: Key and value heads; each serves ``n_head / n_head_kv`` query heads.
        head_dim: Width of one head.
        n_ff: Width of the feed-forward network, or of each expert if there are experts.
        norm_eps: Epsilon of the RMS norms.
        attn_scale: Factor on the attention scores.
        rope: Position embedding.
        n_expert: Number of experts, 0 for a dense model.
        n_expert_used: Experts per token, 0 for a dense model.
        window: Sliding window in tokens of the windowed layers, 0 if there are none.
        windowed: Which layers those are; empty for every second one, from layer 0 on.
        window_rope: Position embedding of the windowed layers, if it is another one.
        n_ff_shared: Width of the network of the shared experts.
        renormalises_experts: Whether the weights of the chosen experts add up to one.
        routes_by_sigmoid: Whether experts are weighted by sigmoid instead of softmax.
        n_expert_groups: Groups that experts are in, neighbours in the same one.
        n_groups_used: Groups that the experts of a token are chosen from.
        expert_scale: Factor on the weights of experts.
        n_dense: Leading blocks without experts.
        n_ff_dense: Width of their networks.
        latent: Widths of latent attention, if the model has it.
        embedding_scale: Factor on the embedding.
        soft_cap: Limit of attention scores, by tanh; 0 for none.
        logit_cap: Limit of logits, by tanh; 0 for none.
        activation: Of the gate of dense networks; ``gelu`` is the approximation by tanh.
        gates_attention: Whether each head of Q comes with a gate on what the head finds.
        recurrent: Blocks with states of fixed size, if there are any.
        predicts: Whether the block behind the last one, a head that predicts further tokens, is in
            use; see ``ggsched_llm.prediction_head``.
    """

    arch: str
    name: str
    n_ctx_train: int
    n_vocab: int
    n_embd: int
    n_layer: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_ff: int
    norm_eps: float
    attn_scale: float
    rope: RopeParams
    n_expert: int = 0
    n_expert_used: int = 0
    window: int = 0
    windowed: tuple[bool, ...] = ()
    window_rope: RopeParams | None = None
    n_ff_shared: int = 0
    renormalises_experts: bool = True
    routes_by_sigmoid: bool = False
    n_expert_groups: int = 1
    n_groups_used: int = 1
    expert_scale: float = 1.0
    n_dense: int = 0
    n_ff_dense: int = 0
    latent: Latent | None = None
    embedding_scale: float = 1.0
    soft_cap: float = 0.0
    logit_cap: float = 0.0
    activation: Literal["silu", "gelu"] = "silu"
    gates_attention: bool = False
    recurrent: Recurrent | None = None
    predicts: bool = False

    @property
    def n_embd_q(self) -> int:
        """Width of all query heads together."""
        return self.n_head * self.head_dim

    @property
    def n_embd_kv(self) -> int:
        """Width of all key heads together, which is a row of the KV cache."""
        return self.n_head_kv * self.head_dim

    def is_recurrent(self, layer: int) -> bool:
        """Whether a block keeps a state of fixed size instead of a KV cache."""
        return self.recurrent is not None and self.recurrent.layers[layer]

    @property
    def state_names(self) -> tuple[str, ...]:
        """Names of what the blocks remember of sequences."""
        layers = range(self.n_layer + self.predicts)
        return tuple(name for layer in layers for name in self.states_of(layer))

    def states_of(self, layer: int) -> tuple[str, ...]:
        """Return the names of what a block remembers; latent rows are keys and values in one."""
        if self.is_recurrent(layer):
            kinds: tuple[str, ...] = ("conv_state", "linear_state")
        else:
            kinds = ("k_cache",) if self.latent is not None else ("k_cache", "v_cache")
            kinds += ("h_cache",) * (layer == self.n_layer)
        return tuple(f"blk.{layer}.{kind}" for kind in kinds)

    def is_windowed(self, layer: int) -> bool:
        """Whether a layer sees only the last ``window`` tokens."""
        return self.window > 0 and (self.windowed[layer] if self.windowed else layer % 2 == 0)

    def rope_of(self, layer: int) -> RopeParams:
        """Return the position embedding of a layer."""
        if self.window_rope is not None and self.is_windowed(layer):
            return self.window_rope
        return self.rope
