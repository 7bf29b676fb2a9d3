"""Folders of Hugging Face with Gated DeltaNet (``qwen3_next``, ``qwen3_5``): what differs.

The transformers library keeps queries, keys, values and gates of a head of keys together, norms as
their distance from 1, and decay as a logarithm. Rows are picked out of the file when a weight is
loaded; the few numbers of norms and decay are computed when the folder is opened.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ggsched.errors import ModelError
from ggsched_llm.gguf_file import GgufFile, GgufTensor
from ggsched_llm.gguf_header import MetaValue, quoted, shown
from ggsched_llm.weights import converted_array, with_arrays

KEYS: Final[Mapping[str, tuple[str, type]]] = {
    "expert_shared_feed_forward_length": ("shared_expert_intermediate_size", int),
    "full_attention_interval": ("full_attention_interval", int),
    "ssm.conv_kernel": ("linear_conv_kernel_dim", int),
    "ssm.state_size": ("linear_key_head_dim", int),
    "ssm.group_count": ("linear_num_key_heads", int),
    "ssm.time_step_rank": ("linear_num_value_heads", int),
}
"""Keys of GGUF files, and those of ``config.json`` that say the same."""

_OFF_ONE: Final = (
    "attn_norm.weight",
    "post_attention_norm.weight",
    "attn_q_norm.weight",
    "attn_k_norm.weight",
    "output_norm.weight",
)
_WIDE: Final = 1 << 20


def hybrid_keys(path: str, config: Mapping[str, Any]) -> dict[str, MetaValue]:
    """Return the keys of GGUF files that follow from several of the configuration.

    Args:
        path: Of the configuration, for messages.
        config: Its fields.

    Raises:
        ModelError: a value is missing or of another type.
    """
    heads, width = (
        count(path, config, name) for name in ("linear_num_value_heads", "linear_value_head_dim")
    )
    found: dict[str, MetaValue] = {"ssm.inner_size": heads * width}
    kinds = config.get("layer_types")
    if isinstance(kinds, list) and all(isinstance(kind, str) for kind in kinds):
        recurrent = tuple(kind == "linear_attention" for kind in kinds)
        found["attention.recurrent_layers"] = recurrent
    return found


def hybrid_file(file: GgufFile, config: Mapping[str, Any]) -> GgufFile:
    """Return a folder's file with the tensors that GGUF files have.

    Raises:
        ModelError: a tensor does not have the rows that the configuration says.
    """
    tensors: dict[str, GgufTensor] = {}
    computed: dict[str, NDArray[np.float32]] = {}
    for name, tensor in file.tensors.items():
        if name.startswith("mtp."):  # predicts further tokens
            continue
        if name.endswith(".ssm_in.weight"):
            tensors.update((t.name, t) for t in _split(file.path, tensor, config))
        elif name.endswith(".ssm_conv1d.weight") and len(tensor.shape) == 3:
            channels, _, taps = tensor.shape
            tensors[name] = replace(tensor, shape=(channels, taps))
        elif name.endswith(".ffn_gate_inp_shexp.weight"):
            tensors[name] = replace(tensor, shape=tensor.shape[-1:])
        elif name.endswith((".ssm_a", *_OFF_ONE)):
            values = converted_array(file, name)
            computed[name] = -np.exp(values) if name.endswith(".ssm_a") else values + np.float32(1)
        else:
            tensors[name] = tensor
    return with_arrays(replace(file, tensors=tensors), computed)


def _split(path: str, both: GgufTensor, config: Mapping[str, Any]) -> Iterator[GgufTensor]:
    """Yield queries, keys and values as one tensor, and the gates; both are rows of one tensor.

    Each head of keys has its query, its key, and values and gates of its heads of values.
    """
    groups, heads, width, across = (
        count(path, config, f"linear_{name}")
        for name in ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim")
    )
    share = heads // groups * across
    parts = (width, width, share, share)
    where = f"{path}: tensor {quoted(both.name)}"
    if heads % groups or both.shape[:-1] != (groups * sum(parts),):
        why = f"{groups} heads of keys need {sum(parts)} rows each"
        raise ModelError(f"has shape {list(both.shape)}", where=where, why=why)
    row = both.nbytes // both.shape[0]
    pieces: list[list[GgufTensor]] = [[] for _ in parts]
    at = both.offset
    for _ in range(groups):
        for kind, n in zip(pieces, parts, strict=True):
            kind.append(replace(both, shape=(n, both.shape[1]), offset=at, nbytes=n * row))
            at += n * row
    queries, keys, values, gates = pieces
    stem = both.name.removesuffix("ssm_in.weight")
    for name, some in (("attn_qkv", [*queries, *keys, *values]), ("attn_gate", gates)):
        shape = (sum(piece.shape[0] for piece in some), both.shape[1])
        whole = f"{stem}{name}.weight"
        nbytes = shape[0] * row
        yield GgufTensor(whole, both.dtype, shape, 0, nbytes, pieces=tuple(some))


def count(path: str, config: Mapping[str, Any], name: str) -> int:
    """Return a number above 0.

    Raises:
        ModelError: it is missing, or something else.
    """
    value = config.get(name)
    if type(value) is not int or not 0 < value <= _WIDE:
        raise ModelError(
            f"{name} is {shown(str(value))}", where=path, why="it must be a number above 0"
        )
    return value
