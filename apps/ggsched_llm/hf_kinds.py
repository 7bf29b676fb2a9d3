"""What folders of Hugging Face have beside the usual fields, for each ``model_type``."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from ggsched.errors import ModelError
from ggsched_llm import hf_hybrid
from ggsched_llm.gguf_header import MetaValue, quoted
from ggsched_llm.ignored_keys import Ignored, is_off, one_of

Names = Mapping[str, tuple[str, type]]


@dataclass(frozen=True, slots=True)
class Kind:
    """A ``model_type``.

    Attributes:
        arch: Its architecture.
        keys: Keys of GGUF files and the fields that say the same, beside those of all kinds.
        fixed: Keys that no field says.
        required: Fields of which the transformers library has a default that is not the key's.
        more: Returns keys that follow from several fields: of the path for messages, the fields.
        parts: Fields that say that a model has tensors, and ends of their names in GGUF files.
        normalises: Whether the weights of experts add up to one if no field says so.
        share: Part of each head that is rotated if no field says so; None: no field may.
        pairing: Elements of a head that are rotated together.
        scalings: Kinds of scaled rotation, beside linear.
        ffn_norm: Name of the norm in front of the network in GGUF files.
        ignored: Further fields that have no effect.
        rotation: The same of the rotation's fields.
    """

    arch: str
    keys: Names = field(default_factory=dict)
    fixed: Mapping[str, MetaValue] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    more: Callable[[str, Mapping[str, Any]], dict[str, MetaValue]] = lambda _path, _fields: {}
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    normalises: bool = False
    share: float | None = None
    pairing: Literal["adjacent", "halves"] = "halves"
    scalings: frozenset[str] = frozenset()
    ffn_norm: str = "ffn_norm"
    ignored: Mapping[str, Ignored] = field(default_factory=dict)
    rotation: Mapping[str, Ignored] = field(default_factory=dict)

    @property
    def has_experts(self) -> bool:
        """Whether blocks have experts."""
        return "expert_count" in self.keys

    @property
    def is_hybrid(self) -> bool:
        """Whether some blocks are Gated DeltaNet."""
        return "ssm.conv_kernel" in self.keys


_SAID: Final = "it says what the architecture does"
_NETWORK: Final = ("ffn_gate.bias", "ffn_up.bias", "ffn_down.bias")
_HEADS: Final = ("attn_q.bias", "attn_k.bias", "attn_v.bias")
_ATTENTION: Final = {"attention_bias": (*_HEADS, "attn_output.bias")}
_USED: Final[Names] = {
    "expert_used_count": ("num_experts_per_tok", int),
    "expert_feed_forward_length": ("moe_intermediate_size", int),
}
_QWEN: Final[Names] = {"expert_count": ("num_experts", int), **_USED}
_EVERY_LAYER: Final = {
    "decoder_sparse_step": Ignored("all blocks have experts", one_of(1)),
    "mlp_only_layers": Ignored("all blocks have experts", lambda blocks: blocks == []),
}
_DENSE_FIRST: Final[Names] = {
    **_USED,
    "expert_count": ("n_routed_experts", int),
    "expert_shared_count": ("n_shared_experts", int),
    "expert_weights_scale": ("routed_scaling_factor", float),
    "expert_group_count": ("n_group", int),
    "expert_group_used_count": ("topk_group", int),
    "leading_dense_block_count": ("first_k_dense_replace", int),
}
_SIGMOID: Final = {"expert_gating_func": 2}
_CODE: Final = Ignored("it is the code of the architecture")
_TRAINING: Final = Ignored("only training reads it")
_NEEDED: Final = (
    *("n_shared_experts", "routed_scaling_factor", "n_group", "topk_group"),
    "first_k_dense_replace",
)
_LATENT: Final[Names] = {
    **_DENSE_FIRST,
    "attention.kv_lora_rank": ("kv_lora_rank", int),
    "attention.q_lora_rank": ("q_lora_rank", int),
}
_DEEPSEEK: Final = {
    "auto_map": _CODE,
    "moe_layer_freq": Ignored("all blocks behind the dense ones have experts", one_of(1)),
    "rope_interleave": Ignored(_SAID, one_of(True)),
    **dict.fromkeys(("aux_loss_alpha", "seq_aux"), _TRAINING),
    "ep_size": Ignored("it says how a library spreads experts"),
}
_ABSENT: Final = Ignored("the model has no such part", is_off)
_MTP: Final = Ignored("blocks that predict further tokens are not computed")
_IMAGES: Final = Ignored("only text is read")
_AXES: Final = Ignored("of text all axes have one position")
_ONE: Final = Ignored("a factor of 1 changes nothing", one_of(1, 1.0))


def latent_keys(path: str, config: Mapping[str, Any]) -> dict[str, MetaValue]:
    """Return the keys of GGUF files that follow from the widths of latent attention.

    Args:
        path: Of the configuration, for messages.
        config: Its fields.

    Raises:
        ModelError: a value is missing, of another type, or not supported.
    """
    plain, rotated, value = (
        hf_hybrid.count(path, config, name)
        for name in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    )
    known: dict[str, tuple[Any, ...]] = {
        "head_dim": (None, rotated),
        "qk_head_dim": (None, plain + rotated),
        "rms_norm_eps": (1e-6,),  # latent rows are normalised with this one, whatever is said
    }
    if config.get("model_type") == "deepseek_v2":  # its library does not read norm_topk_prob
        greedy = (None, "greedy") if config.get("n_group") == 1 else ()
        known["topk_method"] = (*greedy, "group_limited_greedy")
        known["norm_topk_prob"] = (None, False)
    for name, values in known.items():
        if config.get(name) not in values:
            what = f"{name} {quoted(str(config.get(name)))} is not supported"
            raise ModelError(what, where=path, hint="convert the model to GGUF")
    return {
        "attention.key_length": plain + rotated,
        "attention.value_length": value,
        "rope.dimension_count": rotated,
    }


def _are_ones(kinds: Any) -> bool:
    return isinstance(kinds, list) and all(map(one_of(1), kinds))


def _is_of_qwen35(names: Any) -> bool:
    return names in (["Qwen3_5ForCausalLM"], ["Qwen3_5ForConditionalGeneration"])


KINDS: Final[Mapping[str, Kind]] = {
    "llama": Kind(
        "llama", parts={**_ATTENTION, "mlp_bias": _NETWORK}, scalings=frozenset({"llama3"})
    ),
    "mistral": Kind("llama", scalings=frozenset({"llama3"})),
    "qwen2": Kind("qwen2"),
    "qwen3": Kind("qwen3", parts=_ATTENTION),
    "qwen3_moe": Kind("qwen3moe", _QWEN, parts=_ATTENTION, ignored=_EVERY_LAYER),
    "qwen3_next": Kind(
        "qwen3next",
        {**_QWEN, **hf_hybrid.KEYS},
        more=hf_hybrid.hybrid_keys,
        normalises=True,
        share=0.25,
        ffn_norm="post_attention_norm",
        ignored=_EVERY_LAYER,
    ),
    "qwen3_5_text": Kind(
        "qwen35",
        hf_hybrid.KEYS,
        more=hf_hybrid.hybrid_keys,
        share=0.25,
        ffn_norm="post_attention_norm",
        ignored={
            "mlp_only_layers": _ABSENT,
            "attn_output_gate": Ignored(_SAID, one_of(True)),
            "mamba_ssm_dtype": Ignored("states are f32", one_of("float32")),
            "architectures": Ignored("model_type says the same", _is_of_qwen35),
            **dict.fromkeys(("mtp_num_hidden_layers", "mtp_use_dedicated_embeddings"), _MTP),
            **dict.fromkeys(
                (
                    *("vision_config", "vision_start_token_id", "vision_end_token_id"),
                    *("image_token_id", "video_token_id"),
                ),
                _IMAGES,
            ),
        },
        rotation=dict.fromkeys(("mrope_section", "mrope_interleaved"), _AXES),
    ),
    "glm4_moe": Kind(
        "glm4moe",
        _DENSE_FIRST,
        _SIGMOID,
        required=_NEEDED,
        parts={
            "attention_bias": _HEADS,
            "use_qk_norm": ("attn_q_norm.weight", "attn_k_norm.weight"),
        },
        normalises=True,
        share=0.5,
        ffn_norm="post_attention_norm",
    ),
    "deepseek_v2": Kind(
        "deepseek2",
        _LATENT,
        required=_NEEDED,
        more=latent_keys,
        pairing="adjacent",
        scalings=frozenset({"yarn"}),
        ignored={**_DEEPSEEK, "scoring_func": Ignored(_SAID, one_of("softmax"))},
    ),
    "deepseek_v3": Kind(
        "deepseek2",
        _LATENT,
        _SIGMOID,
        required=_NEEDED,
        more=latent_keys,
        normalises=True,
        pairing="adjacent",
        scalings=frozenset({"yarn"}),
        ignored={
            **_DEEPSEEK,
            "topk_method": Ignored(_SAID, one_of("noaux_tc")),
            "scoring_func": Ignored(_SAID, one_of("sigmoid")),
        },
    ),
    "minimax_m2": Kind(
        "minimax-m2",
        {
            **_USED,
            "expert_count": ("num_local_experts", int),
            "expert_feed_forward_length": ("intermediate_size", int),
        },
        _SIGMOID,
        normalises=True,
        share=1.0,
        ignored={
            "auto_map": _CODE,
            "attn_type_list": Ignored("all blocks attend", _are_ones),
            "mlp_intermediate_size": Ignored("no block has a dense network"),
            "qk_norm_type": Ignored(_SAID, one_of("per_layer")),
            "router_jitter_noise": _TRAINING,
            "scoring_func": Ignored(_SAID, one_of("sigmoid")),
            "shared_intermediate_size": _ABSENT,
            "shared_moe_mode": Ignored("there is no shared expert"),
            **dict.fromkeys(("use_qk_norm", "use_routing_bias"), Ignored(_SAID, one_of(True))),
            **dict.fromkeys(("use_mtp", "num_mtp_modules", "mtp_transformer_layers"), _MTP),
            **dict.fromkeys(
                tuple(
                    f"layernorm_{part}_beta"
                    for part in ("full_attention", "linear_attention", "mlp")
                ),
                _ONE,
            ),
        },
    ),
}
"""By ``model_type``."""
