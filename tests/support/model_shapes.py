"""Well-known models: their architecture, the keys of their files, and the kind of their vocabulary.

Numbers are those of the published configurations; one model, or two, of each family that runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Key = int | float | bool | str | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Shape:
    """A model without its weights.

    Attributes:
        arch: Its architecture.
        keys: Without the architecture in front.
        vocabulary: ``gpt2``: byte-level BPE; ``llama``: SentencePiece.
        pre: Name of the pre-tokenizer (``gpt2`` only).
        extras: Ends of names of optional tensors that its files have.
    """

    arch: str
    keys: Mapping[str, Key]
    vocabulary: Literal["gpt2", "llama"] = "gpt2"
    pre: str = "qwen2"
    extras: tuple[str, ...] = ("output.weight",)

    def with_layers(self, n_layer: int | None) -> Mapping[str, Key]:
        """Return the keys of a model of fewer blocks: the first ones.

        Hybrids keep a block that attends.
        """
        if not n_layer:
            return self.keys
        keys = {**self.keys, "block_count": n_layer}
        interval = keys.get("full_attention_interval")
        if isinstance(interval, int):
            keys["full_attention_interval"] = min(interval, n_layer)
        return keys


def _attention(heads: int, kv: int, width: int, base: float = 1e6) -> dict[str, Key]:
    return {
        "attention.head_count": heads,
        "attention.head_count_kv": kv,
        "attention.key_length": width,
        "attention.value_length": width,
        "rope.dimension_count": width,
        "rope.freq_base": base,
    }


def _sizes(context: int, width: int, blocks: int, network: int, vocabulary: int) -> dict[str, Key]:
    return {
        "context_length": context,
        "embedding_length": width,
        "block_count": blocks,
        "feed_forward_length": network,
        "vocab_size": vocabulary,
        "attention.layer_norm_rms_epsilon": 1e-6,
    }


def _experts(count: int, used: int, width: int = 0, shared: int = 0) -> dict[str, Key]:
    keys: dict[str, Key] = {"expert_count": count, "expert_used_count": used}
    if width:
        keys["expert_feed_forward_length"] = width
    if shared:
        keys["expert_shared_feed_forward_length"] = shared
    return keys


def _states(width: int, groups: int, heads: int, inner: int) -> dict[str, Key]:
    return {
        "ssm.conv_kernel": 4,
        "ssm.state_size": width,
        "ssm.group_count": groups,
        "ssm.time_step_rank": heads,
        "ssm.inner_size": inner,
    }


_SECTIONS: Final[Key] = (11, 11, 10, 0)
_CHOOSING: Final = "exp_probs_b.bias"
_BIASES: Final = ("attn_q.bias", "attn_k.bias", "attn_v.bias")
_DEEPSEEK: Final[Mapping[str, Key]] = {
    "attention.value_length": 512,
    "attention.key_length_mla": 192,
    "attention.value_length_mla": 128,
    "attention.kv_lora_rank": 512,
    "rope.dimension_count": 64,
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 40.0,
    "rope.scaling.original_context_length": 4096,
}
SHAPES: Final[Mapping[str, Shape]] = {
    "llama-8b": Shape(
        "llama",
        _sizes(131072, 4096, 32, 14336, 128256) | _attention(32, 8, 128, 5e5),
        pre="llama-bpe",
        extras=("output.weight", "rope_freqs.weight"),
    ),
    "mixtral-8x7b": Shape(
        "llama",
        _sizes(32768, 4096, 32, 14336, 32000) | _attention(32, 8, 128) | _experts(8, 2),
        "llama",
    ),
    "qwen2-7b": Shape(
        "qwen2",
        _sizes(32768, 3584, 28, 18944, 152064) | _attention(28, 4, 128),
        extras=("output.weight", *_BIASES),
    ),
    "qwen3-8b": Shape("qwen3", _sizes(40960, 4096, 36, 12288, 151936) | _attention(32, 8, 128)),
    "qwen2moe-a2.7b": Shape(
        "qwen2moe",
        _sizes(8192, 2048, 24, 5632, 151936)
        | _attention(16, 16, 128)
        | _experts(60, 4, 1408, 5632),
        extras=("output.weight", *_BIASES),
    ),
    "qwen3-30b": Shape(
        "qwen3moe",
        _sizes(262144, 2048, 48, 6144, 151936) | _attention(32, 4, 128) | _experts(128, 8, 768),
    ),
    "gemma2-9b": Shape(
        "gemma2",
        _sizes(8192, 3584, 42, 14336, 256000)
        | _attention(16, 8, 256, 1e4)
        | {
            "attention.sliding_window": 4096,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
        "llama",
        extras=(),
    ),
    "gemma3-12b": Shape(
        "gemma3",
        _sizes(131072, 3840, 48, 15360, 262208)
        | _attention(16, 8, 256)
        | {
            "attention.sliding_window": 1024,
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0,
        },
        "llama",
        extras=(),
    ),
    "phi3-mini": Shape(
        "phi3",
        _sizes(131072, 3072, 32, 8192, 32064)
        | _attention(32, 32, 96, 1e4)
        | {
            "rope.scaling.original_context_length": 4096,
            "rope.scaling.attn_factor": 1.19,
        },
        "llama",
        extras=("output.weight", "rope_factors_long.weight", "rope_factors_short.weight"),
    ),
    "deepseek2-lite": Shape(
        "deepseek2",
        _sizes(163840, 2048, 27, 10944, 102400)
        | _attention(16, 1, 576, 1e4)
        | _experts(64, 6, 1408)
        | _DEEPSEEK
        | {
            "leading_dense_block_count": 1,
            "expert_shared_count": 2,
            "expert_weights_scale": 1.0,
            "rope.scaling.yarn_log_multiplier": 0.0707,
        },
        pre="deepseek-llm",
    ),
    "deepseek3-671b": Shape(
        "deepseek2",
        _sizes(163840, 7168, 61, 18432, 129280)
        | _attention(128, 1, 576, 1e4)
        | _experts(256, 8, 2048)
        | _DEEPSEEK
        | {
            "attention.q_lora_rank": 1536,
            "leading_dense_block_count": 3,
            "expert_shared_count": 1,
            "expert_weights_scale": 2.5,
            "expert_weights_norm": True,
            "expert_gating_func": 2,
            "expert_group_count": 8,
            "expert_group_used_count": 4,
            "rope.scaling.yarn_log_multiplier": 0.1,
        },
        pre="deepseek-v3",
        extras=("output.weight", _CHOOSING),
    ),
    "glm-4.5-air": Shape(
        "glm4moe",
        _sizes(131072, 4096, 46, 10944, 151552)
        | _attention(96, 8, 128)
        | _experts(128, 8, 1408)
        | {
            "rope.dimension_count": 64,
            "leading_dense_block_count": 1,
            "expert_shared_count": 1,
            "expert_weights_scale": 1.0,
            "expert_weights_norm": True,
            "expert_gating_func": 2,
        },
        pre="glm4",
        extras=("output.weight", _CHOOSING, *_BIASES),
    ),
    "minimax-m2": Shape(
        "minimax-m2",
        _sizes(196608, 3072, 62, 1536, 200064)
        | _attention(48, 8, 128, 5e6)
        | _experts(256, 8, 1536)
        | {"rope.dimension_count": 64, "expert_gating_func": 2},
        pre="minimax-m2",
    ),
    "qwen3next-80b": Shape(
        "qwen3next",
        _sizes(262144, 2048, 48, 5120, 151936)
        | _attention(16, 2, 256, 1e7)
        | _experts(512, 10, 512, 512)
        | _states(128, 16, 32, 4096)
        | {"rope.dimension_count": 64, "full_attention_interval": 4},
    ),
    "qwen35moe-35b": Shape(
        "qwen35moe",
        _sizes(262144, 2048, 40, 512, 248320)
        | _attention(16, 2, 256, 1e7)
        | _experts(256, 8, 512, 512)
        | _states(128, 16, 32, 4096)
        | {
            "rope.dimension_count": 64,
            "rope.dimension_sections": _SECTIONS,
            "full_attention_interval": 4,
        },
        pre="qwen35",
    ),
    "qwen35-9b": Shape(
        "qwen35",
        _sizes(262144, 4096, 32, 12288, 248320)
        | _attention(16, 4, 256, 1e7)
        | _states(128, 16, 32, 4096)
        | {
            "rope.dimension_count": 64,
            "rope.dimension_sections": _SECTIONS,
            "full_attention_interval": 4,
        },
        pre="qwen35",
    ),
    "mamba2-2.7b": Shape(
        "mamba2",
        _sizes(1048576, 2560, 64, 0, 50288) | _states(128, 1, 80, 5120),
        pre="olmo",
        extras=(),
    ),
    "mamba2-7b": Shape(
        "mamba2",
        _sizes(1048576, 4096, 64, 0, 32768) | _states(128, 8, 128, 8192),
        "llama",
    ),
    "gpt-oss-20b": Shape(
        "gpt-oss",
        _sizes(131072, 2880, 24, 2880, 201088)
        | _attention(64, 8, 64, 1.5e5)
        | _experts(32, 4, 2880)
        | {
            "attention.sliding_window": 128,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 32.0,
            "rope.scaling.original_context_length": 4096,
        },
        pre="gpt-4o",
    ),
}
"""By name."""
