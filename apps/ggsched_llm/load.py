"""Opens a model: file, hyperparameters, weights, tokenizer, each checked against the others.

No weight is read until ``weight_array`` is called; opening costs the header alone.
"""

import logging
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from numpy.typing import NDArray

from ggsched.errors import ModelError, UsageError
from ggsched.ir.dtype import FLOAT_DTYPES
from ggsched_llm.arch import ARCHITECTURES
from ggsched_llm.gguf_file import GgufFile, GgufTensor
from ggsched_llm.gguf_header import MetaValue, quoted
from ggsched_llm.gguf_split import open_model_file
from ggsched_llm.graph import model_needs
from ggsched_llm.hf_folder import is_hf_folder, open_hf_folder
from ggsched_llm.hparams import HParams
from ggsched_llm.metadata_keys import NotedKeys
from ggsched_llm.read_hparams import read_hparams
from ggsched_llm.spec import ModelSpec, WeightNeed, WeightPolicy, WeightSpec, graph_dtype
from ggsched_llm.tokenizer import Tokenizer
from ggsched_llm.vocab import PREFIX, read_vocab
from ggsched_llm.weights import converted_array, stored_array

if TYPE_CHECKING:
    from ggsched_llm.chat import ChatTemplate

_log = logging.getLogger("ggsched")

_OF_THE_MODEL: Final = re.compile(
    r"(?:blk|model\.layers)\.([0-9]{1,9})\.|(?:token|output|rope|position)_?"
)
"""How names of tensors begin that take part in computing logits."""
_ANGLES: Final = (".attn_rot_embd.weight", ".rotary_emb.inv_freq")
AGAIN: Final = "convert the model again"
"""Ends the hint of an error that the converter of a GGUF file made."""
_OF_OVERRIDES: Final = "keys were replaced: leave out --override-kv"
_OF_FOLDERS: Final = (
    "nothing was converted: compare config.json with the model's, or fetch it again"
)


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A model file that was opened and found complete.

    Attributes:
        spec: What graphs are built from.
        tokenizer: Refuses text if the file has no vocabulary.
    """

    file: GgufFile
    spec: ModelSpec
    tokenizer: Tokenizer

    @property
    def hparams(self) -> HParams:
        """Hyperparameters."""
        return self.spec.hparams

    def chat_template(self) -> "ChatTemplate":
        """Return the file's chat template.

        Raises:
            ModelError: there is none, or it cannot be used.
        """
        from ggsched_llm.chat import TEMPLATE_KEY, ChatTemplate

        source = self.file.metadata.get(TEMPLATE_KEY)
        if not isinstance(source, str):
            how = f"--override-kv {TEMPLATE_KEY}=str:TEMPLATE"
            hint = f"give one, as {how}, or the prompt without --chat"
            raise ModelError("has no chat template", where=self.file.path, hint=hint)
        vocab = self.tokenizer.vocab
        texts = {role: vocab.tokens[token] for role, token in vocab.special.items()}
        special = {f"{role}_token": texts.get(role, "") for role in ("bos", "eos")}
        return ChatTemplate(source, special, self.file.path)

    def weight_nbytes(self) -> int:
        """Return how many bytes all weights have in the graph."""
        return sum(weight.nbytes for weight in self.spec.weights.values())


def load_model(
    path: str | os.PathLike[str],
    *,
    weights: WeightPolicy = "packed",
    overrides: Mapping[str, MetaValue] | None = None,
    head: bool = False,
) -> Model:
    """Open a model.

    Args:
        path: A GGUF file; of a model in several files, any of them. Or a folder, see
            ``ggsched_llm.hf_folder``.
        weights: ``packed``: matrices keep the file's type in the graph, and are used where the file
            is mapped if the device can; ``expand``: every weight becomes f32 when it is loaded.
        overrides: Metadata that replaces the file's.
        head: Load the head that predicts further tokens, too, so that the model can draft for
            itself (``Session.use_draft``).

    Raises:
        ModelError: the file is damaged, incomplete, or something in it is not supported.
        UsageError: an unknown weight policy, or the file has no head, or none that can be used.
    """
    if weights not in ("expand", "packed"):
        hint = "use 'expand' or 'packed'"
        raise UsageError(f"no weight policy {weights!r}", where="load_model", hint=hint)
    folder = os.fspath(path)
    is_folder = is_hf_folder(folder)
    file = open_hf_folder(folder) if is_folder else open_model_file(path)
    if overrides:
        file = replace(file, metadata=NotedKeys({**file.metadata, **overrides}))
    try:
        return _model(file, overrides or {}, weights, head)
    except ModelError as error:
        hint = _OF_OVERRIDES if overrides else _OF_FOLDERS if is_folder else ""
        if hint and error.hint.endswith(AGAIN):
            raise ModelError(error.what, where=error.where, why=error.why, hint=hint) from error
        raise


def _model(
    file: GgufFile, overrides: Mapping[str, MetaValue], weights: WeightPolicy, head: bool
) -> Model:
    hparams = read_hparams(file)
    if head:
        _check_head(file, hparams)
        hparams = replace(hparams, predicts=True)
    if overrides and isinstance(file.metadata, NotedKeys):
        _warn_of_unread(file.path, overrides, file.metadata)
    file = ARCHITECTURES[hparams.arch].adapt(file, hparams)
    found = {
        need.name: WeightSpec(need.shape, graph_dtype(need, tensor.dtype, weights))
        for need, tensor in _found(file, hparams)
    }
    _check_optional(file, hparams, found)
    _check_unused(file, hparams, found)
    return Model(file, ModelSpec(hparams, found), _tokenizer(file, hparams))


def weight_array(model: Model, name: str) -> NDArray[Any]:
    """Return the bytes of a weight as the graph wants them.

    Float32 or float16 of the weight's shape, uint16 bits for bf16, uint8 (.., bytes of a row) for
    quantised types. A read-only view of the mapped file if it has that type already, else a fresh
    float32 array.

    Raises:
        ModelError: the model has no such weight.
    """
    spec = model.spec.weights.get(name)
    if spec is None:
        raise ModelError(f"no weight {quoted(name)}", where=model.file.path)
    if spec.dtype is model.file.tensors[name].dtype:
        return stored_array(model.file, name)
    return converted_array(model.file, name)


def _check_head(file: GgufFile, hparams: HParams) -> None:
    """Refuse a file without a head that predicts further tokens, or of another kind than known."""
    hint = "use a draft model (-md), or no draft"
    if not any(name.startswith(f"blk.{hparams.n_layer}.nextn.") for name in file.tensors):
        what = "has no head that predicts further tokens"
        why = f"no block has tensors blk.{hparams.n_layer}.nextn.*"
        raise UsageError(what, where=file.path, why=why, hint=hint)
    if ARCHITECTURES[hparams.arch].remember is None or hparams.window:
        what = f"the head of {hparams.arch} that predicts further tokens cannot be used"
        able = (arch.name for arch in ARCHITECTURES.values() if arch.remember is not None)
        why = f"supported: those of {', '.join(able)}, without windows"
        if hparams.recurrent is not None:
            why = "drafts are taken back, and states of its blocks cannot be"
        raise UsageError(what, where=file.path, why=why, hint=hint)


def _warn_of_unread(path: str, overrides: Mapping[str, MetaValue], metadata: NotedKeys) -> None:
    """Say which overrides have no effect; keys of tokenizers and names are read later."""
    unread = [
        key
        for key in overrides
        if key not in metadata.read and not key.startswith(("tokenizer.", "general."))
    ]
    if unread:
        text = "%s: overrides of keys that this model does not read have no effect: %s"
        _log.warning(text, path, ", ".join(map(quoted, unread)))


def _check_optional(file: GgufFile, hparams: HParams, found: Mapping[str, WeightSpec]) -> None:
    """Refuse a file that lost a tensor which other blocks have, such as one of their biases."""
    first: dict[str, str] = {}
    lost: dict[str, WeightNeed] = {}
    for need in model_needs(hparams):
        blk, _, part = need.name.removeprefix("blk.").partition(".")
        if need.optional and blk.isdigit():
            if need.name in found:
                first.setdefault(part, need.name)
            else:
                lost.setdefault(part, need)
    for part, need in lost.items():
        if part in first:
            where = f"{file.path}: tensor {quoted(need.name)}"
            why = f"needs {_shown(need)}, since there is {quoted(first[part])}"
            raise ModelError("is missing", where=where, why=why, hint="convert the model again")


def _check_unused(file: GgufFile, hparams: HParams, used: Mapping[str, WeightSpec]) -> None:
    """Refuse tensors of the model that its architecture has no use for; warn of others.

    Blocks that predict further tokens are left out, which is said once.
    """
    unused, n_left_out = [name for name in file.tensors if name not in used], 0
    n_blocks = hparams.n_layer + hparams.predicts
    for name in unused:
        found = _OF_THE_MODEL.match(name)
        is_left_out = found is not None and int(found[1] or 0) >= n_blocks
        n_left_out += is_left_out
        # Angles follow from the metadata, and these two hold what the third does.
        both = [name.replace(".attn_kv_b.", f".attn_{part}_b.") for part in "kv"]
        is_known = name.endswith(_ANGLES) or all(n != name and n in used for n in both)
        if found and not is_left_out and not is_known:
            what = f"tensor {quoted(name)} is not used"
            why = f"architecture {hparams.arch} does not know it, and results may depend on it"
            hint = "convert the model again, or report the tensor"
            raise ModelError(what, where=file.path, why=why, hint=hint)
    if n_left_out:
        text = "%s: %d tensors of blocks that predict further tokens are not loaded"
        _log.info(text, file.path, n_left_out)
    others = [name for name in unused if not _OF_THE_MODEL.match(name)]
    if others:
        names = ", ".join(quoted(name) for name in others[:3])
        _log.warning("%s: %d tensors are not used: %s", file.path, len(others), names)


def _tokenizer(file: GgufFile, hparams: HParams) -> Tokenizer:
    vocab = read_vocab(file.metadata, file.path)
    if vocab is not None and len(vocab.tokens) != hparams.n_vocab:
        raise ModelError(
            f"has {len(vocab.tokens)} elements",
            where=f"{file.path}: key {PREFIX}tokens",
            why=f"token_embd.weight has {hparams.n_vocab} rows",
            hint="convert the model again",
        )
    kind = file.metadata.get(f"{PREFIX}model", "")
    return Tokenizer(vocab, file.path, kind if isinstance(kind, str) else "")


def _found(file: GgufFile, hparams: HParams) -> Iterator[tuple[WeightNeed, GgufTensor]]:
    for need in model_needs(hparams):
        tensor = file.tensors.get(need.name)
        where = f"{file.path}: tensor {quoted(need.name)}"
        if tensor is None:
            if need.optional:
                continue
            near = ", ".join(quoted(n) for n in islice(file.tensors, 3))
            hint = f"the file has {len(file.tensors)} tensors: {near}, ..."
            raise ModelError("is missing", where=where, why=f"needs {_shown(need)}", hint=hint)
        if tensor.shape != need.shape:
            why = f"needs {list(need.shape)}, has {list(tensor.shape)}"
            hint = "keys and tensors of the file contradict each other; convert the model again"
            raise ModelError("has the wrong shape", where=where, why=why, hint=hint)
        if tensor.dtype not in FLOAT_DTYPES:
            why = f"it is of type {tensor.dtype}"
            raise ModelError("is not of a float type", where=where, why=why)
        yield need, tensor


def _shown(need: WeightNeed) -> str:
    return f"shape {list(need.shape)}"
