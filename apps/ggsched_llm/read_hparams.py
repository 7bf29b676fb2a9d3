"""Hyperparameters of a model, read from GGUF metadata and checked.

Keys start with the architecture (``llama.block_count``). Each key is checked for presence, type
and range, then the keys against each other; shapes of tensors are checked against the result by
``load``. Defaults are llama.cpp's. What only one architecture has is read by its ``refine``.
"""

import math
import re
from dataclasses import replace
from typing import Final, Literal

from ggsched.errors import ModelError
from ggsched_llm import ignored_keys
from ggsched_llm.arch import ARCHITECTURES
from ggsched_llm.architecture import Architecture
from ggsched_llm.gguf_file import GgufFile
from ggsched_llm.gguf_header import quoted, shown
from ggsched_llm.hparams import HParams, RopeParams
from ggsched_llm.metadata_keys import MAX_CONTEXT, Keys
from ggsched_llm.spec import block_of

_PREDICTION: Final = re.compile(r"blk\.([0-9]+)\.nextn\.")
_SOFT_MAX: Final = 1
_SIGMOID: Final = 2


def read_hparams(file: GgufFile) -> HParams:
    """Read and check the hyperparameters of a file.

    Raises:
        ModelError: an unknown architecture, or a key that is missing, of another type, out of
            range or in contradiction to another one. The message names the key.
    """
    arch = _arch(file)
    keys = Keys(file, arch.name)
    n_embd = keys.count("embedding_length", 1 << 20)
    n_head, n_head_kv, head_dim = _heads(keys, arch, n_embd)
    n_expert, n_expert_used, n_ff = _feed_forward(keys, arch)
    n_layer = _blocks(file, keys)
    n_ctx_train = keys.count("context_length", MAX_CONTEXT)
    window, windowed = _windows(keys, arch, n_layer, n_ctx_train)
    name = file.metadata.get("general.name", "")
    if not isinstance(name, str):
        where = f"{file.path}: key general.name"
        why = "it must be a string"
        raise ModelError(f"is {shown(name)}", where=where, why=why, hint="convert the model again")
    hparams = HParams(
        arch=arch.name,
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
        attn_scale=1.0 / math.sqrt(head_dim) if head_dim else 0.0,
        rope=_rope(keys, arch, head_dim, n_ctx_train),
        n_expert=n_expert,
        n_expert_used=n_expert_used,
        window=window,
        windowed=windowed,
        activation=_activation(keys, n_expert),
    )
    if n_expert and not arch.softmax_of_chosen:
        hparams = _routing(keys, arch, hparams)
    hparams = arch.refine(keys, hparams)
    keys.refuse_unread({**ignored_keys.GGUF, **arch.ignored})
    return hparams


def _arch(file: GgufFile) -> Architecture:
    value = file.metadata.get("general.architecture")
    if value is None:
        hint = "is this a model? convert it again"
        raise ModelError("key general.architecture is missing", where=file.path, hint=hint)
    if not isinstance(value, str) or value not in ARCHITECTURES:
        what = f"architecture {shown(value)} is not supported"
        raise ModelError(what, where=file.path, hint=f"supported: {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[value]


def _heads(keys: Keys, arch: Architecture, n_embd: int) -> tuple[int, int, int]:
    if not arch.has_attention:
        return 0, 0, 0
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
    if value_dim != head_dim and not arch.has_latent:
        why = f"only heads as wide as the {head_dim} of attention.key_length are supported"
        raise keys.fail("attention.value_length", f"is {value_dim}", why)
    return n_head, n_head_kv, head_dim


def _feed_forward(keys: Keys, arch: Architecture) -> tuple[int, int, int]:
    """Return (experts, experts per token, width of the network or of one expert)."""
    if not arch.has_attention:
        return 0, 0, 0
    if arch.experts == "none":
        return 0, 0, keys.count("feed_forward_length", 1 << 24)
    needed = None if arch.experts == "all" else 0
    n_expert = keys.count("expert_count", 1 << 12, needed, least=1 if needed is None else 0)
    if n_expert == 0:
        return 0, 0, keys.count("feed_forward_length", 1 << 24)
    used = keys.count("expert_used_count", 1 << 12)
    if used > n_expert:
        why = f"there are only {n_expert} experts (expert_count)"
        raise keys.fail("expert_used_count", f"is {used}", why)
    return n_expert, used, arch.expert_width(keys, used)


def _windows(
    keys: Keys, arch: Architecture, n_layer: int, n_ctx_train: int
) -> tuple[int, tuple[bool, ...]]:
    """Return the sliding window and its layers; (0, ()) if none is smaller than the context.

    Windows of a rule that only the architecture has are left to ``refine``.
    """
    key = "attention.sliding_window"
    window = keys.count(key, MAX_CONTEXT, default=0, least=0)
    if not 0 < window < n_ctx_train or arch.windows == "own":
        return 0, ()
    if arch.has_attention and not arch.has_latent:
        if keys.get(f"{key}_pattern") is not None:
            return window, keys.windowed(n_layer, period=1)
        if arch.windows == "all":
            return window, (True,) * n_layer
    why = f"windows are not supported for {arch.name} unless {key}_pattern lists their blocks"
    raise keys.fail(key, f"is {window}", why)


def _activation(keys: Keys, n_expert: int) -> Literal["silu", "gelu"]:
    """Return the activation of dense networks, which only folders state."""
    key = "feed_forward_activation"
    match keys.get(key):
        case None | "silu":
            return "silu"
        case "gelu" if not n_expert:
            return "gelu"
        case value:
            raise keys.fail(key, f"is {shown(value)}", "supported: silu, and gelu without experts")


def _routing(keys: Keys, arch: Architecture, hp: HParams) -> HParams:
    """Return hyperparameters with what the metadata say about the weights of experts."""
    default = _SIGMOID if arch.routes_by_sigmoid else _SOFT_MAX
    gating = keys.count("expert_gating_func", 1 << 8, default, least=0) or default
    if gating not in (_SOFT_MAX, _SIGMOID):
        raise keys.fail("expert_gating_func", f"is {gating}", "supported: 1, 2")
    groups, groups_used = _expert_groups(keys, hp)
    return replace(
        hp,
        n_expert_groups=groups,
        n_groups_used=groups_used,
        expert_scale=keys.real("expert_weights_scale", 0.0, 1e6, default=0.0) or 1.0,
        renormalises_experts=keys.flag("expert_weights_norm", arch.renormalises),
        routes_by_sigmoid=gating == _SIGMOID,
    )


def _expert_groups(keys: Keys, hp: HParams) -> tuple[int, int]:
    """Return how many groups the experts are in, and from how many a token's are chosen."""
    key, used_key = "expert_group_count", "expert_group_used_count"
    groups = keys.count(key, 1 << 12, default=1, least=0) or 1
    if hp.n_expert % groups:
        why = f"it must divide the {hp.n_expert} of expert_count"
        raise keys.fail(key, f"is {groups}", why)
    if groups == 1:
        keys.count(used_key, 1, default=1, least=0)
        return 1, 1
    used = keys.count(used_key, groups)
    if used * (hp.n_expert // groups) < hp.n_expert_used:
        why = f"a token needs {hp.n_expert_used} experts (expert_used_count)"
        raise keys.fail(used_key, f"is {used}", f"{why}, groups have {hp.n_expert // groups}")
    return groups, used


def _blocks(file: GgufFile, keys: Keys) -> int:
    """Return the number of blocks that compute the next token.

    The last ``nextn_predict_layers`` of the file predict further tokens and are left out. They have
    tensors that no other block has, so a number that contradicts these is refused.
    """
    n_blocks = keys.count("block_count", 1 << 16)
    _check_blocks(file, keys, n_blocks)
    key = "nextn_predict_layers"
    extra = keys.count(key, 1 << 16, default=0, least=0)
    if extra >= n_blocks:
        raise keys.fail(key, f"is {extra}", f"there are {n_blocks} blocks")
    predicting = {int(m[1]) for m in map(_PREDICTION.match, file.tensors) if m}
    wanted = {*range(n_blocks - extra, n_blocks)}
    if predicting != wanted:
        block = min(predicting ^ wanted)
        why = f"block {block} has {'no' if block in wanted else 'a'} tensor blk.{block}.nextn.*"
        raise keys.fail(key, f"is {extra}", why)
    return n_blocks - extra


def _check_blocks(file: GgufFile, keys: Keys, n_layer: int) -> None:
    """Refuse a block_count above the number of tensors, or below a block that is there."""
    if n_layer > len(file.tensors):
        raise keys.fail("block_count", f"is {n_layer}", f"there are {len(file.tensors)} tensors")
    for name in file.tensors:
        if (block_of(name) or 0) >= n_layer:
            raise keys.fail("block_count", f"is {n_layer}", f"there is a tensor {quoted(name)}")


def _vocab(file: GgufFile, keys: Keys) -> int:
    table = file.tensors.get("token_embd.weight")
    if table is None or len(table.shape) != 2:
        what = "tensor 'token_embd.weight' is missing or has not two axes"
        raise ModelError(what, where=file.path, hint="convert the model again")
    n_vocab = keys.count("vocab_size", 1 << 31, default=table.shape[0])
    if n_vocab != table.shape[0]:
        why = f"token_embd.weight has {table.shape[0]} rows"
        raise keys.fail("vocab_size", f"is {n_vocab}", why)
    return n_vocab


def _rope(keys: Keys, arch: Architecture, head_dim: int, n_ctx_train: int) -> RopeParams:
    if not arch.has_attention:
        return RopeParams(0, arch.pairing, 1.0)
    n_dims = keys.count("rope.dimension_count", 1 << 14, default=head_dim)
    if n_dims % 2 or n_dims > head_dim:
        why = f"it must be even and at most the head's width of {head_dim}"
        raise keys.fail("rope.dimension_count", f"is {n_dims}", why)
    plain = RopeParams(
        n_dims=n_dims,
        pairing=keys.folder_pairing or arch.pairing,
        base=keys.real("rope.freq_base", 1.001, 1e12, default=10000.0),
        attn_factor=keys.real("rope.scaling.attn_factor", 1e-3, 1e3, default=1.0),
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
            return replace(plain, freq_scale=1.0 / factor)
        case "yarn":
            return _yarn(keys, arch, plain, factor, n_ctx_train)
        case str() if scaling in arch.scalings:
            return plain
    why = "supported: none, linear, yarn"
    raise keys.fail("rope.scaling.type", f"is {shown(scaling)}", why)


def _yarn(
    keys: Keys, arch: Architecture, plain: RopeParams, factor: float, n_ctx_train: int
) -> RopeParams:
    prefix = "rope.scaling."
    for key in ("yarn_log_multiplier", "yarn_attn_factor"):
        is_known = arch.has_latent and key == "yarn_log_multiplier"
        if keys.get(prefix + key) is not None and not is_known:
            raise keys.fail(prefix + key, "is set", "it is not supported")
    return replace(
        plain,
        freq_scale=1.0 / factor,
        ext_factor=keys.real(prefix + "yarn_ext_factor", 0.0, 1.0, default=1.0),
        beta_fast=keys.real(prefix + "yarn_beta_fast", 1e-3, 1e6, default=32.0),
        beta_slow=keys.real(prefix + "yarn_beta_slow", 1e-3, 1e6, default=1.0),
        n_ctx_orig=keys.count(prefix + "original_context_length", MAX_CONTEXT, default=n_ctx_train),
    )
