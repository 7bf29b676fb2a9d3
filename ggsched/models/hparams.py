"""Hyperparameters of a model, read from GGUF metadata and checked.

Keys start with the architecture (``llama.block_count``). Each key is checked for presence, type
and range, then the keys against each other; shapes of tensors are checked against the result by
``load``. Defaults are llama.cpp's.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from ggsched.errors import ModelError
from ggsched.models.gguf_file import GgufFile
from ggsched.models.gguf_header import MetaValue, quoted, shown

Arch = Literal["llama", "qwen3moe", "gpt-oss"]
ARCHS: Final[Mapping[str, Arch]] = {"llama": "llama", "qwen3moe": "qwen3moe", "gpt-oss": "gpt-oss"}
# Positions are i32.
MAX_CONTEXT: Final = 2**31 - 1
_BLOCK: Final = re.compile(r"blk\.([0-9]+)\.")


@dataclass(frozen=True, slots=True)
class RopeParams:
    """Rotary embedding, with the meaning of the ``rope`` op's parameters.

    Attributes:
        n_dims: Leading elements of each head that are rotated.
        pairing: ``adjacent`` or ``halves``.
        base: Base of the frequencies.
        freq_scale: Factor on all angles, 1 / the context extension.
        ext_factor: Share of YaRN's blend, 0 without YaRN.
        attn_factor: Factor on the rotated vectors.
        beta_fast: YaRN's upper number of rotations.
        beta_slow: YaRN's lower number of rotations.
        n_ctx_orig: Context length in tokens before it was extended.
    """

    n_dims: int
    pairing: Literal["adjacent", "halves"]
    base: float
    freq_scale: float = 1.0
    ext_factor: float = 0.0
    attn_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    n_ctx_orig: int = 0


@dataclass(frozen=True, slots=True)
class HParams:
    """What a model is, apart from its weights.

    Attributes:
        arch: Architecture.
        name: ``general.name``, or "".
        n_ctx_train: Context length in tokens that the model was trained for.
        n_vocab: Number of tokens.
        n_embd: Width of the hidden state.
        n_layer: Number of blocks.
        n_head: Query heads.
        n_head_kv: Key and value heads; each serves ``n_head / n_head_kv`` query heads.
        head_dim: Width of one head.
        n_ff: Width of the feed-forward network, or of each expert if there are experts.
        norm_eps: Epsilon of the RMS norms.
        attn_scale: Factor on the attention scores.
        rope: Position embedding.
        n_expert: Number of experts, 0 for a dense model.
        n_expert_used: Experts per token, 0 for a dense model.
        window: Sliding window in tokens of the windowed layers, 0 if there are none.
    """

    arch: Arch
    name: str
    n_ctx_train: int
    n_vocab: int
    n_embd: int
    n_layer: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_ff: int
    norm_eps: float
    attn_scale: float
    rope: RopeParams
    n_expert: int = 0
    n_expert_used: int = 0
    window: int = 0

    @property
    def n_embd_q(self) -> int:
        """Width of all query heads together."""
        return self.n_head * self.head_dim

    @property
    def n_embd_kv(self) -> int:
        """Width of all key heads together, which is a row of the KV cache."""
        return self.n_head_kv * self.head_dim

    def is_windowed(self, layer: int) -> bool:
        """Whether a layer sees only the last ``window`` tokens: every second one, from layer 0."""
        return self.window > 0 and layer % 2 == 0


class _Keys:
    """Typed, range-checked access to the metadata of one architecture."""

    def __init__(self, file: GgufFile, arch: str) -> None:
        self._file = file
        self._arch = arch

    def fail(self, key: str, what: str, why: str = "") -> ModelError:
        where = f"{self._file.path}: key {self._arch}.{key}"
        return ModelError(what, where=where, why=why, hint="convert the model again")

    def get(self, key: str) -> MetaValue | None:
        return self._file.metadata.get(f"{self._arch}.{key}")

    def count(self, key: str, most: int, default: int | None = None, least: int = 1) -> int:
        value = self.get(key)
        if value is None and default is not None:
            return default
        if value is None:
            raise self.fail(key, "is missing")
        if isinstance(value, tuple):
            raise self.fail(key, "is an array", "a value per layer is not supported")
        if type(value) is not int:
            raise self.fail(key, f"is {shown(value)}", "it must be an integer")
        if not least <= value <= most:
            raise self.fail(key, f"is {value}", f"it must be from {least} to {most}")
        return value

    def real(self, key: str, low: float, high: float, default: float | None = None) -> float:
        value = self.get(key)
        if value is None and default is not None:
            return default
        if value is None:
            raise self.fail(key, "is missing")
        if not isinstance(value, float):
            raise self.fail(key, f"is {shown(value)}", "it must be a floating-point number")
        # NaN fails every comparison.
        if not low <= value <= high:
            raise self.fail(key, f"is {value}", f"it must be from {low:g} to {high:g}")
        return value


def read_hparams(file: GgufFile) -> HParams:
    """Read and check the hyperparameters of a file.

    Raises:
        ModelError: an unknown architecture, or a key that is missing, of another type, out of
            range or in contradiction to another one. The message names the key.
    """
    arch = _arch(file)
    keys = _Keys(file, arch)
    n_embd = keys.count("embedding_length", 1 << 20)
    n_head, n_head_kv, head_dim = _heads(keys, n_embd)
    n_expert, n_expert_used, n_ff = _feed_forward(keys, arch)
    n_layer = keys.count("block_count", 1 << 16)
    _check_blocks(file, keys, n_layer)
    n_ctx_train = keys.count("context_length", MAX_CONTEXT)
    name = file.metadata.get("general.name", "")
    if not isinstance(name, str):
        where = f"{file.path}: key general.name"
        why = "it must be a string"
        raise ModelError(f"is {shown(name)}", where=where, why=why, hint="convert the model again")
    scale = 1.0 / math.sqrt(head_dim)
    if arch == "llama" and keys.get("attention.scale") is not None:
        scale = keys.real("attention.scale", 0.0, 1e6) or scale
    return HParams(
        arch=arch,
        name=name,
        n_ctx_train=n_ctx_train,
        n_vocab=_vocab(file, keys),
        n_embd=n_embd,
        n_layer=n_layer,
        n_head=n_head,
        n_head_kv=n_head_kv,
        head_dim=head_dim,
        n_ff=n_ff,
        norm_eps=keys.real("attention.layer_norm_rms_epsilon", 1e-30, 1.0),
        attn_scale=scale,
        rope=_rope(keys, arch, head_dim, n_ctx_train),
        n_expert=n_expert,
        n_expert_used=n_expert_used,
        window=keys.count("attention.sliding_window", MAX_CONTEXT) if arch == "gpt-oss" else 0,
    )


def _arch(file: GgufFile) -> Arch:
    value = file.metadata.get("general.architecture")
    known = ", ".join(ARCHS)
    if value is None:
        hint = "is this a model? convert it again"
        raise ModelError("key general.architecture is missing", where=file.path, hint=hint)
    if not isinstance(value, str) or value not in ARCHS:
        what = f"architecture {shown(value)} is not supported"
        raise ModelError(what, where=file.path, hint=f"supported: {known}")
    return ARCHS[value]


def _heads(keys: _Keys, n_embd: int) -> tuple[int, int, int]:
    n_head = keys.count("attention.head_count", 1 << 16)
    n_head_kv = keys.count("attention.head_count_kv", 1 << 16, default=n_head)
    if n_head % n_head_kv:
        why = f"it must divide the {n_head} of attention.head_count"
        raise keys.fail("attention.head_count_kv", f"is {n_head_kv}", why)
    if keys.get("attention.key_length") is None and n_embd % n_head:
        why = f"it must divide the {n_embd} of embedding_length if there is no attention.key_length"
        raise keys.fail("attention.head_count", f"is {n_head}", why)
    head_dim = keys.count("attention.key_length", 1 << 14, default=n_embd // n_head)
    value_dim = keys.count("attention.value_length", 1 << 14, default=head_dim)
    if head_dim % 2 or not head_dim:
        raise keys.fail(
            "attention.key_length", f"is {head_dim}", "it must be even, for rope's pairs"
        )
    if value_dim != head_dim:
        why = f"only heads as wide as the {head_dim} of attention.key_length are supported"
        raise keys.fail("attention.value_length", f"is {value_dim}", why)
    return n_head, n_head_kv, head_dim


def _feed_forward(keys: _Keys, arch: Arch) -> tuple[int, int, int]:
    """Return (experts, experts per token, width of the network or of one expert)."""
    needed = None if arch != "llama" else 0
    n_expert = keys.count("expert_count", 1 << 12, needed, least=1 if needed is None else 0)
    if n_expert == 0:
        return 0, 0, keys.count("feed_forward_length", 1 << 24)
    used = keys.count("expert_used_count", 1 << 12)
    if used > n_expert:
        why = f"there are only {n_expert} experts (expert_count)"
        raise keys.fail("expert_used_count", f"is {used}", why)
    if arch == "llama":
        return n_expert, used, keys.count("feed_forward_length", 1 << 24)
    if arch == "qwen3moe" and keys.get("expert_feed_forward_length") is None:
        return n_expert, used, max(1, keys.count("feed_forward_length", 1 << 24) // used)
    return n_expert, used, keys.count("expert_feed_forward_length", 1 << 24)


def _check_blocks(file: GgufFile, keys: _Keys, n_layer: int) -> None:
    """Refuse a block_count above the number of tensors, or below a block that is there."""
    if n_layer > len(file.tensors):
        raise keys.fail("block_count", f"is {n_layer}", f"there are {len(file.tensors)} tensors")
    for name in file.tensors:
        match = _BLOCK.match(name)
        if match and int(match[1]) >= n_layer:
            raise keys.fail("block_count", f"is {n_layer}", f"there is a tensor {quoted(name)}")


def _vocab(file: GgufFile, keys: _Keys) -> int:
    table = file.tensors.get("token_embd.weight")
    if table is None or len(table.shape) != 2:
        what = "tensor 'token_embd.weight' is missing or has not two axes"
        raise ModelError(what, where=file.path, hint="convert the model again")
    n_vocab = keys.count("vocab_size", 1 << 31, default=table.shape[0])
    if n_vocab != table.shape[0]:
        why = f"token_embd.weight has {table.shape[0]} rows"
        raise keys.fail("vocab_size", f"is {n_vocab}", why)
    return n_vocab


def _rope(keys: _Keys, arch: Arch, head_dim: int, n_ctx_train: int) -> RopeParams:
    n_dims = keys.count("rope.dimension_count", 1 << 14, default=head_dim)
    if n_dims % 2 or n_dims > head_dim:
        why = f"it must be even and at most the head's width of {head_dim}"
        raise keys.fail("rope.dimension_count", f"is {n_dims}", why)
    if arch == "llama" and n_dims != head_dim:
        why = f"a llama rotates whole heads, and they are {head_dim} wide"
        raise keys.fail("rope.dimension_count", f"is {n_dims}", why)
    plain = RopeParams(
        n_dims=n_dims,
        pairing="adjacent" if arch == "llama" else "halves",
        base=keys.real("rope.freq_base", 1.001, 1e12, default=10000.0),
    )
    scaling = keys.get("rope.scaling.type")
    factor_key = "rope.scaling.factor"
    if keys.get(factor_key) is None and keys.get("rope.scale_linear") is not None:
        factor_key = "rope.scale_linear"
    # llama.cpp takes a factor of 0 for "none".
    factor = keys.real(factor_key, 0.0, 1e6, default=1.0) or 1.0
    if factor < 1e-3:
        raise keys.fail(factor_key, f"is {factor}", "it must be at least 0.001")
    match scaling:
        case "none":
            return plain
        case None | "linear":
            return RopeParams(plain.n_dims, plain.pairing, plain.base, freq_scale=1.0 / factor)
        case "yarn":
            return _yarn(keys, plain, factor, n_ctx_train)
    why = "known are none, linear and yarn"
    raise keys.fail("rope.scaling.type", f"is {shown(scaling)}", why)


def _yarn(keys: _Keys, plain: RopeParams, factor: float, n_ctx_train: int) -> RopeParams:
    prefix = "rope.scaling."
    for key in ("yarn_log_multiplier", "yarn_attn_factor"):
        if keys.get(prefix + key) is not None:
            raise keys.fail(prefix + key, "is set", "it is not supported")
    return RopeParams(
        n_dims=plain.n_dims,
        pairing=plain.pairing,
        base=plain.base,
        freq_scale=1.0 / factor,
        ext_factor=keys.real(prefix + "yarn_ext_factor", 0.0, 1.0, default=1.0),
        attn_factor=keys.real(prefix + "attn_factor", 1e-3, 1e3, default=1.0),
        beta_fast=keys.real(prefix + "yarn_beta_fast", 1e-3, 1e6, default=32.0),
        beta_slow=keys.real(prefix + "yarn_beta_slow", 1e-3, 1e6, default=1.0),
        n_ctx_orig=keys.count(prefix + "original_context_length", MAX_CONTEXT, default=n_ctx_train),
    )
