"""The ``mamba2`` architecture: blocks of Mamba-2 (Dao and Gu 2024), without attention."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from ggsched.ir.tensor import Tensor
from ggsched_llm.architecture import Architecture
from ggsched_llm.hparams import HParams
from ggsched_llm.ignored_keys import NO_ATTENTION, NO_DENSE
from ggsched_llm.layers import ModelBuilder
from ggsched_llm.metadata_keys import Keys
from ggsched_llm.recurrent import attend, conv_needs, convolve, heads, read_recurrent
from ggsched_llm.spec import WeightNeed, linear_needs


def needs(hp: HParams) -> Iterator[WeightNeed]:
    """Yield the weights of the blocks."""
    r = hp.recurrent
    assert r is not None
    for layer in range(hp.n_layer):
        blk = f"blk.{layer}"
        yield WeightNeed(f"{blk}.attn_norm.weight", (hp.n_embd,))
        n_in = r.width + r.n_channels + r.n_heads
        yield from linear_needs(f"{blk}.ssm_in", n_in, hp.n_embd, bias=False)
        yield from conv_needs(r, blk)
        yield WeightNeed(f"{blk}.ssm_conv1d.bias", (r.n_channels,))
        yield WeightNeed(f"{blk}.ssm_a", (r.n_heads, 1))
        yield WeightNeed(f"{blk}.ssm_d", (r.n_heads, 1))
        yield WeightNeed(f"{blk}.ssm_norm.weight", (r.n_groups, r.width // r.n_groups))
        yield from linear_needs(f"{blk}.ssm_out", hp.n_embd, r.width, bias=False)


def block(kit: ModelBuilder, x: Tensor, layer: int) -> Tensor:
    """Apply block ``layer`` to the hidden states x (T, n_embd)."""
    blk = f"blk.{layer}"
    with kit.g.scope(blk):
        out = _mix(kit, kit.norm(x, f"{blk}.attn_norm", "attn_norm"), layer)
        out, x = kit.wanted_rows(out, x, layer)
        return kit.g.add(out, x, name="l_out")


def _mix(kit: ModelBuilder, x: Tensor, layer: int) -> Tensor:
    g, blk, r = kit.g, f"blk.{layer}", kit.hp.recurrent
    assert r is not None
    tokens, keys = x.shape[0], r.n_groups * r.key_dim
    mixed = kit.linear(x, f"{blk}.ssm_in", "zxbcdt")
    z, channels, raw = kit.columns(mixed, (r.width, r.n_channels, r.n_heads))
    values, k, q = kit.columns(convolve(kit, channels, layer), (r.width, keys, keys))
    step = g.softplus(g.add(raw, kit.weight(f"{blk}.ssm_dt.bias"), name="dt_b"), name="dt")
    decay = g.mul(step, g.reshape(kit.weight(f"{blk}.ssm_a"), -1), name="decay")
    values = heads(kit, values, r.n_heads)
    v = g.mul(values, g.reshape(step, tokens, -1, 1), name="x_dt")
    found = attend(kit, layer, heads(kit, q, r.n_groups), heads(kit, k, r.n_groups), v, decay)
    passed = g.mul(values, kit.weight(f"{blk}.ssm_d"), name="x_d")
    y = g.swiglu(heads(kit, z, r.n_heads), g.add(found, passed, name="y_add_d"), name="y_gated")
    normed = kit.norm(g.reshape(y, tokens, r.n_groups, -1), f"{blk}.ssm_norm", "y_norm")
    return kit.linear(g.reshape(normed, tokens, -1), f"{blk}.ssm_out", "mamba_out")


def refine(keys: Keys, hp: HParams) -> HParams:
    """Read widths of the states."""
    return replace(hp, recurrent=read_recurrent(keys, [True] * hp.n_layer))


_OF_ATTENTION: Final = (
    *(f"attention.{name}" for name in ("head_count", "head_count_kv", "key_length")),
    *("attention.value_length", "rope.dimension_count", "rope.freq_base"),
)
ARCHITECTURE: Final = Architecture(
    "mamba2",
    needs,
    block,
    has_attention=False,
    ignored={**dict.fromkeys(_OF_ATTENTION, NO_ATTENTION), "feed_forward_length": NO_DENSE},
    refine=refine,
)
