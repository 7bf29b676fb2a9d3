"""Vocabularies of any size that encode every text, in the two kinds that GGUF files have."""

from collections.abc import Iterator
from itertools import islice, product

from gguf import GGUFWriter

from ggsched_llm.bpe import byte_letters
from ggsched_llm.vocab import TokenType

_END = "<|end|>"


def add_vocabulary(writer: GGUFWriter, kind: str, pre: str, n_vocab: int) -> None:
    """Add a vocabulary.

    Args:
        writer: Of the file.
        kind: ``gpt2``: bytes, and merges of two tokens each; ``llama``: bytes, and pieces.
        pre: Name of the pre-tokenizer.
        n_vocab: Tokens.
    """
    writer.add_tokenizer_model(kind)
    if kind == "gpt2":
        letters = list(byte_letters())
        pairs = list(islice(_pairs(letters), n_vocab - len(letters) - 1))
        tokens = [*letters, *(left + right for left, right in pairs), _END]
        types = [TokenType.NORMAL] * (n_vocab - 1) + [TokenType.CONTROL]
        writer.add_tokenizer_pre(pre)
        writer.add_token_merges([f"{left} {right}" for left, right in pairs])
        writer.add_eos_token_id(n_vocab - 1)
        writer.add_add_bos_token(False)
    else:
        control = ["<unk>", "<s>", "</s>"]
        letters = ["▁", *map(chr, range(0x21, 0x7F)), *map(chr, range(0xC0, 0x250))]
        pieces = [left + right for left, right in islice(_pairs(letters), n_vocab)]
        tokens = [*control, *(f"<0x{i:02X}>" for i in range(256)), *letters, *pieces][:n_vocab]
        types = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL]
        types += [TokenType.BYTE] * 256 + [TokenType.NORMAL] * (n_vocab - 259)
        writer.add_token_scores([-float(i) for i in range(n_vocab)])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_unk_token_id(0)
    writer.add_token_list(tokens)
    writer.add_token_types([int(t) for t in types])


def _pairs(letters: list[str]) -> Iterator[tuple[str, str]]:
    """Yield pairs whose unions all differ, of tokens that are there before them."""
    longer = letters
    while True:
        yield from product(longer, letters)
        longer = [left + right for left, right in product(longer, letters)]
