"""Vocabularies for tests: byte-level BPE, SentencePiece, and the characters of the demo model."""

from ggsched_llm.bpe import byte_letters
from ggsched_llm.vocab import read_vocab

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
PREFIX = "tokenizer.ggml."

_MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "l d", "Ġwor ld", "1 2", "12 3"]
_LETTERS = sorted(byte_letters())
_BPE_TOKENS = [*_LETTERS, *(m.replace(" ", "") for m in _MERGES), "<|user|>", "<|end|>", "<|eot|>"]
BPE_META = {
    PREFIX + "model": "gpt2",
    PREFIX + "pre": "llama-bpe",
    PREFIX + "tokens": _BPE_TOKENS,
    PREFIX + "token_type": [NORMAL] * (len(_BPE_TOKENS) - 3) + [USER_DEFINED, CONTROL, CONTROL],
    PREFIX + "merges": _MERGES,
    PREFIX + "bos_token_id": len(_BPE_TOKENS) - 1,
    PREFIX + "eos_token_id": len(_BPE_TOKENS) - 2,
    PREFIX + "add_bos_token": False,
}

_PIECES = ["▁", "a", "b", "c", "e", "h", "l", "o", "r", "d", "w", "1", "2", "é"]
_UNIONS = ["he", "ll", "hell", "hello", "▁w", "or", "ld", "▁wor", "▁world", "▁hello", "aa", "aaa"]
_UNIONS += ["ab", "ba", "bab", "▁▁", "▁▁▁▁", "12"]
_SPM_TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *_UNIONS, *_PIECES]
SPM_META = {
    PREFIX + "model": "llama",
    PREFIX + "tokens": _SPM_TOKENS,
    PREFIX + "token_type": [UNKNOWN, CONTROL, CONTROL]
    + [BYTE] * 256
    + [NORMAL] * (len(_UNIONS) + len(_PIECES)),
    PREFIX + "scores": [0.0] * 259 + [-float(i) for i in range(len(_UNIONS) + len(_PIECES))],
    PREFIX + "bos_token_id": 1,
    PREFIX + "eos_token_id": 2,
    PREFIX + "unknown_token_id": 0,
}

# Both forms are about: with no merges at all, and with one that makes the control token.
_DEMO_TOKENS = [*"0123456789+=", "<|end|>"]
DEMO_META = {
    PREFIX + "model": "gpt2",
    PREFIX + "pre": "default",
    PREFIX + "tokens": _DEMO_TOKENS,
    PREFIX + "token_type": [NORMAL] * 12 + [CONTROL],
    PREFIX + "merges": [],
    PREFIX + "eos_token_id": 12,
    PREFIX + "add_bos_token": False,
}

_MERGED_TOKENS = [*_DEMO_TOKENS, "<|", "end|>", "[UNUSED15]"]
MERGED_DEMO_META = DEMO_META | {
    PREFIX + "tokens": _MERGED_TOKENS,
    PREFIX + "token_type": [NORMAL] * 12 + [CONTROL] + [UNUSED] * 3,
    PREFIX + "merges": ["<| end|>"],
}


def plain(meta):
    """Return metadata as the reader gives it: arrays as tuples."""
    return {k: tuple(v) if isinstance(v, list) else v for k, v in meta.items()}


def vocab_of(meta, **changes):
    """Return the vocabulary of some metadata, with keys replaced (None: left out)."""
    full = meta | {PREFIX + k: v for k, v in changes.items()}
    return read_vocab(plain({k: v for k, v in full.items() if v is not None}), "m.gguf")
