"""Encoding with the ``tokenizers`` library, and the pre-tokenizers that GGUF files name."""

import logging
import re
from collections.abc import Callable, Mapping
from typing import Final

from ggsched.errors import ModelError
from ggsched_llm.gguf_header import quoted
from ggsched_llm.vocab import STOP_NAMES, Vocab

_log = logging.getLogger("ggsched")

_CONTRACTIONS: Final = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_WORD: Final = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+"
_QWEN35: Final = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
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
_DEEPSEEK_LETTERS: Final = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293"
    "\u0295-\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c"
    "\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5"
    "\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59"
    "\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc"
    "\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107"
    "\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee"
    "\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e"
    "\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f"
    "\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943"
)
"""Letters that have case, as the tokenizer of DeepSeek's first models lists them."""
_DEEPSEEK_LLM: Final = (
    r"[\r\n]",
    rf"\s?[{_DEEPSEEK_LETTERS}]+",
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"\s+$",
    rf"[{_CJK}\u0800-\u4e00\uac00-\ud7ff]+",
    r"\p{N}+",
)
_TEKKEN: Final = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SEED_CODER: Final = rf"{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
_BAILING: Final = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
_FALCON: Final = (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")
_BLOOM: Final = r" ?[^(\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
# One after the other: each splits what the one before left in one piece.
_DEFAULT: Final = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")
_WHOLE: Final = (
    *("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
    *("glm4", "tekken"),
)
"""Those of vocabularies where a piece that is a token is not split."""
_NAMES: Final[Mapping[tuple[str, ...], tuple[str, ...]]] = {
    _DEFAULT: ("default",),
    (_GPT2,): (
        "gpt-2", "olmo", "mpt", "phi-2", "gigachat", "a.x-4.0", "mellum", "modern-bert", "jais",
        "exaone4", "trillion", "granite-docling",
    ),
    (r"\p{N}", _GPT2): (
        "starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b",
        "mellum2",
    ),
    (_LLAMA3,): (*_WHOLE[:-1], "dbrx", "smaug-bpe", "chatglm-bpe"),
    (_QWEN2,): (
        "qwen2", "deepseek-r1-qwen", "stablelm2", "hunyuan", "solar-open", "megrez", "kormo",
        "f2llmv2", "grok-2",
    ),
    (_QWEN35,): ("qwen35",),
    (_GPT4O,): ("gpt-4o", "llama4", "kanana2", "minimax-m2"),
    (_TEKKEN,): ("tekken",),
    (_SEED_CODER,): ("seed-coder",),
    (_BAILING,): ("bailingmoe", "bailingmoe2", "llada-moe"),
    _FALCON: ("falcon",),
    (_BLOOM,): ("bloom", "gpt3-finnish", "poro-chat"),
    (_BLOOM, r"\p{N}"): ("viking",),
    _DEEPSEEK3: ("deepseek-v3", "hunyuan-dense", "joyai-llm"),
    _DEEPSEEK_CODER: ("deepseek-coder",),
    _DEEPSEEK_LLM: ("deepseek-llm",),
}  # fmt: skip
PRE_TOKENIZERS: Final = {name: steps for steps, names in _NAMES.items() for name in names}
"""Regular expressions by name, as llama.cpp knows them."""


_AT_FIRST: Final = re.compile(r'("prepend_scheme"\s*:\s*)"first"')


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
        raise _no_library(file, error) from error
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
    if not vocab.pre:
        _log.warning("%s: no key tokenizer.ggml.pre, using 'default'; convert it again", file)
    patterns = PRE_TOKENIZERS.get(vocab.pre or "default")
    if patterns is None:
        raise ModelError(
            f"pre-tokenizer {quoted(vocab.pre)} is not supported",
            where=f"{file}: key tokenizer.ggml.pre",
            hint="pass --tokens 1,2,3, or --override-kv tokenizer.ggml.pre=str:NAME of a like one",
        )
    whole = vocab.pre in _WHOLE
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=list(vocab.merges), ignore_merges=whole))
    steps = [pre_tokenizers.Split(Regex(p), "isolated") for p in patterns]
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*steps, letters])

    def encode(text: str) -> list[int]:
        out: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return out

    return encode


def make_library(
    json: str, file: str, *, parses_control: bool, continues: bool = False
) -> Callable[[str], list[int]]:
    """Return a function from text to ids as ``tokenizer.json`` says, without those around a text.

    Args:
        json: Text of the file.
        file: Name of the model, for messages.
        parses_control: Whether control tokens written in a text count as such.
        continues: Whether something stands in front of each text, so that none gets the space that
            the beginning of a text may get.

    Raises:
        ModelError: ``tokenizers`` is not installed, or refuses the file.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise _no_library(file, error) from error
    try:
        tokenizer = Tokenizer.from_str(_AT_FIRST.sub(r'\1"never"', json) if continues else json)
    except Exception as error:  # the library has no class of its own
        why = " ".join(str(error).split())
        raise ModelError("tokenizer.json is damaged", where=file, why=why) from error
    if not parses_control:
        # Those that end a text are control tokens, whatever the file says; see ``read_vocab``.
        added = tokenizer.get_added_tokens_decoder().values()
        tokenizer.add_special_tokens([t.content for t in added if t.content in STOP_NAMES])
    tokenizer.encode_special_tokens = not parses_control
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def encode(text: str) -> list[int]:
        out: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return out

    return encode


def _no_library(file: str, error: ImportError) -> ModelError:
    hint = "pip install tokenizers, or pass --tokens 1,2,3"
    what = "its tokenizer needs the package 'tokenizers'"
    return ModelError(what, where=file, why=str(error), hint=hint)
