"""Splits text as SentencePiece's BPE does: merge the neighbours whose union scores highest.

Written here because no library fits: a GGUF file holds pieces and scores. ``sentencepiece`` wants
its own serialised model instead, and the BPE of ``tokenizers`` wants ranked merges; ranks made up
from scores decide ties otherwise (by pair instead of by position). The tests compare this with
``sentencepiece`` itself.
"""

import heapq
from collections.abc import Callable, Mapping

from ggsched_llm.vocab import TokenType, Vocab, byte_of

SPACE = "\u2581"


def make_spm(vocab: Vocab) -> Callable[[str], list[int]]:
    """Return a function from text without special tokens to ids.

    Characters that no piece covers become byte tokens, or the unknown token, or nothing if the
    vocabulary has neither.
    """
    usable = (TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.UNUSED)
    pieces: dict[str, int] = {}
    data: dict[int, int] = {}
    for i, (text, kind) in enumerate(zip(vocab.tokens, vocab.types, strict=True)):
        if kind in usable and text:
            pieces.setdefault(text, i)
        byte = byte_of(text) if kind is TokenType.BYTE else None
        if byte is not None:
            data.setdefault(byte, i)
    unknown = vocab.special.get("unknown")
    scores = vocab.scores

    def encode(text: str) -> list[int]:
        out: list[int] = []
        for symbol in _merge(text.replace(" ", SPACE), pieces, scores):
            found = pieces.get(symbol)
            if found is not None:
                out.append(found)
            else:
                out.extend(_fallback(symbol, data, unknown))
        return out

    return encode


def _fallback(symbol: str, data: Mapping[int, int], unknown: int | None) -> list[int]:
    raw = symbol.encode("utf-8", "surrogatepass")
    if all(byte in data for byte in raw):
        return [data[byte] for byte in raw]
    return [] if unknown is None else [unknown]


def _merge(text: str, pieces: Mapping[str, int], scores: tuple[float, ...]) -> list[str]:
    """Merge characters until no two neighbours form a piece; ties go to the left."""
    symbols = list(text)
    after = list(range(1, len(symbols) + 1))
    before = list(range(-1, len(symbols) - 1))
    heap: list[tuple[float, int, str]] = []

    def offer(left: int) -> None:
        right = after[left] if left >= 0 else len(symbols)
        if right < len(symbols):
            union = symbols[left] + symbols[right]
            found = pieces.get(union)
            if found is not None:
                heapq.heappush(heap, (-scores[found], left, union))

    for i in range(len(symbols)):
        offer(i)
    while heap:
        _, left, union = heapq.heappop(heap)
        right = after[left]
        # An entry is stale if one of its two symbols has been merged since.
        if not symbols[left] or right >= len(symbols) or symbols[left] + symbols[right] != union:
            continue
        symbols[left], symbols[right] = union, ""
        after[left] = after[right]
        if after[right] < len(symbols):
            before[after[right]] = left
        offer(before[left])
        offer(left)
    return [symbol for symbol in symbols if symbol]
