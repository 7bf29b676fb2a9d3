"""Folders of Hugging Face: ``config.json`` and safetensors files, used where they lie.

Names of tensors and keys are mapped to those of GGUF files; nothing is converted or written. The
tokenizer is that of ``tokenizer.json`` if it is a byte-level BPE.
"""

import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from typing import Any, Final

from ggsched.errors import ModelError
from ggsched.interchange.safetensors import SafetensorsFile, open_safetensors
from ggsched.models import hf_hybrid
from ggsched.models.gguf_file import GgufFile, GgufTensor
from ggsched.models.gguf_header import MetaValue, quoted, shown
from ggsched.models.vocab import TokenType

CONFIG: Final = "config.json"
MAX_JSON: Final = 1 << 28
PAIRING_KEY: Final = "rope.pairing"
"""Says that rotation pairs halves of heads, where GGUF files have reordered weights."""

_ARCHS: Final[Mapping[str, tuple[str, str]]] = {
    "llama": ("llama", "llama-bpe"),
    "mistral": ("llama", "llama-bpe"),
    "qwen2": ("qwen2", "qwen2"),
    "qwen3": ("qwen3", "qwen2"),
    "qwen3_moe": ("qwen3moe", "qwen2"),
    "qwen3_next": ("qwen3next", "qwen2"),
}
_HYBRID: Final = "qwen3next"
"""``model_type`` -> architecture, and the pre-tokenizer of its byte-level BPE."""

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
    "rope.freq_base": ("rope_theta", float),
    "vocab_size": ("vocab_size", int),
    "expert_count": ("num_experts", int),
    "expert_used_count": ("num_experts_per_tok", int),
    "expert_feed_forward_length": ("moe_intermediate_size", int),
}
_OUTER: Final[Mapping[str, str]] = {
    "model.embed_tokens.": "token_embd.",
    "model.norm.": "output_norm.",
    "lm_head.": "output.",
}
_BLOCK: Final[Mapping[str, str]] = {
    "input_layernorm.": "attn_norm.",
    "post_attention_layernorm.": "ffn_norm.",
    "self_attn.q_proj.": "attn_q.",
    "self_attn.k_proj.": "attn_k.",
    "self_attn.v_proj.": "attn_v.",
    "self_attn.o_proj.": "attn_output.",
    "self_attn.q_norm.": "attn_q_norm.",
    "self_attn.k_norm.": "attn_k_norm.",
    "mlp.gate_proj.": "ffn_gate.",
    "mlp.up_proj.": "ffn_up.",
    "mlp.down_proj.": "ffn_down.",
    "mlp.gate.": "ffn_gate_inp.",
}
_EXPERT: Final = re.compile(r"mlp\.experts\.([0-9]{1,5})\.(gate|up|down)_proj\.weight")
_ONE_EXPERT: Final = re.compile(r"(blk\.[0-9]+\.ffn_(?:gate|up|down)_exps)\.([0-9]+)\.weight")
_EVERY_LAYER: Final[Mapping[str, tuple[Any, ...]]] = {
    "norm_topk_prob": (True,),
    "decoder_sparse_step": (1,),
    "mlp_only_layers": ([], None),
}
"""What a model with experts has to say, if it says it: experts in all blocks, whose weights add up
to one."""
_PREFIX: Final = "model.layers."
_TOO_LARGE: Final = 1e300
"""JSON has no bound for integers; a float does, and is not infinite."""


def is_hf_folder(path: str) -> bool:
    """Whether a path is a folder with a configuration."""
    return os.path.isdir(path) and os.path.exists(os.path.join(path, CONFIG))


def open_hf_folder(path: str) -> GgufFile:
    """Open a folder as if it were a GGUF file.

    Raises:
        ModelError: a file is missing or damaged, or the model is not supported.
    """
    config = _json(os.path.join(path, CONFIG))
    arch, pre = _arch(path, config)
    files = _weights(path)
    tensors: dict[str, GgufTensor] = {}
    for part, opened in enumerate(files):
        for tensor in _tensors(opened, part, is_hybrid=arch == _HYBRID):
            if tensor.name in tensors:
                what = f"tensor {quoted(tensor.name)} is in an earlier file too"
                raise ModelError(what, where=opened.path)
            tensors[tensor.name] = tensor
    tensors = _joined(path, tensors)
    if config.get("tie_word_embeddings") is True:
        tensors.pop("output.weight", None)
    metadata = {**_metadata(path, config, arch), **_tokenizer(path, config, pre)}
    first, *more = (opened.data for opened in files)
    file = GgufFile(path, 0, metadata, tensors, first, tuple(more))
    return hf_hybrid.hybrid_file(file, config) if arch == _HYBRID else file


def _json(path: str) -> dict[str, Any]:
    try:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):  # opening a pipe would wait for a writer
            raise ModelError("it is not a regular file", where=path)
        if found.st_size > MAX_JSON:
            raise ModelError(f"it has more than {MAX_JSON} bytes", where=path)
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    except (OSError, ValueError, RecursionError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ModelError("cannot read the file", where=path, why=why) from error
    if not isinstance(content, dict):
        raise ModelError("it is not an object", where=path)
    return content


def _arch(path: str, config: Mapping[str, Any]) -> tuple[str, str]:
    kind, where = config.get("model_type"), os.path.join(path, CONFIG)
    if not isinstance(kind, str) or kind not in _ARCHS:
        hint = f"supported: {', '.join(_ARCHS)}; convert others to GGUF"
        raise ModelError(f"model_type {quoted(str(kind))} is not supported", where=where, hint=hint)
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    is_object = isinstance(scaling, dict)
    name = scaling.get("rope_type", scaling.get("type")) if is_object else scaling
    if name not in (None, "default"):
        hint = "convert the model to GGUF"
        raise ModelError(
            f"rope_scaling {quoted(str(name))} is not supported", where=where, hint=hint
        )
    if config.get("use_sliding_window") is True or config.get("quantization_config"):
        what = "a sliding window" if config.get("use_sliding_window") else "quantization_config"
        raise ModelError(f"{what} is not supported", where=where, hint="convert the model to GGUF")
    arch = _ARCHS[kind]
    odd = [k for k, v in _EVERY_LAYER.items() if k in config and config[k] not in v]
    if odd and arch[0] in ("qwen3moe", _HYBRID):
        what = f"{odd[0]} {shown(str(config[odd[0]]))} is not supported"
        raise ModelError(what, where=where, hint="convert the model to GGUF")
    return arch


def _metadata(path: str, config: Mapping[str, Any], arch: str) -> dict[str, MetaValue]:
    found: dict[str, MetaValue] = {"general.architecture": arch, PAIRING_KEY: "halves"}
    found["general.name"] = os.path.basename(os.path.normpath(path))
    parameters = config.get("rope_parameters")
    all_keys = {**(parameters if isinstance(parameters, dict) else {}), **config}
    is_hybrid = arch == _HYBRID
    if is_hybrid:
        found |= hf_hybrid.hybrid_keys(os.path.join(path, CONFIG), all_keys, arch)
    for key, (name, kind) in {**_KEYS, **(hf_hybrid.KEYS if is_hybrid else {})}.items():
        value = all_keys.get(name)
        if value is None:
            continue
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (is_number and abs(value) < _TOO_LARGE):
            where = os.path.join(path, CONFIG)
            raise ModelError(f"{name} is {shown(str(value))}, not a number", where=where)
        found[f"{arch}.{key}"] = float(value) if kind is float else value
    return found


def _weights(path: str) -> list[SafetensorsFile]:
    names = sorted(name for name in os.listdir(path) if name.endswith(".safetensors"))
    if not names:
        raise ModelError("there is no .safetensors file", where=path)
    return [open_safetensors(os.path.join(path, name)) for name in names]


def _tensors(file: SafetensorsFile, part: int, *, is_hybrid: bool) -> Iterator[GgufTensor]:
    names = {**_BLOCK, **hf_hybrid.BLOCK} if is_hybrid else _BLOCK
    for name, tensor in file.tensors.items():
        dtype = file.dtype(name)
        yield GgufTensor(
            _mapped(name, names), dtype, tensor.shape, tensor.offset, tensor.nbytes, part
        )


def _joined(path: str, tensors: Mapping[str, GgufTensor]) -> dict[str, GgufTensor]:
    """Return the tensors with those of all experts of a block as one, which is made of pieces.

    Raises:
        ModelError: the tensor of an expert is missing, or has another type or shape.
    """
    found: dict[str, GgufTensor] = {}
    experts: dict[str, dict[int, GgufTensor]] = {}
    for name, tensor in tensors.items():
        match = _ONE_EXPERT.fullmatch(name)
        if match:
            experts.setdefault(f"{match[1]}.weight", {})[int(match[2])] = tensor
        else:
            found[name] = tensor
    for name, by_number in experts.items():
        pieces = tuple(by_number[i] for i in sorted(by_number))
        where, first = f"{path}: tensor {quoted(name)}", pieces[0]
        if sorted(by_number) != list(range(len(pieces))):
            lacking = next(i for i in range(len(pieces)) if i not in by_number)
            raise ModelError(f"expert {lacking} is missing", where=where, hint="copy it again")
        if any((p.dtype, p.shape) != (first.dtype, first.shape) for p in pieces):
            raise ModelError("its experts differ in type or shape", where=where)
        nbytes = sum(p.nbytes for p in pieces)
        shape = (len(pieces), *first.shape)
        found[name] = GgufTensor(name, first.dtype, shape, 0, nbytes, pieces=pieces)
    return found


def _mapped(name: str, names: Mapping[str, str]) -> str:
    """Return the name in GGUF files; names that are not known stay as they are."""
    for theirs, ours in _OUTER.items():
        if name.startswith(theirs):
            return ours + name.removeprefix(theirs)
    if name.startswith(_PREFIX):
        layer, _, rest = name.removeprefix(_PREFIX).partition(".")
        expert = _EXPERT.fullmatch(rest)
        if expert:
            return f"blk.{layer}.ffn_{expert[2]}_exps.{int(expert[1])}.weight"
        for theirs, ours in names.items():
            if rest.startswith(theirs):
                return f"blk.{layer}.{ours}{rest.removeprefix(theirs)}"
    return name


def _tokenizer(path: str, config: Mapping[str, Any], pre: str) -> dict[str, MetaValue]:
    """Return the keys of a byte-level BPE; none if the folder has no such tokenizer."""
    file = os.path.join(path, "tokenizer.json")
    if not os.path.exists(file):
        return {}
    found = _json(file)
    model, added = found.get("model"), found.get("added_tokens") or []
    if not isinstance(model, dict) or model.get("type") != "BPE" or model.get("byte_fallback"):
        return {"tokenizer.ggml.model": "tokenizer.json of another kind"}
    try:
        ids = {int(i): str(text) for text, i in model["vocab"].items()}
        special = {int(t["id"]): bool(t["special"]) for t in added}
        ids |= {int(t["id"]): str(t["content"]) for t in added}
        pairs = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
        size = max(max(ids) + 1, int(config.get("vocab_size", 0)))
        "".join([*ids.values(), *pairs]).encode()  # JSON may escape half a character
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        why = f"{type(error).__name__}: {error}"
        raise ModelError("the tokenizer is damaged", where=file, why=why) from error
    if size > 2 * len(ids) + (1 << 16) or min(ids) < 0:
        raise ModelError("the tokenizer has ids far apart", where=file)
    kinds = {True: TokenType.CONTROL, False: TokenType.USER_DEFINED}
    types = [int(kinds[special[i]] if i in special else TokenType.NORMAL) for i in range(size)]
    types = [t if i in ids else int(TokenType.UNUSED) for i, t in enumerate(types)]
    keys: dict[str, MetaValue] = {
        "model": "gpt2",
        "pre": pre,
        "tokens": tuple(ids.get(i, f"[PAD{i}]") for i in range(size)),
        "token_type": tuple(types),
        "merges": tuple(pairs),
        "add_bos_token": pre == "llama-bpe",
    }
    for role in ("bos", "eos"):
        value = config.get(f"{role}_token_id")
        value = value[0] if isinstance(value, list) and value else value
        if isinstance(value, int):
            keys[f"{role}_token_id"] = value
    settings = os.path.join(path, "tokenizer_config.json")
    template = _json(settings).get("chat_template") if os.path.exists(settings) else None
    out: dict[str, MetaValue] = {f"tokenizer.ggml.{key}": value for key, value in keys.items()}
    return out | ({"tokenizer.chat_template": template} if isinstance(template, str) else {})
