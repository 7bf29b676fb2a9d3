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
from ggsched.models.gguf_header import MetaValue, quoted
from ggsched.models.hf_config import HfConfig
from ggsched.models.vocab import TokenType
from ggsched.models.weights import with_arrays

CONFIG: Final = "config.json"
MAX_JSON: Final = 1 << 28
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
_PREFIX: Final = "model.layers."


def is_hf_folder(path: str) -> bool:
    """Whether a path is a folder with a configuration."""
    return os.path.isdir(path) and os.path.exists(os.path.join(path, CONFIG))


def open_hf_folder(path: str) -> GgufFile:
    """Open a folder as if it were a GGUF file.

    Raises:
        ModelError: a file is missing or damaged, or the model is not supported.
    """
    where = os.path.join(path, CONFIG)
    config = HfConfig(path, _json(where), where)
    metadata = config.metadata()
    files = _weights(path)
    tensors: dict[str, GgufTensor] = {}
    for part, opened in enumerate(files):
        for tensor in _tensors(opened, part, is_hybrid=config.is_hybrid):
            if tensor.name in tensors:
                what = f"tensor {quoted(tensor.name)} is in an earlier file too"
                raise ModelError(what, where=opened.path)
            tensors[tensor.name] = tensor
    tensors = _joined(path, tensors)
    config.check_tensors(tensors)
    if config.fields.get("tie_word_embeddings") is True:
        tensors.pop("output.weight", None)
    metadata |= _tokenizer(path, config.fields, "llama-bpe" if config.arch == "llama" else "qwen2")
    first, *more = (opened.data for opened in files)
    file = GgufFile(path, 0, metadata, tensors, first, tuple(more))
    if config.is_hybrid:
        file = hf_hybrid.hybrid_file(file, config.fields)
    factors = config.rope_factors()
    if factors is not None:
        file = with_arrays(file, {"rope_freqs.weight": factors})
    config.check_all_read()
    return file


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
