"""Byte-level BPE with the ``tokenizers`` library, and the pre-tokenizers that GGUF files name."""

import logging
from collections.abc import Callable
from typing import Final

from ggsched.errors import ModelError
from ggsched.models.gguf_header import quoted
from ggsched.models.vocab import Vocab

_log = logging.getLogger(__name__)

_CONTRACTIONS: Final = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_WORD: Final = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+"
_REST: Final = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3: Final = rf"{_WORD}|\p{{N}}{{1,3}}|{_REST}"
_QWEN2: Final = rf"{_WORD}|\p{{N}}|{_REST}"
_UPPER: Final = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER: Final = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_GPT4O: Final = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CJK: Final = "\u4e00-\u9fa5"
_DEEPSEEK3: Final = (
    r"\p{N}{1,3}",
    rf"[{_CJK}\u3040-\u309f\u30a0-\u30ff]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
_DEEPSEEK_CODER: Final = (
    r"[\r\n]",
    r"\s?\p{L}+",
    r"\s?\p{P}+",
    rf"[{_CJK}\u0800-\u4e00\uac00-\ud7ff]+",
    r"\p{N}",
)
# One after the other: each splits what the one before left in one piece.
_DEFAULT: Final = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")
PRE_TOKENIZERS: Final[dict[str, tuple[str, ...]]] = {
    "default": _DEFAULT,
    "gpt-2": (_GPT2,),
    "llama-bpe": (_LLAMA3,),
    "llama3": (_LLAMA3,),
    "llama-v3": (_LLAMA3,),
    "qwen2": (_QWEN2,),
    "deepseek-r1-qwen": (_QWEN2,),
    "gpt-4o": (_GPT4O,),
    "dbrx": (_LLAMA3,),
    "smaug-bpe": (_LLAMA3,),
    "deepseek-v3": _DEEPSEEK3,
    "deepseek-coder": _DEEPSEEK_CODER,
}


def byte_letters() -> dict[str, int]:
    """Return the printable letters that stand for the 256 bytes in byte-level vocabularies."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(0x100 + i): b for i, b in enumerate(rest)}


def make_bpe(vocab: Vocab, file: str) -> Callable[[str], list[int]]:
    """Return a function from text without special tokens to ids.

    Bytes for which the vocabulary has no token are left out.

    Args:
        vocab: Of kind ``gpt2``.
        file: Name of the model file, for messages.

    Raises:
        ModelError: ``tokenizers`` is not installed, or a merge of a token that does not exist.
    """
    try:
        from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    except ImportError as error:
        hint = "pip install tokenizers, or pass --tokens 1,2,3"
        what = "its tokenizer needs the package 'tokenizers'"
        raise ModelError(what, where=file, why=str(error), hint=hint) from error
    ids = {text: i for i, text in reversed(list(enumerate(vocab.tokens)))}
    for pair in vocab.merges:
        for text in (*pair, "".join(pair)):
            if text not in ids:
                raise ModelError(
                    f"a merge takes or makes {quoted(text)}",
                    where=f"{file}: key tokenizer.ggml.merges",
                    why="there is no such token",
                    hint="convert the model again",
                )
    patterns = PRE_TOKENIZERS.get(vocab.pre)
    if patterns is None:
        patterns = _DEFAULT
        _log.warning("%s: unknown pre-tokenizer %s, using 'default'", file, quoted(vocab.pre))
    whole = vocab.pre in ("llama-bpe", "llama3", "llama-v3")
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=list(vocab.merges), ignore_merges=whole))
    steps = [pre_tokenizers.Split(Regex(p), "isolated") for p in patterns]
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*steps, letters])

    def encode(text: str) -> list[int]:
        out: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return out

    return encode
