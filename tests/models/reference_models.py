"""Small models whose logits llama.cpp computed; tests make the files again, to the byte.

Weights follow from the name of the model and of the tensor. ``tests/data/reference/record.py``
computes the logits.
"""

from dataclasses import dataclass, field
from functools import partial
from zlib import crc32

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import quantize

from ggsched.ir.dtype import dtype_by_name
from ggsched_testing.generators.values import random_blocks
from tests.models.helpers import Stored, write_gguf

V, N_CTX = 256, 256
GGML_BLOCKS = ("q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs", "q4_1", "q5_0", "q5_1")
# What llama.cpp does to a file of type q4_k_m, more or less.
Q4_K_M = {"attn_v": "q6_k", "ffn_down": "q6_k", "token_embd": "q6_k", "": "q4_k"}


@dataclass(frozen=True)
class Reference:
    """A model.

    Attributes:
        arch: Its architecture.
        kind: Type of its matrices, by part of their names ("" is all others).
        meta: Keys without the architecture, beside or instead of those of all models.
        parts: Names of the optional tensors of a block: see ``shapes``.
        sizes: embd, heads, kv, dim, ff, layers, experts, shared.
    """

    arch: str
    kind: dict[str, str]
    meta: dict[str, object] = field(default_factory=dict)
    parts: frozenset[str] = frozenset()
    sizes: dict[str, int] = field(default_factory=dict)


def _base_sizes(**more):
    return {"embd": 64, "heads": 4, "kv": 2, "dim": 16, "ff": 96, "layers": 3, "experts": 0} | more


def _family(arch, *parts, meta=None, **sizes):
    return partial(
        Reference, arch, meta=meta or {}, parts=frozenset(parts), sizes=_base_sizes(**sizes)
    )


EXPERTS = {"expert_count": 8, "expert_used_count": 2}
GEMMA = ("post_norms", "tied")
FACTORS = {"rope.scaling.attn_factor": 1.25}
FAMILIES = {
    "mixtral": _family("llama", meta=EXPERTS, experts=8),
    "qwen2": _family("qwen2", "qkv_bias"),
    "qwen3": _family("qwen3", "head_norms", "tied", dim=32),
    "qwen2moe": _family(
        "qwen2moe",
        "qkv_bias",
        meta={
            **EXPERTS,
            "expert_feed_forward_length": 32,
            "expert_shared_feed_forward_length": 64,
        },
        experts=8,
        expert_ff=32,
        shared=64,
    ),
    "gemma2": _family(
        "gemma2",
        *GEMMA,
        dim=32,
        meta={
            "attention.sliding_window": 8,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 3.0,
        },
    ),
    "gemma3": _family(
        "gemma3",
        *GEMMA,
        "head_norms",
        layers=7,
        meta={
            "attention.sliding_window": 8,
            "rope.freq_base": 1e6,
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0,
        },
    ),
    "phi3-short": _family(
        "phi3", "fused", "factors", meta={**FACTORS, "rope.scaling.original_context_length": 512}
    ),
    "phi3-long": _family(
        "phi3", "fused", "factors", meta={**FACTORS, "rope.scaling.original_context_length": 64}
    ),
}
LATENT = {
    **EXPERTS,
    "attention.head_count_kv": 1,
    "attention.key_length": 80,
    "attention.value_length": 64,
    "attention.key_length_mla": 48,
    "attention.value_length_mla": 24,
    "attention.q_lora_rank": 32,
    "attention.kv_lora_rank": 64,
    "rope.dimension_count": 16,
    "leading_dense_block_count": 1,
    "expert_feed_forward_length": 32,
    "expert_shared_count": 2,
}
_LATENT_SIZES = {
    "experts": 8, "expert_ff": 32, "shared": 64, "dense": 1, "dim": 48, "value": 24, "rank": 64,
    "rotated": 16, "query_rank": 32,
}  # fmt: skip
YARN = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 64,
    "rope.scaling.yarn_log_multiplier": 0.0707,
}
FAMILIES |= {
    "deepseek2": _family("deepseek2", meta={**LATENT, **YARN}, **_LATENT_SIZES),
    "deepseek3": _family(
        "deepseek2",
        "expert_bias",
        meta={
            **LATENT,
            "expert_gating_func": 2,
            "expert_weights_norm": True,
            "expert_weights_scale": 2.5,
            "expert_count": 12,
            "expert_used_count": 4,
            "expert_group_count": 4,
            "expert_group_used_count": 2,
        },
        **{**_LATENT_SIZES, "experts": 12},
    ),
}
_SSM = ("conv_kernel", "state_size", "group_count", "time_step_rank", "inner_size")


def _states(taps, width, groups, heads, across):
    """Return keys and sizes of recurrent blocks."""
    values = (taps, width, groups, heads, heads * across)
    keys = {f"ssm.{key}": value for key, value in zip(_SSM, values, strict=True)}
    return keys, {
        "taps": taps,
        "width": width,
        "groups": groups,
        "v_heads": heads,
        "across": across,
    }


_DELTA, _DELTA_SIZES = _states(4, 16, 2, 6, 16)
_MAMBA, _MAMBA_SIZES = _states(4, 32, 2, 8, 16)
HYBRID = {
    **EXPERTS,
    **_DELTA,
    "rope.dimension_count": 8,
    "expert_feed_forward_length": 32,
    "expert_shared_feed_forward_length": 64,
}
_HYBRID_SIZES = {
    "experts": 8, "expert_ff": 32, "shared": 64, "dim": 32, "layers": 4, "every": 4, **_DELTA_SIZES,
}  # fmt: skip
_EVERY_SECOND = {"full_attention_interval": 2, "rope.dimension_sections": [2, 1, 1, 0]}
# Heads of states as wide as those of published models. What 16 elements of a head add up to may be
# next to nothing, and the norm of the head then amplifies how it was rounded.
_WIDE_STATES, _WIDE_STATE_SIZES = _states(4, 128, 2, 4, 128)
_WIDE_HYBRID = {**HYBRID, **_WIDE_STATES}
_WIDE_HYBRID_SIZES = {**_HYBRID_SIZES, **_WIDE_STATE_SIZES}
FAMILIES |= {
    "qwen3next": _family("qwen3next", "head_norms", "ba", meta=HYBRID, **_HYBRID_SIZES),
    "qwen35moe": _family(
        "qwen35moe",
        "head_norms",
        meta={**HYBRID, **_EVERY_SECOND},
        **{**_HYBRID_SIZES, "layers": 3, "every": 2},
    ),
    "qwen3next-wide": _family(
        "qwen3next", "head_norms", "ba", meta=_WIDE_HYBRID, **_WIDE_HYBRID_SIZES
    ),
    "qwen35moe-wide": _family(
        "qwen35moe",
        "head_norms",
        meta={**_WIDE_HYBRID, **_EVERY_SECOND},
        **{**_WIDE_HYBRID_SIZES, "layers": 3, "every": 2},
    ),
    "qwen35": _family(
        "qwen35",
        "head_norms",
        meta={**_WIDE_STATES, **_EVERY_SECOND, "rope.dimension_count": 8},
        **{**_WIDE_HYBRID_SIZES, "layers": 3, "every": 2, "experts": 0},
    ),
    "mamba2": _family("mamba2", meta=_MAMBA, every=1 << 16, **_MAMBA_SIZES),
}
_EXPERT_SIZES = {"experts": 8, "expert_ff": 32}
_EXPERT_KEYS = {**EXPERTS, "expert_feed_forward_length": 32}
FAMILIES |= {
    "qwen3moe": _family("qwen3moe", "head_norms", meta=_EXPERT_KEYS, dim=32, **_EXPERT_SIZES),
    "gptoss": _family(
        "gpt-oss",
        "qkv_bias",
        "sinks",
        meta={
            **_EXPERT_KEYS,
            "attention.sliding_window": 8,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 64,
        },
        layers=4,
        **_EXPERT_SIZES,
    ),
}
_SIGMOIDS = {
    **_EXPERT_KEYS,
    "expert_gating_func": 2,
    "expert_weights_norm": True,
    "rope.dimension_count": 16,
}
FAMILIES |= {
    "glm4moe": _family(
        "glm4moe",
        *("qkv_bias", "head_norms", "expert_bias"),
        meta={
            **_SIGMOIDS,
            "leading_dense_block_count": 1,
            "expert_shared_count": 2,
            "expert_weights_scale": 1.5,
        },
        **{**_EXPERT_SIZES, "dim": 32, "shared": 64, "dense": 1},
    ),
    "minimax-m2": _family(
        "minimax-m2", "whole_norms", "expert_bias", meta=_SIGMOIDS, dim=32, ff=32, **_EXPERT_SIZES
    ),
}
ROUNDED_KINDS = {"gptoss": {"_exps": "mxfp4", "": "q8_0"}}
"""Types of matrices of the rounded model, where not all are q8_0."""

LONG = tuple(f"qwen3next{heads}-{kind}" for heads in ("", "-wide") for kind in ("f32", "q8_0"))
"""Models whose logits are recorded for a prompt of 128 tokens and 64 tokens after another too."""

SPREAD = ("qwen3next-f32", "qwen35moe-f32")
"""Models with narrow heads, whose distances to float64 are recorded over many positions."""

_WIDE = {"embd": 256, "heads": 4, "kv": 2, "dim": 64, "ff": 256, "layers": 2}
REFERENCES = {
    **{f"{name}-f32": family({"": "f32"}) for name, family in FAMILIES.items()},
    **{
        f"{name}-q8_0": family(ROUNDED_KINDS.get(name, {"": "q8_0"}))
        for name, family in FAMILIES.items()
    },
    **{f"llama-{kind}": _family("llama", **_WIDE)({"": kind}) for kind in ("f32", *GGML_BLOCKS)},
    "llama-q4_k_m": _family("llama", **_WIDE)(Q4_K_M),
}


def metadata(name, model):
    """Return the metadata of a model."""
    s = model.sizes
    own = {
        "context_length": N_CTX,
        "embedding_length": s["embd"],
        "block_count": s["layers"],
        "feed_forward_length": s["ff"],
        "attention.head_count": s["heads"],
        "attention.head_count_kv": s["kv"],
        "attention.key_length": s["dim"],
        "attention.value_length": s["dim"],
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": s["dim"],
        "rope.freq_base": 10000.0,
        "vocab_size": V,
        **model.meta,
    }
    general = {"general.architecture": model.arch, "general.name": name}
    return {
        **general,
        **{f"{model.arch}.{key}": value for key, value in own.items()},
        "tokenizer.ggml.model": "no_vocab",
    }


def shapes(model):
    """Return the shape of each tensor."""
    s, has = model.sizes, model.parts.__contains__
    e, ff, d = s["embd"], s["ff"], s["dim"]
    q, kv = s["heads"] * d, s["kv"] * d
    found = {"token_embd.weight": (V, e), "output_norm.weight": (e,)}
    if not has("tied"):
        found["output.weight"] = (V, e)
    if has("factors"):
        found |= {f"rope_factors_{length}.weight": (d // 2,) for length in ("long", "short")}
    for i in range(s["layers"]):
        one = {"attn_norm": (e,), "attn_output": (e, q), "ffn_norm": (e,)}
        if has("fused"):
            one |= {"attn_qkv": (q + 2 * kv, e), "ffn_up": (2 * ff, e), "ffn_down": (e, ff)}
        else:
            one |= {"attn_q": (q, e), "attn_k": (kv, e), "attn_v": (kv, e)}
        if s.get("rank"):
            one = _latent_shapes(s)
        if has("head_norms") or has("whole_norms"):
            widths = (d, d) if has("head_norms") else (q, kv)
            one |= {f"attn_{part}_norm": (n,) for part, n in zip("qk", widths, strict=True)}
        if s.get("every"):
            one = _state_shapes(model, one, (i + 1) % s["every"] != 0)
        if model.arch in ("gpt-oss", "glm4moe"):
            one["post_attention_norm"] = one.pop("ffn_norm")
        if has("post_norms"):
            one |= {"post_attention_norm": (e,), "post_ffw_norm": (e,)}
        one |= _network_shapes(model, i)
        for part, shape in one.items():
            is_whole = part.endswith((".bias", "ssm_a", "ssm_d"))
            found[f"blk.{i}.{part}" if is_whole else f"blk.{i}.{part}.weight"] = shape
        if has("expert_bias") and i >= s.get("dense", 0):
            found[f"blk.{i}.exp_probs_b.bias"] = (s["experts"],)
        found |= _further_shapes(model, f"blk.{i}", one)
    return found


def _further_shapes(model, blk, one):
    """Return the shapes of biases and sinks, by those of the weights of a block."""
    parts = [f"attn_{part}" for part in "qkv"] if "qkv_bias" in model.parts else []
    found = {}
    if "sinks" in model.parts:
        found[f"{blk}.attn_sinks.weight"] = (model.sizes["heads"],)
        parts += [p for p in one if p == "attn_output" or p.startswith("ffn_")]
    return found | {f"{blk}.{part}.bias": one[part][:-1] for part in parts}


def _network_shapes(model, i):
    """Return the shapes of the network of a block, where it is not among the others."""
    s, e, ff = model.sizes, model.sizes["embd"], model.sizes["ff"]
    if s["experts"] and i >= s.get("dense", 0):
        return _expert_shapes(s)
    if "fused" in model.parts or model.arch == "mamba2":
        return {}
    return {"ffn_gate": (ff, e), "ffn_up": (ff, e), "ffn_down": (e, ff)}


def _latent_shapes(s):
    """Return the shapes of latent attention."""
    e, heads, rank, rotated = s["embd"], s["heads"], s["rank"], s["rotated"]
    return {
        "attn_norm": (e,),
        "ffn_norm": (e,),
        "attn_output": (e, heads * s["value"]),
        "attn_q_a": (s["query_rank"], e),
        "attn_q_a_norm": (s["query_rank"],),
        "attn_q_b": (heads * s["dim"], s["query_rank"]),
        "attn_kv_a_mqa": (rank + rotated, e),
        "attn_kv_a_norm": (rank,),
        "attn_k_b": (heads, rank, s["dim"] - rotated),
        "attn_v_b": (heads, s["value"], rank),
    }


def _state_shapes(model, attention, is_recurrent):
    """Return the shapes of a block of a hybrid, or of Mamba-2, without its experts."""
    s, e = model.sizes, model.sizes["embd"]
    norms = {"attn_norm": (e,), "post_attention_norm": (e,)}
    if not is_recurrent:
        wide = {"attn_q": (2 * s["heads"] * s["dim"], e)}
        kept = {part: shape for part, shape in attention.items() if part != "ffn_norm"}
        return {**kept, **wide, **norms}
    keys, heads, inner = s["groups"] * s["width"], s["v_heads"], s["v_heads"] * s["across"]
    channels = 2 * keys + inner
    own = {
        "ssm_conv1d": (channels, s["taps"]),
        "ssm_dt.bias": (heads,),
        "ssm_out": (e, inner),
    }
    if model.arch == "mamba2":
        more = {"ssm_in": (inner + channels + heads, e), "ssm_conv1d.bias": (channels,)}
        more |= {"ssm_a": (heads, 1), "ssm_d": (heads, 1)}
        return {"attn_norm": (e,), **own, **more, "ssm_norm": (s["groups"], inner // s["groups"])}
    own |= {"attn_qkv": (channels, e), "attn_gate": (inner, e), "ssm_norm": (s["across"],)}
    apart = {"ssm_beta": (heads, e), "ssm_alpha": (heads, e)}
    both = {"ssm_ba": (2 * heads, e)} if "ba" in model.parts else apart
    return {**norms, **own, **both, "ssm_a": (heads,)}


def _expert_shapes(s):
    """Return the shapes of experts, and of the one that is shared."""
    e, width, experts = s["embd"], s.get("expert_ff", s["ff"]), s["experts"]
    one = {"ffn_gate_inp": (experts, e), "ffn_down_exps": (experts, e, width)}
    one |= {f"ffn_{part}_exps": (experts, width, e) for part in ("gate", "up")}
    if s.get("shared"):
        one |= {f"ffn_{part}_shexp": (s["shared"], e) for part in ("gate", "up")}
        one["ffn_down_shexp"] = (e, s["shared"])
        if not s.get("dense"):
            one["ffn_gate_inp_shexp"] = (e,)
    return one


def tensor(model_name, model, name, shape):
    """Return a tensor as it goes into the file."""
    base = model_name.rsplit("-", 1)[0]  # the weights of all types are the same, then rounded
    rng = np.random.default_rng([crc32(base.encode()), crc32(name.encode())])
    if "norm" in name or "factors" in name:
        low, high = (1.0, 8.0) if "long" in name else (0.75, 1.25)
        return _f32(rng.uniform(low, high, shape))
    if name.endswith(".ssm_a"):
        return _f32(-np.exp(rng.uniform(-3.0, 1.0, shape)))
    if name.endswith(".ssm_d"):
        return _f32(rng.uniform(0.75, 1.25, shape))
    if len(shape) == 1 or name.endswith("_exps.bias"):
        return _f32(rng.uniform(-0.25, 0.25, shape))
    is_vocabulary = name in ("token_embd.weight", "output.weight")
    amp = np.sqrt(3.0) * (0.25 if is_vocabulary else 1 / np.sqrt(shape[-1]))
    kind = next(kind for part, kind in model.kind.items() if part in name)
    if "gate_inp" in name or "conv1d" in name or kind == "f32":
        return _f32(rng.uniform(-amp, amp, shape))
    if kind in GGML_BLOCKS:
        raw = _centred(random_blocks(dtype_by_name(kind), shape, amp, rng), kind).tobytes()
    else:
        values = rng.uniform(-amp, amp, shape).astype(np.float32)
        raw = quantize(values, GGMLQuantizationType[kind.upper()]).tobytes()
    return Stored(raw, shape, int(GGMLQuantizationType[kind.upper()]))


def _centred(packed, kind):
    """Let minimums be such that elements are around 0, as of trained models."""
    layout = dtype_by_name(kind).layout
    if layout.min is None:
        return packed
    blocks = packed.reshape(-1, layout.nbytes)
    scale = blocks[:, layout.scale.at : layout.scale.at + 2].copy().view("<f2")
    middle = sum(layout.codes.range) / 2
    added = (-layout.min.sign * middle * scale.astype(np.float32)).astype("<f2")
    blocks[:, layout.min.at : layout.min.at + 2] = added.view(np.uint8)
    return packed


def _f32(values):
    return Stored(values.astype(np.float32).tobytes(), values.shape)


def write_reference(path, name):
    """Write the file of a model."""
    model = REFERENCES[name]
    tensors = {n: tensor(name, model, n, shape) for n, shape in shapes(model).items()}
    return write_gguf(path, metadata(name, model), tensors)
