"""Folders of Hugging Face: ``config.json`` and safetensors files, used where they lie.

Names of tensors and keys are mapped to those of GGUF files; nothing is converted or written.
"""

import os
import re
from collections.abc import Iterator, Mapping
from typing import Final

from ggsched.errors import ModelError
from ggsched.files.reading import read_json
from ggsched_llm import hf_hybrid
from ggsched_llm.gguf_file import GgufFile, GgufTensor
from ggsched_llm.gguf_header import quoted
from ggsched_llm.hf_config import HfConfig
from ggsched_llm.hf_tokenizer import tokenizer_keys
from ggsched_llm.safetensors_file import SafetensorsFile, open_safetensors
from ggsched_llm.weights import with_arrays

CONFIG: Final = "config.json"
_OUTER: Final[Mapping[str, str]] = {
    "model.embed_tokens.": "token_embd.",
    "model.norm.": "output_norm.",
    "lm_head.": "output.",
}
_BLOCK: Final[Mapping[str, str]] = {
    "input_layernorm.": "attn_norm.",
    "self_attn.q_proj.": "attn_q.",
    "self_attn.k_proj.": "attn_k.",
    "self_attn.v_proj.": "attn_v.",
    "self_attn.o_proj.": "attn_output.",
    "self_attn.q_norm.": "attn_q_norm.",
    "self_attn.k_norm.": "attn_k_norm.",
    "mlp.gate_proj.": "ffn_gate.",
    "mlp.up_proj.": "ffn_up.",
    "mlp.down_proj.": "ffn_down.",
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.gate.": "ffn_gate_inp.",
    "mlp.shared_experts.gate_proj.": "ffn_gate_shexp.",
    "mlp.shared_experts.up_proj.": "ffn_up_shexp.",
    "mlp.shared_experts.down_proj.": "ffn_down_shexp.",
    "mlp.shared_expert.gate_proj.": "ffn_gate_shexp.",
    "mlp.shared_expert.up_proj.": "ffn_up_shexp.",
    "mlp.shared_expert.down_proj.": "ffn_down_shexp.",
    "mlp.shared_expert_gate.": "ffn_gate_inp_shexp.",
    "block_sparse_moe.e_score_correction_bias": "exp_probs_b.bias",
    "block_sparse_moe.gate.": "ffn_gate_inp.",
    "self_attn.q_a_proj.": "attn_q_a.",
    "self_attn.q_a_layernorm.": "attn_q_a_norm.",
    "self_attn.q_b_proj.": "attn_q_b.",
    "self_attn.kv_a_proj_with_mqa.": "attn_kv_a_mqa.",
    "self_attn.kv_a_layernorm.": "attn_kv_a_norm.",
    "self_attn.kv_b_proj.": "attn_kv_b.",
    "linear_attn.conv1d.": "ssm_conv1d.",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.norm.": "ssm_norm.",
    "linear_attn.out_proj.": "ssm_out.",
    "linear_attn.in_proj_ba.": "ssm_ba.",
    "linear_attn.in_proj_b.": "ssm_beta.",
    "linear_attn.in_proj_a.": "ssm_alpha.",
    "linear_attn.in_proj_qkvz.": "ssm_in.",
    "linear_attn.in_proj_qkv.": "attn_qkv.",
    "linear_attn.in_proj_z.": "attn_gate.",
    "eh_proj.": "nextn.eh_proj.",
}
"""Beginnings of names within a block, and what they are in GGUF files."""

_EXPERT: Final = re.compile(
    r"(?:mlp|block_sparse_moe)\.experts\.([0-9]{1,5})\.(gate_proj|up_proj|down_proj|w[123])\.weight"
)
_PARTS: Final = {"w1": "gate", "w2": "down", "w3": "up"}
_ONE_EXPERT: Final = re.compile(r"(blk\.[0-9]+\.ffn_(?:gate|up|down)_exps)\.([0-9]+)\.weight")
_PREFIX: Final = "model.layers."
_TEXT: Final = "model.language_model."
"""Begins names of models that know images too; theirs begin otherwise."""


def is_hf_folder(path: str) -> bool:
    """Whether a path is a folder with a configuration."""
    return os.path.isdir(path) and os.path.exists(os.path.join(path, CONFIG))


def open_hf_folder(path: str) -> GgufFile:
    """Open a folder as if it were a GGUF file.

    Raises:
        ModelError: a file is missing or damaged, or the model is not supported.
    """
    where = os.path.join(path, CONFIG)
    config = HfConfig(path, read_json(where, error=ModelError), where)
    metadata = config.metadata()
    files = _weights(path)
    tensors: dict[str, GgufTensor] = {}
    for part, opened in enumerate(files):
        for tensor in _tensors(opened, part, config.kind.ffn_norm):
            if tensor.name in tensors:
                what = f"tensor {quoted(tensor.name)} is in an earlier file too"
                raise ModelError(what, where=opened.path)
            tensors[tensor.name] = tensor
    tensors = _joined(path, tensors)
    config.check_tensors(tensors)
    metadata |= config.predicting(tensors)
    if config.fields.get("tie_word_embeddings") is True:
        tensors.pop("output.weight", None)
    metadata |= tokenizer_keys(path, config.fields)
    first, *more = (opened.data for opened in files)
    file = GgufFile(path, 0, metadata, tensors, first, tuple(more))
    if config.kind.is_hybrid:
        file = hf_hybrid.hybrid_file(file, config.fields)
    factors = config.rope_factors()
    if factors is not None:
        file = with_arrays(file, {"rope_freqs.weight": factors})
    config.check_all_read()
    return file


def _weights(path: str) -> list[SafetensorsFile]:
    names = sorted(name for name in os.listdir(path) if name.endswith(".safetensors"))
    if not names:
        raise ModelError("there is no .safetensors file", where=path)
    return [open_safetensors(os.path.join(path, name)) for name in names]


def _tensors(file: SafetensorsFile, part: int, ffn_norm: str) -> Iterator[GgufTensor]:
    names = {**_BLOCK, "post_attention_layernorm.": f"{ffn_norm}."}
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
    if name.startswith(_TEXT):
        name = "model." + name.removeprefix(_TEXT)
    for theirs, ours in _OUTER.items():
        if name.startswith(theirs):
            return ours + name.removeprefix(theirs)
    if name.startswith(_PREFIX):
        layer, _, rest = name.removeprefix(_PREFIX).partition(".")
        expert = _EXPERT.fullmatch(rest)
        if expert:
            part = _PARTS.get(expert[2]) or expert[2].removesuffix("_proj")
            return f"blk.{layer}.ffn_{part}_exps.{int(expert[1])}.weight"
        for theirs, ours in names.items():
            if rest.startswith(theirs):
                return f"blk.{layer}.{ours}{rest.removeprefix(theirs)}"
    return name
