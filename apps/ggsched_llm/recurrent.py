"""The parts of blocks that keep a state of fixed size: Gated DeltaNet and Mamba-2.

Shapes: T tokens, C channels of the convolution, H heads of values of width P, G heads of queries
and keys of width N. Each block has two states, ``conv_state`` with the last rows that went into the
convolution and ``linear_state`` with a matrix (N, P) for each head, a row for each slot.
"""

from collections.abc import Iterator, Sequence
from math import prod

from ggsched.ir.tensor import Tensor
from ggsched_llm.hparams import HParams, Recurrent
from ggsched_llm.layers import ModelBuilder
from ggsched_llm.metadata_keys import Keys
from ggsched_llm.spec import WeightNeed, linear_needs

_WIDE = 1 << 20


def read_recurrent(keys: Keys, layers: Sequence[bool], *, tiled: bool = False) -> Recurrent:
    """Read widths of recurrent blocks.

    Raises:
        ModelError: a key is missing or out of range, or they contradict each other.
    """
    heads = keys.count("ssm.time_step_rank", _WIDE)
    groups = keys.count("ssm.group_count", _WIDE)
    inner = keys.count("ssm.inner_size", _WIDE)
    if heads % groups:
        why = f"it must divide the {heads} heads of ssm.time_step_rank"
        raise keys.fail("ssm.group_count", f"is {groups}", why)
    if inner % heads:
        why = f"it must be a multiple of the {heads} heads of ssm.time_step_rank"
        raise keys.fail("ssm.inner_size", f"is {inner}", why)
    return Recurrent(
        layers=tuple(layers),
        taps=keys.count("ssm.conv_kernel", 64, least=2),
        n_groups=groups,
        n_heads=heads,
        key_dim=keys.count("ssm.state_size", 1 << 14),
        value_dim=inner // heads,
        tiled=tiled,
    )


def read_delta_net(keys: Keys, n_layer: int, *, tiled: bool) -> Recurrent:
    """Read widths of Gated DeltaNet, whose keys and values are of one width, and which blocks.

    Those are listed in ``attention.recurrent_layers``; if not, the last one of each
    ``full_attention_interval`` blocks, 4 by default, attends.

    Raises:
        ModelError: as ``read_recurrent``.
    """
    interval = keys.count("full_attention_interval", 1 << 16, default=4)
    layers = [(layer + 1) % interval != 0 for layer in range(n_layer)]
    listed = keys.get("attention.recurrent_layers")
    if isinstance(listed, tuple):
        if len(listed) < n_layer or not all(isinstance(v, bool | int) for v in listed):
            why = f"there are {n_layer} blocks"
            raise keys.fail("attention.recurrent_layers", f"has {len(listed)} elements", why)
        layers = [bool(v) for v in listed[:n_layer]]
    found = read_recurrent(keys, layers, tiled=tiled)
    if found.value_dim != found.key_dim:
        why = f"heads of ssm.state_size={found.key_dim} make {found.n_heads * found.key_dim}"
        raise keys.fail("ssm.inner_size", f"is {found.width}", why)
    return found


def conv_needs(r: Recurrent, blk: str) -> Iterator[WeightNeed]:
    """Yield the weights that Gated DeltaNet and Mamba-2 have in common, beside projections."""
    yield WeightNeed(f"{blk}.ssm_conv1d.weight", (r.n_channels, r.taps))
    yield WeightNeed(f"{blk}.ssm_dt.bias", (r.n_heads,))


def delta_net_needs(hp: HParams, layer: int) -> Iterator[WeightNeed]:
    """Yield the weights of Gated DeltaNet, but for the projections to decay and beta."""
    blk, r = f"blk.{layer}", _widths(hp)
    yield from linear_needs(f"{blk}.attn_qkv", r.n_channels, hp.n_embd, bias=False)
    yield from linear_needs(f"{blk}.attn_gate", r.width, hp.n_embd, bias=False)
    yield from conv_needs(r, blk)
    yield WeightNeed(f"{blk}.ssm_a", (r.n_heads,))
    yield WeightNeed(f"{blk}.ssm_norm.weight", (r.value_dim,))
    yield from linear_needs(f"{blk}.ssm_out", hp.n_embd, r.width, bias=False)


def delta_net(kit: ModelBuilder, x: Tensor, layer: int, beta: Tensor, alpha: Tensor) -> Tensor:
    """Apply Gated DeltaNet (Yang et al. 2024, "Gated Delta Networks") to x (T, n_embd).

    Args:
        kit: The graph.
        x: Normalised hidden state.
        layer: Number of the block.
        beta: Strength of updates before its sigmoid, (T, H) or (T, G, H / G).
        alpha: Decay before its softplus, of the same shape.
    """
    g, blk, r = kit.g, f"blk.{layer}", _widths(kit.hp)
    tokens, keys = x.shape[0], r.n_groups * r.key_dim
    # All products of x are neighbours, which a device may join; those of one type come first, as
    # files in q4_k_m have another for queries, keys and values.
    z = kit.linear(x, f"{blk}.attn_gate", "z")
    mixed = kit.linear(x, f"{blk}.attn_qkv", "qkv_mixed")
    both, v = kit.columns(convolve(kit, mixed, layer), (2 * keys, r.width))
    q, k = _halves(kit, _unit_heads(kit, both, "qk_conv"))
    biased = g.add(alpha, g.reshape(kit.weight(f"{blk}.ssm_dt.bias"), *alpha.shape[1:]))
    rate = g.reshape(g.softplus(biased, name="a_softplus"), tokens, -1)
    found = attend(
        kit,
        layer,
        q,
        k,
        heads(kit, v, r.n_heads),
        g.mul(rate, kit.weight(f"{blk}.ssm_a"), name="gate"),
        beta=g.reshape(g.sigmoid(beta, name="beta_sigmoid"), tokens, -1),
        # Heads of unit length, and the usual factor of attention.
        scale=r.key_dim**-0.5,
    )
    normed = kit.norm(found, f"{blk}.ssm_norm", "attn_out_norm")
    gated = g.swiglu(heads(kit, z, r.n_heads), normed, name="attn_out_gated")
    return kit.linear(g.reshape(gated, tokens, -1), f"{blk}.ssm_out", "linear_attn_out")


def _unit_heads(kit: ModelBuilder, x: Tensor, label: str) -> Tensor:
    """Return heads (T, G, N) of x (T, G*N), each of length 1."""
    g, width = kit.g, _widths(kit.hp).key_dim
    normed = g.rms_norm(heads(kit, x, x.shape[1] // width), kit.hp.norm_eps / width)
    return g.scale(normed, width**-0.5, name=f"{label}_unit")


def _halves(kit: ModelBuilder, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first and the second half of the heads of x (T, H, N)."""
    tokens, count, width = x.shape
    shape, first = (tokens, count // 2, width), count // 2 * x.strides[1]
    return kit.g.view(x, shape, x.strides), kit.g.view(x, shape, x.strides, first)


def heads(kit: ModelBuilder, x: Tensor, count: int) -> Tensor:
    """Return x (T, count * D) as (T, count, D)."""
    row, item = x.strides
    width = x.shape[1] // count
    return kit.g.view(x, (x.shape[0], count, width), (row, width * item, item))


def convolve(kit: ModelBuilder, x: Tensor, layer: int) -> Tensor:
    """Convolve x (T, C) along the tokens of each sequence, keep its last rows, apply SiLU."""
    g, blk, r = kit.g, f"blk.{layer}", _widths(kit.hp)
    kept = (r.taps - 1, r.n_channels)
    state, rows = _state(kit, f"{blk}.conv_state", *kept)
    weight = kit.weight(f"{blk}.ssm_conv1d.weight")
    out, after = g.short_conv(rows, x, weight, *_places(kit), name="conv_output")
    g.cpy(g.reshape(after, *state.shape), state, name="conv_state_set")
    bias = f"{blk}.ssm_conv1d.bias"
    out = g.add(out, kit.weight(bias), name="conv_output_b") if kit.has(bias) else out
    return g.silu(out, name="conv_output_silu")


def attend(
    kit: ModelBuilder,
    layer: int,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    *,
    beta: Tensor | None = None,
    scale: float = 1.0,
) -> Tensor:
    """Return linear attention (T, H, P), and keep its state; see ``GraphBuilder``."""
    g, r = kit.g, _widths(kit.hp)
    state, matrices = _state(kit, f"blk.{layer}.linear_state", r.n_heads, r.key_dim, r.value_dim)
    ids = _places(kit)
    out, after = g.linear_attention(
        matrices, q, k, v, decay, *ids, beta=beta, scale=scale, tiled=r.tiled, name="linear_attn"
    )
    g.cpy(g.reshape(after, *state.shape), state, name="linear_state_set")
    return out


def _state(kit: ModelBuilder, name: str, *shape: int) -> tuple[Tensor, Tensor]:
    """Return a state with a row for each slot, and what it looks like: (slots, *shape)."""
    state = kit.g.state(name, (kit.spec.n_slots, prod(shape)))
    return state, kit.g.reshape(state, kit.spec.n_slots, *shape)


def _places(kit: ModelBuilder) -> tuple[Tensor, Tensor]:
    """Return slot and position of each token."""
    assert kit.slots is not None  # models with such blocks have the input
    return kit.slots, kit.positions


def _widths(hp: HParams) -> Recurrent:
    assert hp.recurrent is not None  # refine has set it
    return hp.recurrent
