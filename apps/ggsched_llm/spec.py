"""What a graph needs to know of a model: hyperparameters, and weights as the graph sees them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final, Literal

from ggsched.errors import UsageError
from ggsched.ir.dtype import F16, F32, KV_DTYPES, DType
from ggsched_llm.hparams import HParams

WeightPolicy = Literal["expand", "packed"]
CacheType = Literal["auto", "f32", "f16", "bf16", "q8_0"]
_BLOCK: Final = re.compile(r"blk\.([0-9]+)\b(\.ffn_(up|down|gate)_exps\.)?")
CACHE_DTYPES: Final[Mapping[str, DType]] = {t.name: t for t in KV_DTYPES}


@dataclass(frozen=True, slots=True)
class WeightNeed:
    """A weight that an architecture requests.

    Attributes:
        name: As in GGUF files.
        shape: Outermost axis first.
        optional: Whether the architecture does without it.
        matrix: Whether it is multiplied with or gathered from, so that any float type will do;
            others (norms, biases, sinks) enter the graph as f32.
    """

    name: str
    shape: tuple[int, ...]
    optional: bool = False
    matrix: bool = False


@dataclass(frozen=True, slots=True)
class WeightSpec:
    """A weight as the graph sees it.

    Attributes:
        shape: Outermost axis first.
        dtype: Element type in the graph, which may differ from the file's.
    """

    shape: tuple[int, ...]
    dtype: DType

    @property
    def nbytes(self) -> int:
        """Bytes of the weight in the graph."""
        *outer, row = self.shape
        return prod(outer) * self.dtype.row_nbytes(row)


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model without its weights' bytes.

    Attributes:
        hparams: Hyperparameters.
        weights: The weights that the architecture uses and that are there, by name.
        has_copied_output: Whether the output matrix is a second copy of the embedding, see
            ``ggsched_llm.offload``.
        cache_dtype: Type of the KV cache; see ``cache_dtype``.
        n_slots: Sequences that share the cache; recurrent blocks keep a state of each.
    """

    hparams: HParams
    weights: Mapping[str, WeightSpec]
    has_copied_output: bool = False
    cache_dtype: DType = F32
    n_slots: int = 1

    @property
    def is_tied(self) -> bool:
        """Whether the embedding serves as the output matrix too."""
        return "output.weight" not in self.weights

    @property
    def hidden_dtype(self) -> DType:
        """Type in which hidden states are kept for a head that predicts further tokens."""
        return F16 if self.cache_dtype.is_quantized else self.cache_dtype

    def norm_width(self, name: str) -> int:
        """Return the length of the weight of a norm, 0 if the model has no such norm."""
        found = self.weights.get(f"{name}.weight")
        return found.shape[0] if found else 0

    def layer_of(self, name: str) -> int | None:
        """Return the layer of a weight, the output layer being the last; None for what has none."""
        block = block_of(name)
        if block is not None:
            return block
        is_output = name.startswith("output") or (self.is_tied and name == "token_embd.weight")
        return self.hparams.n_layer if is_output else None

    def state_nbytes(self, n_ctx: int) -> dict[str, int]:
        """Return the bytes of each state by name: KV caches, and states of recurrent blocks."""
        hp, r = self.hparams, self.hparams.recurrent
        cache = n_ctx * self.cache_dtype.row_nbytes(hp.n_embd_kv)
        hidden = (n_ctx + 1) * self.hidden_dtype.row_nbytes(hp.n_embd)
        own = {"k_cache": cache, "v_cache": cache, "h_cache": hidden}
        if r is not None:
            rows = {"conv_state": (r.taps - 1) * r.n_channels, "linear_state": r.width * r.key_dim}
            own |= {kind: self.n_slots * F32.row_nbytes(n) for kind, n in rows.items()}
        return {name: own[name.rpartition(".")[2]] for name in hp.state_names}


def block_of(name: str) -> int | None:
    """Return the block of a weight, a state or a node, by its name."""
    match = _BLOCK.match(name)
    return int(match[1]) if match else None


def expert_block_of(name: str) -> int | None:
    """Return the block of a weight of experts, by its name; None for all others."""
    match = _BLOCK.match(name)
    return int(match[1]) if match and match[2] else None


def cache_dtype(spec: ModelSpec, asked: CacheType) -> DType:
    """Return the type of a model's KV cache.

    ``auto`` is f16, as in llama.cpp, unless all matrices of the model are f32: then the cache would
    be the only thing that is rounded.

    Raises:
        UsageError: heads are not whole blocks of the type that is requested.
    """
    if asked != "auto":
        dtype, width = CACHE_DTYPES[asked], spec.hparams.head_dim
        if width % dtype.block:
            raise UsageError(
                f"a KV cache of {asked} for heads of {width} elements",
                why=f"blocks of {asked} hold {dtype.block} elements of one head",
                hint="use f16 or bf16",
            )
        return dtype
    is_exact = all(w.dtype is F32 for w in spec.weights.values())
    return F32 if is_exact else F16


def graph_dtype(need: WeightNeed, stored: DType, policy: WeightPolicy) -> DType:
    """Return the type that a weight has in the graph.

    With ``packed`` a matrix keeps the file's type, and kernels unpack it as they read. With
    ``expand`` everything is f32, at up to eight times the memory.
    """
    return stored if policy == "packed" and need.matrix else F32


def linear_needs(
    name: str, n_out: int, n_in: int, *, bias: bool | None = None
) -> Iterator[WeightNeed]:
    """Yield the weight (n_out, n_in) of a linear layer and its bias (n_out,).

    Args:
        name: Without ``.weight``.
        n_out: Width of the result.
        n_in: Width of the operand.
        bias: Whether there must be a bias; None if it is optional.
    """
    yield WeightNeed(f"{name}.weight", (n_out, n_in), matrix=True)
    if bias is not False:
        yield WeightNeed(f"{name}.bias", (n_out,), optional=bias is None)


def attention_needs(hp: HParams, layer: int, *, bias: bool | None) -> Iterator[WeightNeed]:
    """Yield the weights of a block's attention that all architectures have."""
    blk = f"blk.{layer}"
    yield WeightNeed(f"{blk}.attn_norm.weight", (hp.n_embd,))
    yield from linear_needs(f"{blk}.attn_q", hp.n_embd_q, hp.n_embd, bias=bias)
    yield from linear_needs(f"{blk}.attn_k", hp.n_embd_kv, hp.n_embd, bias=bias)
    yield from linear_needs(f"{blk}.attn_v", hp.n_embd_kv, hp.n_embd, bias=bias)
    yield from linear_needs(f"{blk}.attn_output", hp.n_embd, hp.n_embd_q, bias=bias)


def head_norm_needs(hp: HParams, layer: int) -> Iterator[WeightNeed]:
    """Yield the norms of each head of Q and K."""
    for name in ("attn_q_norm", "attn_k_norm"):
        yield WeightNeed(f"blk.{layer}.{name}.weight", (hp.head_dim,))


def feed_forward_needs(
    hp: HParams, layer: int, *, bias: bool | None, suffix: str = "", width: int = 0
) -> Iterator[WeightNeed]:
    """Yield the weights of a dense gated network.

    Args:
        hp: Hyperparameters.
        layer: Number of the block.
        bias: As for ``linear_needs``.
        suffix: Ending of the names, as of shared experts.
        width: Width of the network; that of ``hp`` by default.
    """
    blk, n_ff = f"blk.{layer}", width or hp.n_ff
    yield from linear_needs(f"{blk}.ffn_gate{suffix}", n_ff, hp.n_embd, bias=bias)
    yield from linear_needs(f"{blk}.ffn_up{suffix}", n_ff, hp.n_embd, bias=bias)
    yield from linear_needs(f"{blk}.ffn_down{suffix}", hp.n_embd, n_ff, bias=bias)


def expert_needs(hp: HParams, layer: int, *, bias: bool) -> Iterator[WeightNeed]:
    """Yield the router and the experts of a block."""
    blk, experts = f"blk.{layer}", hp.n_expert
    yield from linear_needs(f"{blk}.ffn_gate_inp", experts, hp.n_embd, bias=bias)
    for name, n_out, n_in in (
        ("ffn_gate_exps", hp.n_ff, hp.n_embd),
        ("ffn_up_exps", hp.n_ff, hp.n_embd),
        ("ffn_down_exps", hp.n_embd, hp.n_ff),
    ):
        yield WeightNeed(f"{blk}.{name}.weight", (experts, n_out, n_in), matrix=True)
        if bias:
            yield WeightNeed(f"{blk}.{name}.bias", (experts, n_out))


def shared_expert_needs(hp: HParams, layer: int) -> Iterator[WeightNeed]:
    """Yield the router and experts of a block, and the expert of all tokens with its gate."""
    yield from expert_needs(hp, layer, bias=False)
    yield WeightNeed(f"blk.{layer}.ffn_gate_inp_shexp.weight", (hp.n_embd,))
    yield from feed_forward_needs(hp, layer, bias=False, suffix="_shexp", width=hp.n_ff_shared)


def dense_or_expert_needs(hp: HParams, layer: int) -> Iterator[WeightNeed]:
    """Yield the network of a block: dense in the first ones, else experts and a shared one."""
    if layer < hp.n_dense:
        yield from feed_forward_needs(hp, layer, bias=False, width=hp.n_ff_dense)
        return
    yield from expert_needs(hp, layer, bias=False)
    yield WeightNeed(f"blk.{layer}.exp_probs_b.bias", (hp.n_expert,), optional=True)
    yield from feed_forward_needs(hp, layer, bias=False, suffix="_shexp", width=hp.n_ff_shared)


def block_needs(
    hp: HParams,
    *,
    bias: bool | None = None,
    ffn_bias: bool | None = False,
    has_head_norms: bool = False,
    norms: Sequence[str] = ("ffn_norm",),
) -> Iterator[WeightNeed]:
    """Yield the weights of blocks of attention and a network, which may consist of experts.

    Args:
        hp: Hyperparameters.
        bias: Of attention, as for ``linear_needs``.
        ffn_bias: Of dense networks, as for ``linear_needs``.
        has_head_norms: Whether each head of Q and K has a norm.
        norms: Names of the norms of hidden states behind attention.
    """
    for layer in range(hp.n_layer):
        yield from attention_needs(hp, layer, bias=bias)
        if has_head_norms:
            yield from head_norm_needs(hp, layer)
        for name in norms:
            yield WeightNeed(f"blk.{layer}.{name}.weight", (hp.n_embd,))
        if hp.n_ff_shared:
            yield from shared_expert_needs(hp, layer)
        elif hp.n_expert:
            yield from expert_needs(hp, layer, bias=False)
        else:
            yield from feed_forward_needs(hp, layer, bias=ffn_bias)
