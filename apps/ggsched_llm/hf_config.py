"""``config.json`` of a folder of Hugging Face as metadata of GGUF files.

Defaults are those of the transformers library. A field that is neither read here nor listed in
``IGNORED`` is refused, see ``ggsched_llm.ignored_keys``.
"""

import os
from collections.abc import Mapping
from math import pi
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ggsched.errors import ModelError
from ggsched_llm.gguf_header import MetaValue, quoted, shown
from ggsched_llm.hf_hybrid import count
from ggsched_llm.hf_kinds import KINDS
from ggsched_llm.ignored_keys import Ignored, is_off, one_of
from ggsched_llm.metadata_keys import NotedKeys, not_understood

PAIRING_KEY: Final = "rope.pairing"
"""What rotation pairs, where GGUF files may have reordered weights."""
_KEYS: Final[Mapping[str, tuple[str, type]]] = {
    "context_length": ("max_position_embeddings", int),
    "embedding_length": ("hidden_size", int),
    "block_count": ("num_hidden_layers", int),
    "feed_forward_length": ("intermediate_size", int),
    "attention.head_count": ("num_attention_heads", int),
    "attention.head_count_kv": ("num_key_value_heads", int),
    "attention.key_length": ("head_dim", int),
    "attention.value_length": ("head_dim", int),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps", float),
    "vocab_size": ("vocab_size", int),
}
_EXPERT_COUNTS: Final = ("num_experts", "num_local_experts")
"""Names of one field, the second as transformers 5 writes it."""
_ACTIVATIONS: Final[Mapping[str, str]] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu",
    "gelu_new": "gelu",
    "gelu_fast": "gelu",
}
_MISTRAL_WINDOW: Final = 4096
_WINDOW_LAYERS: Final = 28
_FULL: Final = "full_attention"
_SLIDING: Final = "sliding_attention"
_WIDE: Final = 1 << 20
_MAX_LAYERS: Final = 1 << 16
_TOO_LARGE: Final = 1e300
"""JSON has no bound for integers; a float does, and is not infinite."""

_TRAINING: Final = Ignored("only training reads it")
_LIBRARY: Final = Ignored("it says how the transformers library stores, loads or runs the model")
_GENERATION: Final = Ignored("it is a default of the transformers library for generating text")
_TOKENIZER: Final = Ignored("the tokenizer's files are read instead")
_OTHER_TASKS: Final = Ignored("it is for models of other tasks")
_OFF: Final = Ignored("the model has no such part", is_off)


def _is_causal(names: Any) -> bool:
    return isinstance(names, list) and all(str(name).endswith("ForCausalLM") for name in names)


def _has_no_model(names: Any) -> bool:
    return isinstance(names, dict) and not any(str(n).startswith("AutoModel") for n in names)


IGNORED: Final[Mapping[str, Ignored]] = {
    "architectures": Ignored("model_type says the same", _is_causal),
    "auto_map": Ignored("it names no code of a model of its own", _has_no_model),
    "pretraining_tp": Ignored("it changes the order of sums only"),
    "sliding_window": Ignored("use_sliding_window is false"),
    "max_window_layers": Ignored("use_sliding_window is false"),
    "rope_interleaved": Ignored("it says what holds without it", one_of(False)),
    "use_mrope": Ignored("it says what holds without it", one_of(False)),
    "is_llama_config": Ignored("model_type says the same"),
    **dict.fromkeys(
        (
            "initializer_range", "attention_dropout", "hidden_dropout", "hidden_dropout_prob",
            "attention_probs_dropout_prob", "resid_pdrop", "embd_pdrop", "router_aux_loss_coef",
            "output_router_logits",
        ),
        _TRAINING,
    ),
    **dict.fromkeys(
        (
            "_name_or_path", "_commit_hash", "_attn_implementation", "attn_implementation",
            "_attn_implementation_autoset", "torch_dtype", "dtype", "transformers_version",
            "transformers.js_config", "use_cache", "use_bfloat16", "torchscript", "return_dict",
            "output_attentions", "output_hidden_states", "tf_legacy_loss", "unsloth_version",
            "unsloth_fixed", "chunk_size_feed_forward", "is_decoder",
        ),
        _LIBRARY,
    ),
    **dict.fromkeys(
        (
            "max_length", "min_length", "do_sample", "early_stopping", "num_beams",
            "num_beam_groups", "diversity_penalty", "temperature", "top_k", "top_p", "typical_p",
            "repetition_penalty", "length_penalty", "no_repeat_ngram_size",
            "encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences",
            "output_scores", "return_dict_in_generate", "forced_bos_token_id",
            "forced_eos_token_id", "remove_invalid_values", "exponential_decay_length_penalty",
            "suppress_tokens", "begin_suppress_tokens",
        ),
        _GENERATION,
    ),
    **dict.fromkeys(
        (
            "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "tokenizer_class",
            "model_max_length",
        ),
        _TOKENIZER,
    ),
    **dict.fromkeys(
        (
            "id2label", "label2id", "num_labels", "finetuning_task", "problem_type", "prefix",
            "task_specific_params", "decoder_start_token_id",
        ),
        _OTHER_TASKS,
    ),
    **dict.fromkeys(
        (
            "is_encoder_decoder", "add_cross_attention", "cross_attention_hidden_size",
            "tie_encoder_decoder", "pruned_heads", "attention_bias", "mlp_bias", "num_experts",
            "num_local_experts", "num_experts_per_tok",
        ),
        _OFF,
    ),
}  # fmt: skip
"""Fields that have no effect, for every ``model_type``."""


def _of_text(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of a model of text and images with those of its text in front."""
    text = fields.get("text_config")
    if fields.get("model_type") != "qwen3_5" or not isinstance(text, dict):
        return fields
    outer = {name: value for name, value in fields.items() if name != "text_config"}
    tied = {k: outer[k] for k in ("tie_word_embeddings",) if k in outer}
    return {**outer, **{k: v for k, v in text.items() if v is not None}, **tied}


class HfConfig:
    """The fields of ``config.json``, with a record of those that were read.

    Attributes:
        arch: Architecture.
        kind: What its ``model_type`` has beside others.
    """

    def __init__(self, folder: str, fields: Mapping[str, Any], path: str) -> None:
        """Find the architecture.

        Raises:
            ModelError: it is not supported.
        """
        self._folder = folder
        self.path = path
        self.fields = NotedKeys(_of_text(fields))
        kind = self.fields.get("model_type")
        if not isinstance(kind, str) or kind not in KINDS:
            hint = f"supported: {', '.join(KINDS)}; convert others to GGUF"
            what = f"model_type {quoted(str(kind))} is not supported"
            raise ModelError(what, where=path, hint=hint)
        if self.fields.get("quantization_config"):
            hint = "convert the model to GGUF"
            raise ModelError("quantization_config is not supported", where=path, hint=hint)
        self._type, self.kind = kind, KINDS[kind]
        self.arch = self.kind.arch
        self._rope = self._rope_fields()

    def metadata(self) -> dict[str, MetaValue]:
        """Return the keys of GGUF files that the fields say.

        Raises:
            ModelError: a field is of another type, not supported, or not known.
        """
        found: dict[str, MetaValue] = {
            "general.architecture": self.arch,
            "general.name": os.path.basename(os.path.normpath(self._folder)),
            PAIRING_KEY: self.kind.pairing,
        }
        for name in self.kind.required:
            if self.fields.get(name) is None:
                raise ModelError(f"{name} is missing", where=self.path)
        own = {**self._numbers(), **self.kind.fixed, **self._scaling(), **self._window()}
        own |= {**self._network(), **self._rotated(), **self.kind.more(self.path, self.fields)}
        return found | {f"{self.arch}.{key}": value for key, value in own.items()}

    def predicting(self, names: Mapping[str, object]) -> dict[str, MetaValue]:
        """Return the keys of blocks that predict further tokens, if there are any.

        Args:
            names: Of tensors in GGUF files. Some folders say that there are such blocks, and have
                none.
        """
        blocks, extra = (
            self.fields.get(name) for name in ("num_hidden_layers", "num_nextn_predict_layers")
        )
        if not extra or f"blk.{blocks}.nextn.eh_proj.weight" not in names:
            return {}
        extra = self._number("num_nextn_predict_layers", extra, int)
        keys = {"block_count": blocks + extra, "nextn_predict_layers": extra}
        return {f"{self.arch}.{key}": value for key, value in keys.items()}

    def check_tensors(self, names: Mapping[str, object]) -> None:
        """Refuse tensors that contradict the fields, by their names in GGUF files.

        Raises:
            ModelError: there are biases where a field says that there are none, or the other way
                round; or there is no output matrix and none is shared.
        """
        for field, parts in self.kind.parts.items():
            wanted = self.fields.get(field) or False
            found = [name for name in names if name.endswith(tuple(f".{part}" for part in parts))]
            if wanted is not bool(found):
                has = f"there is {quoted(found[0])}" if found else "there are no such tensors"
                raise self._fail(field, wanted, has)
        if self.fields.get("tie_word_embeddings") is not True and "output.weight" not in names:
            why = "tie_word_embeddings is not true"
            raise ModelError("tensor lm_head.weight is missing", where=self._folder, why=why)

    def check_all_read(self) -> None:
        """Refuse fields that nothing has read.

        Raises:
            ModelError: there is one that must not be ignored.
        """
        left = self.fields.unread("", {**IGNORED, **self.kind.ignored})
        left = [name for name in left if self.fields[name] is not None]
        for name in filter(self.kind.ignored.__contains__, left):
            raise self._fail(name, self.fields[name])
        if left:
            raise not_understood(self.path, left, self.fields)
        left = self._rope.unread("", self.kind.rotation)
        if left:
            raise not_understood(f"{self.path}: rope_scaling", left, self._rope)

    def rope_factors(self) -> NDArray[np.float32] | None:
        """Return what divides the frequencies of the rotation, as Llama 3.1 scales them.

        Frequencies of few rotations in the original context are divided by ``factor``, those of
        many stay as they are, and between them the two are blended.

        Raises:
            ModelError: a field is missing or out of range.
        """
        if self._rope_kind() != "llama3":
            return None
        names = ("factor", "low_freq_factor", "high_freq_factor")
        factor, low, high = (self._positive(name) for name in names)
        context = self._positive("original_max_position_embeddings")
        if not low < high:
            raise self._fail("low_freq_factor", low, f"high_freq_factor is {high}")
        hidden, heads, width = (
            self.fields.get(name) for name in ("hidden_size", "num_attention_heads", "head_dim")
        )
        sizes = (hidden, heads, width or 1)
        if not all(type(n) is int and 0 < n <= _WIDE for n in sizes) or not self._theta() > 0:
            return None  # read_hparams names what is wrong
        n_dims = width or hidden // heads
        inverse = self._theta() ** (-np.arange(0, n_dims, 2) / n_dims)
        rotations = context * inverse / (2 * pi)
        keep = np.clip((rotations - low) / (high - low), 0.0, 1.0)
        return np.asarray(1.0 / ((1.0 - keep) / factor + keep), np.float32)

    # --- parts ------------------------------------------------------------------------------

    def _fail(self, field: str, value: Any, why: str = "") -> ModelError:
        what = f"{field} {quoted(str(value))} is not supported"
        return ModelError(what, where=self.path, why=why, hint="convert the model to GGUF")

    def _number(self, name: str, value: Any, kind: type) -> int | float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (is_number and abs(value) < _TOO_LARGE):
            raise ModelError(f"{name} is {shown(str(value))}, not a number", where=self.path)
        return float(value) if kind is float else value

    def _numbers(self) -> dict[str, MetaValue]:
        """Return the keys that a field says alone."""
        names = {**_KEYS, **self.kind.keys}
        if names.get("expert_count", ("",))[0] == _EXPERT_COUNTS[0]:
            counts = [self.fields.get(name) for name in _EXPERT_COUNTS]
            if counts[0] is None:
                names["expert_count"] = (_EXPERT_COUNTS[1], int)
            elif counts[1] not in (None, counts[0]):
                raise self._fail(_EXPERT_COUNTS[1], counts[1], f"num_experts is {counts[0]}")
        found: dict[str, MetaValue] = {}
        for key, (name, kind) in names.items():
            value = self.fields.get(name)
            if value is not None:
                found[key] = self._number(name, value, kind)
        return found

    def _network(self) -> dict[str, MetaValue]:
        """Return the keys of networks: the activation, and how experts are weighted."""
        found: dict[str, MetaValue] = {}
        name = self.fields.get("hidden_act") or "silu"
        activation = _ACTIVATIONS.get(name) if isinstance(name, str) else None
        able = [k for k, v in _ACTIVATIONS.items() if not self.kind.has_experts or v == "silu"]
        if activation is None or name not in able:
            raise self._fail("hidden_act", name, f"supported: {', '.join(able)}")
        found["feed_forward_activation"] = activation
        if not self.kind.has_experts:
            return found
        norm = self.fields.get("norm_topk_prob")
        if norm not in (None, True, False):
            raise self._fail("norm_topk_prob", norm)
        found["expert_weights_norm"] = self.kind.normalises if norm is None else bool(norm)
        return found

    def _window(self) -> dict[str, MetaValue]:
        """Return the keys of sliding windows, if they are smaller than the context."""
        layers = self.fields.get("num_hidden_layers")
        if type(layers) is not int or not 0 < layers <= _MAX_LAYERS:
            return {}  # read_hparams says so
        kinds = None if self.kind.is_hybrid else self.fields.get("layer_types")
        if self._type in ("llama", "mistral"):
            default = _MISTRAL_WINDOW if self._type == "mistral" else None
            window = self.fields.get("sliding_window", default)
        else:
            uses = self.fields.get("use_sliding_window") or False
            if uses not in (True, False):
                raise self._fail("use_sliding_window", uses)
            window = self.fields.get("sliding_window", _MISTRAL_WINDOW) if uses else None
        known = (_FULL, _SLIDING)
        if kinds is not None and (
            not isinstance(kinds, list)
            or len(kinds) != layers
            or any(k not in known for k in kinds)
        ):
            raise self._fail("layer_types", kinds, f"supported: {layers} of {' and '.join(known)}")
        if window is None:
            if kinds and _SLIDING in kinds:
                raise self._fail("layer_types", kinds, "there is no sliding_window")
            return {}
        window = self._number("sliding_window", window, int)
        if window >= self._number("", self.fields.get("max_position_embeddings") or 0, int):
            return {}
        if self._type not in ("mistral", "qwen2", "qwen3") or type(window) is not int or window < 1:
            raise self._fail("sliding_window", window)
        found: dict[str, MetaValue] = {"attention.sliding_window": window}
        if kinds is None and self._type == "mistral":
            return found
        first = self.fields.get("max_window_layers", _WINDOW_LAYERS)
        if kinds is None and type(first) is not int:
            raise self._fail("max_window_layers", first)
        listed = [k == _SLIDING for k in kinds or ()] or [i >= first for i in range(layers)]
        return found | {"attention.sliding_window_pattern": tuple(listed)}

    def _rope_fields(self) -> NotedKeys:
        """Return what the fields say of the rotation; transformers 5 keeps that in one object."""
        objects = {name: self.fields.get(name) for name in ("rope_scaling", "rope_parameters")}
        found: dict[str, Any] = {}
        for name, value in objects.items():
            if value and not isinstance(value, dict):
                raise self._fail(name, value)
            found = found or dict(value or {})
        if all(objects.values()) and objects["rope_scaling"] != objects["rope_parameters"]:
            raise self._fail("rope_scaling", objects["rope_scaling"], "rope_parameters differs")
        for name in ("rope_theta", "partial_rotary_factor"):
            value = self.fields.get(name)
            if value is not None and found.setdefault(name, value) != value:
                raise self._fail(name, value, f"rope_parameters says {quoted(str(found[name]))}")
        return NotedKeys(found)

    def _rope_kind(self) -> str:
        old = self._rope.get("type")
        kind = self._rope.get("rope_type", old)
        supported = {None, "default", "linear", *self.kind.scalings}
        if (not isinstance(kind, str) and kind is not None) or kind not in supported:
            known = ", ".join(sorted(k for k in supported if k))
            raise self._fail("rope_scaling", kind, f"supported: {known}")
        return kind or "default"

    def _scaling(self) -> dict[str, MetaValue]:
        """Return the keys of the rotation, but for Llama 3.1's scaling: see ``rope_factors``."""
        found: dict[str, MetaValue] = {}
        if self._rope.get("rope_theta") is not None:
            found["rope.freq_base"] = self._theta()
        if self._rope_kind() == "linear":
            found |= {
                "rope.scaling.type": "linear",
                "rope.scaling.factor": self._positive("factor"),
            }
        if self._rope_kind() == "yarn":
            found |= self._yarn()
        return found

    def _yarn(self) -> dict[str, MetaValue]:
        """Return the keys of YaRN where scores grow with the context and rotated vectors do not."""
        grows = self._positive("mscale_all_dim")
        if self._rope.get("mscale") != grows:
            raise self._fail("mscale", self._rope.get("mscale"), f"mscale_all_dim is {grows}")
        found: dict[str, MetaValue] = {
            "type": "yarn",
            "factor": self._positive("factor"),
            "original_context_length": int(self._positive("original_max_position_embeddings")),
            "yarn_log_multiplier": 0.1 * grows,
        }
        for name in ("beta_fast", "beta_slow"):
            if self._rope.get(name) is not None:
                found[f"yarn_{name}"] = self._positive(name)
        return {f"rope.scaling.{key}": value for key, value in found.items()}

    def _rotated(self) -> dict[str, MetaValue]:
        """Return how many elements of a head are rotated, where that may be a part of them."""
        share, default = self._rope.get("partial_rotary_factor"), self.kind.share
        if default is None:
            if share not in (None, 1):
                raise self._fail("partial_rotary_factor", share)
            return {}
        width, n_dims = count(self.path, self.fields, "head_dim"), self.fields.get("rotary_dim")
        if share is None:
            share = default if n_dims is None else self._number("rotary_dim", n_dims, int) / width
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
            what = f"partial_rotary_factor is {shown(str(share))}"
            raise ModelError(what, where=self.path, why="it must be above 0 and at most 1")
        if n_dims not in (None, int(width * share)):
            raise self._fail("rotary_dim", n_dims, f"partial_rotary_factor is {share}")
        return {"rope.dimension_count": int(width * share)}

    def _theta(self) -> float:
        theta = self._rope.get("rope_theta")
        return float(self._number("rope_theta", 10000.0 if theta is None else theta, float))

    def _positive(self, name: str) -> float:
        value = self._rope.get(name)
        if value is None:
            raise ModelError(f"{name} is missing", where=f"{self.path}: rope_scaling")
        number = float(self._number(name, value, float))
        if not number > 0:
            raise self._fail(name, value, "it must be above 0")
        return number
