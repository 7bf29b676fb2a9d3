"""The vocabulary in a GGUF file, checked: tokens, their kinds, special ids, merges or scores."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Literal, cast

from ggsched.errors import ModelError
from ggsched_llm.gguf_header import MetaValue, quoted
from ggsched_llm.ignored_keys import TOKENIZER
from ggsched_llm.metadata_keys import NotedKeys, not_understood

VocabKind = Literal["gpt2", "llama"]
PREFIX: Final = "tokenizer.ggml."
JSON_KEY: Final = "tokenizer.huggingface.json"
STOP_NAMES: Final = frozenset(
    (
        "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>",
        "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]",
        "[EOS]", "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>",
        "<\uff5cend\u2581of\u2581sentence\uff5c>", "[e~[",
    )
)  # fmt: skip
"""llama.cpp ends a text at these too, and takes them for control tokens, whatever the file says."""
_STOP_ROLES: Final[Mapping[str, tuple[str, ...]]] = {
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}
"""Roles in filling gaps in code at whose token a text ends, and its names where no key says it."""
_CALLS: Final = ("<|call|>", "<|calls|>")
_AT_THE_START: Final = frozenset(
    (
        *("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0"),
        *("lfm2", "tekken"),
    )
)
"""Pre-tokenizers of models that begin a text with bos, if no key says otherwise."""
_KEEPS_SPACE: Final = ("<unk>", "<s>", "<|endoftext|>")
_BYTE: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenType(IntEnum):
    """Kind of a token, numbered as in ``tokenizer.ggml.token_type``."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


CONTROL_TYPES: Final = (TokenType.CONTROL, TokenType.UNKNOWN)
"""Kinds of tokens that are taken for such in a text only if it may contain control tokens."""
SPECIAL_TYPES: Final = (*CONTROL_TYPES, TokenType.USER_DEFINED)
"""Kinds of tokens that are never merged from smaller ones."""


@dataclass(frozen=True, slots=True)
class Vocab:
    """A checked vocabulary.

    Attributes:
        kind: ``gpt2``: byte-level BPE with merges; ``llama``: SentencePiece with scores.
        pre: Name of the pre-tokenizer (``gpt2`` only).
        tokens: Text of each id.
        types: Kind of each id.
        scores: Score of each id (``llama`` only).
        merges: Pairs to merge, first ones first (``gpt2`` only).
        special: Ids by role: bos, eos, eot, eom, unknown, fim_pad, fim_rep, fim_sep.
        add_bos: Whether a text starts with bos.
        add_eos: Whether a text ends with eos.
        add_space_prefix: Whether a text gets a leading space (``llama`` only).
        json: ``tokenizer.json``, which then decides how text is encoded; "" if there is none.
        prefix: Ids in front of a text, if ``json`` says so.
        suffix: Ids behind a text, if ``json`` says so.
        lstrip: Special tokens that swallow spaces in front of them.
        rstrip: Special tokens that swallow spaces behind them.
        stops: Further ids at which generation ends.
    """

    kind: VocabKind
    pre: str
    tokens: tuple[str, ...]
    types: tuple[TokenType, ...]
    scores: tuple[float, ...]
    merges: tuple[tuple[str, str], ...]
    special: Mapping[str, int]
    add_bos: bool
    add_eos: bool
    add_space_prefix: bool
    json: str = ""
    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()
    lstrip: frozenset[int] = frozenset()
    rstrip: frozenset[int] = frozenset()
    stops: frozenset[int] = frozenset()

    def stop_ids(self) -> frozenset[int]:
        """Return the ids at which generation ends."""
        roles = ("eos", "eot", "eom", *_STOP_ROLES)
        stops = {self.special[role] for role in roles if role in self.special}
        known = STOP_NAMES.union(*_STOP_ROLES.values())
        named = {text: i for i, text in enumerate(self.tokens) if text in known}
        for role, names in _STOP_ROLES.items():
            found = [named.pop(name) for name in names if name in named]
            if role not in self.special:
                stops.update(found[:1])
        stops |= {*named.values()}
        is_called = any(name in named for name in _CALLS)
        if is_called and ("<|return|>" in named or "<|flush|>" in named):
            # gpt-oss and Solar end each message of one answer with <|end|>.
            stops.discard(named.get("<|end|>", -1))
        if "<|tool_response>" in named:  # in Gemma 4 the other one is a tag of HTML
            stops.discard(named.get("</s>", -1))
        return frozenset(stops | self.stops)


class _Keys:
    def __init__(self, metadata: Mapping[str, MetaValue], file: str) -> None:
        self._metadata = metadata if isinstance(metadata, NotedKeys) else NotedKeys(metadata)
        self._file = file

    def refuse_unread(self) -> None:
        left = self._metadata.unread(PREFIX, TOKENIZER)
        if left:
            raise not_understood(self._file, left, self._metadata)

    def fail(self, key: str, what: str, why: str = "") -> ModelError:
        hint = "convert the model again"
        return ModelError(what, where=f"{self._file}: key {PREFIX}{key}", why=why, hint=hint)

    def get(self, key: str) -> MetaValue | None:
        value: MetaValue | None = self._metadata.get(PREFIX + key)
        return value

    def strings(self, key: str) -> tuple[str, ...]:
        found = self._array(key)
        if {*map(type, found)} - {str}:
            raise self.fail(key, "is not an array of strings")
        return cast(tuple[str, ...], found)

    def token_ids(self, key: str, n_vocab: int) -> tuple[int, ...]:
        found = () if self.get(key) is None else self._array(key)
        if not all(type(i) is int and 0 <= i < n_vocab for i in found):
            raise self.fail(key, "is not an array of ids", f"there are {n_vocab} tokens")
        return cast(tuple[int, ...], found)

    def reals(self, key: str) -> tuple[float, ...]:
        found = self._array(key)
        if {*map(type, found)} - {float}:
            raise self.fail(key, "is not an array of floating-point numbers")
        return cast(tuple[float, ...], found)

    def _array(self, key: str) -> tuple[int | float | str, ...]:
        value = self.get(key)
        if value is None:
            raise self.fail(key, "is missing")
        if not isinstance(value, tuple):
            raise self.fail(key, "is not an array")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.fail(key, "is not a truth value")
        return value

    def token_id(self, key: str, n_vocab: int) -> int | None:
        value = self.get(key)
        if value is None:
            return None
        if type(value) is not int:
            raise self.fail(key, "is not an integer")
        if not 0 <= value < n_vocab:
            raise self.fail(key, f"is {value}", f"there are {n_vocab} tokens")
        return value


def read_vocab(metadata: Mapping[str, MetaValue], file: str) -> Vocab | None:
    """Read and check the vocabulary.

    Args:
        metadata: Of a GGUF file.
        file: Its name, for messages.

    Returns:
        The vocabulary; None if the file has none, or one of a kind that is not supported.

    Raises:
        ModelError: it contradicts itself, or has a key that nothing reads and that must not be
            ignored; the message names the key.
    """
    keys = _Keys(metadata, file)
    model = keys.get("model")
    if model is not None and not isinstance(model, str):
        raise keys.fail("model", "is not a string")
    if model != "gpt2" and model != "llama":
        return None
    kind: VocabKind = "gpt2" if model == "gpt2" else "llama"
    tokens = keys.strings("tokens")
    if not tokens:
        raise keys.fail("tokens", "is empty")
    types = _types(keys, tokens)
    pre = keys.get("pre")
    pre = pre if isinstance(pre, str) else ""
    special = {
        role: found
        for role in ("bos", "eos", "eot", "eom", "unknown", *_STOP_ROLES)
        if (found := keys.token_id(f"{role}_token_id", len(tokens))) is not None
    }
    text = metadata.get(JSON_KEY) if keys.get("prefix_ids") is not None else None
    json = text if isinstance(text, str) else ""
    n = len(tokens)
    listed = frozenset(keys.token_ids("rstrip_ids", n))
    rstrip = listed if json else _phi3_strips(metadata, tokens, types)
    add_bos = keys.flag("add_bos_token", kind == "llama" or pre in _AT_THE_START)
    vocab = Vocab(
        kind=kind,
        pre=pre,
        tokens=tokens,
        types=types,
        scores=_scores(keys, tokens) if kind == "llama" and not json else (),
        merges=_merges(keys) if kind == "gpt2" and not json else (),
        special=special,
        add_bos=add_bos and "bos" in special,
        add_eos=keys.flag("add_eos_token", False) and "eos" in special,
        add_space_prefix=keys.flag("add_space_prefix", True),
        json=json,
        prefix=keys.token_ids("prefix_ids", n),
        suffix=keys.token_ids("suffix_ids", n),
        lstrip=frozenset(keys.token_ids("lstrip_ids", n)),
        rstrip=rstrip,
        stops=frozenset(keys.token_ids("stop_ids", n)),
    )
    keys.refuse_unread()
    return vocab


def _phi3_strips(
    metadata: Mapping[str, MetaValue], tokens: tuple[str, ...], types: tuple[TokenType, ...]
) -> frozenset[int]:
    """Return the tokens of Phi 3 that swallow spaces behind them, which GGUF files do not say."""
    name = str(metadata.get("general.name", "")).lower()
    is_phi3 = metadata.get("general.architecture") == "phi3" and (
        metadata.get(f"{PREFIX}model") == "llama"
    )
    if not (is_phi3 or "phi-3" in name or "phi3" in name):
        return frozenset()
    return frozenset(
        i
        for i, (text, kind) in enumerate(zip(tokens, types, strict=True))
        if text == "</s>" or (kind in SPECIAL_TYPES and text not in _KEEPS_SPACE)
    )


def _types(keys: _Keys, tokens: tuple[str, ...]) -> tuple[TokenType, ...]:
    value = keys.get("token_type")
    if value is None:
        return _with_stops(tokens, (TokenType.NORMAL,) * len(tokens))
    if not isinstance(value, tuple) or len(value) != len(tokens):
        n = len(value) if isinstance(value, tuple) else "no"
        raise keys.fail("token_type", f"has {n} elements", f"there are {len(tokens)} tokens")
    known = {t.value: t for t in TokenType}
    if {*map(type, value)} - {int} or {*value} - {*known}:
        i, code = next((i, c) for i, c in enumerate(value) if type(c) is not int or c not in known)
        raise keys.fail("token_type", f"element {i} is {code!r}", "kinds are 1 to 6")
    out = tuple(map(known.__getitem__, cast(tuple[int, ...], value)))
    if TokenType.BYTE in {*out}:
        for i, kind in enumerate(out):
            if kind is TokenType.BYTE and not _BYTE.fullmatch(tokens[i]):
                why = f"token {quoted(tokens[i])} is not a byte as in <0x0A>"
                raise keys.fail("token_type", f"element {i} says byte", why)
    return _with_stops(tokens, out)


def _with_stops(tokens: tuple[str, ...], types: tuple[TokenType, ...]) -> tuple[TokenType, ...]:
    """Return kinds of tokens; those that end a text are control tokens, as in llama.cpp."""
    if STOP_NAMES.isdisjoint(tokens):
        return types
    pairs = zip(tokens, types, strict=True)
    return tuple(TokenType.CONTROL if text in STOP_NAMES else kind for text, kind in pairs)


def _scores(keys: _Keys, tokens: tuple[str, ...]) -> tuple[float, ...]:
    scores = keys.reals("scores")
    if len(scores) != len(tokens):
        why = f"there are {len(tokens)} tokens"
        raise keys.fail("scores", f"has {len(scores)} elements", why)
    for i, score in enumerate(scores):
        if score != score:  # NaN has no place in an order
            raise keys.fail("scores", f"element {i} is NaN")
    return scores


def _merges(keys: _Keys) -> tuple[tuple[str, str], ...]:
    # A writer leaves an empty array out.
    if keys.get("merges") is None:
        return ()
    merges = keys.strings("merges")
    # A part may begin with a space only in vocabularies that are not byte-level.
    out = [tuple(merge.split(" ")) for merge in merges]
    if {*map(len, out)} - {2} or not all(map(all, out)):
        i = next(i for i, parts in enumerate(out) if len(parts) != 2 or not all(parts))
        why = "a merge is two tokens with a space between them"
        raise keys.fail("merges", f"element {i} is {quoted(merges[i])}", why)
    return cast(tuple[tuple[str, str], ...], tuple(out))


def byte_of(token: str) -> int | None:
    """Return the byte that a token like ``<0x0A>`` stands for, or None."""
    match = _BYTE.fullmatch(token)
    return int(match[1], 16) if match else None
