"""Keys of models that have no effect on results, each with the reason.

A key that is neither read nor listed is refused: a fact about the model that nothing understands
would otherwise give wrong results without a word. Some keys are listed with the values at which
they mean what holds without them, such as a scale of 1.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple


class Ignored(NamedTuple):
    """Why a key may be ignored.

    Attributes:
        reason: Completes "may be ignored, because ...".
        accepts: Whether that holds for a value.
    """

    reason: str
    accepts: Callable[[Any], bool] = lambda _value: True


def is_off(value: Any) -> bool:
    """Whether a value is 0, false, null or empty, or an array of such values."""
    return all(map(is_off, value)) if isinstance(value, tuple | list) else not value


def one_of(*values: Any) -> Callable[[Any], bool]:
    """Return what accepts these values only; ``True`` is not 1 here."""
    return lambda value: any(type(value) is type(v) and value == v for v in values)


def _unit(value: Any) -> bool:
    return type(value) in (int, float) and value in (0, 1)


_YARN: Final = Ignored("only YaRN reads it")
_OFF: Final = Ignored("0 means that the model has no such part", is_off)
_UNIT: Final = Ignored("a factor of 1 changes nothing, and 0 means none", _unit)
NO_DENSE: Final = Ignored("no block has a dense network")
NO_ATTENTION: Final = Ignored("no block attends")

GGUF: Final[Mapping[str, Ignored]] = {
    "tensor_data_layout": Ignored("the architecture states how rows of heads are ordered"),
    "rope.scaling.finetuned": Ignored("it says how the model was trained"),
    "rope.scale_linear": Ignored("rope.scaling.factor replaces it"),
    "rope.scaling.original_context_length": _YARN,
    "rope.scaling.yarn_ext_factor": _YARN,
    "rope.scaling.yarn_attn_factor": _YARN,
    "rope.scaling.yarn_beta_fast": _YARN,
    "rope.scaling.yarn_beta_slow": _YARN,
    "rope.scaling.yarn_log_multiplier": _YARN,
    "attention.layer_norm_epsilon": Ignored("no block has a LayerNorm"),
    "attention.causal": Ignored("every architecture here is causal", one_of(True)),
    "attention.sliding_window_pattern": Ignored("there is no window, or it exceeds the context"),
    "pooling_type": Ignored("embeddings of texts are not computed"),
    **dict.fromkeys(
        ("logit_scale", "residual_scale", "embedding_scale", "expert_weights_scale"), _UNIT
    ),
    **dict.fromkeys(("expert_group_count", "expert_group_used_count"), _UNIT),
    **dict.fromkeys(
        (
            "use_parallel_residual",
            "attn_logit_softcapping",
            "final_logit_softcapping",
            "router_logit_softcapping",
            "attention.clamp_kqv",
            "attention.max_alibi_bias",
            "attention.scale",
            "attention.temperature_scale",
            "leading_dense_block_count",
            "expert_count",
            "expert_used_count",
            "expert_shared_count",
            "expert_feed_forward_length",
            "expert_shared_feed_forward_length",
            "expert_gating_func",
            "expert_weights_norm",
            "rope.dimension_sections",
            "ssm.dt_b_c_rms",
        ),
        _OFF,
    ),
}
"""Keys of GGUF files, without the architecture. Architectures have further ones of their own."""

_FILLING: Final = Ignored("gaps in code are not filled")
_NEVER_INSERTED: Final = Ignored("nothing inserts such a token")
_UNIGRAM: Final = Ignored("only unigram vocabularies read it")

TOKENIZER: Final[Mapping[str, Ignored]] = {
    **dict.fromkeys(
        tuple(
            f"{role}_token_id"
            for role in ("padding", "seperator", "separator", "cls", "mask", "classifier")
        ),
        _NEVER_INSERTED,
    ),
    **dict.fromkeys(
        tuple(
            f"{role}_token_id"
            for role in ("prefix", "middle", "suffix", "fim_pre", "fim_mid", "fim_suf")
        ),
        _FILLING,
    ),
    "remove_extra_whitespaces": _UNIGRAM,
    "precompiled_charsmap": _UNIGRAM,
    "scores": Ignored("merges are in their order"),
    "merges": Ignored("scores say what is merged"),
    "token_type_count": Ignored("only encoders tell segments apart"),
    "add_sep_token": Ignored("no separator is added", is_off),
}
"""Keys of the vocabularies that are read, without ``tokenizer.ggml.``."""
