"""Text to token ids and back, from the vocabulary of a model.

In a folder of Hugging Face ``tokenizer.json`` decides how text is encoded, by the ``tokenizers``
library. In a GGUF file special tokens (control and user-defined ones) are cut out of the text
first; what is between them goes to byte-level BPE (``gpt2``) or SentencePiece (``llama``). Decoding
works on bytes, because a token may end in the middle of a character.
"""

import codecs
import logging
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Final

from ggsched.errors import ModelError, UsageError
from ggsched_llm.bpe import byte_letters, make_bpe, make_library
from ggsched_llm.gguf_header import quoted
from ggsched_llm.special_tokens import SpecialTokens
from ggsched_llm.spm import SPACE, make_spm
from ggsched_llm.vocab import CONTROL_TYPES, SPECIAL_TYPES, TokenType, Vocab, byte_of

_log = logging.getLogger("ggsched")

_Encode = Callable[[str], list[int]]
_FEW: Final = 256
"""Tokens of a vocabulary whose characters a message lists."""


class Tokenizer:
    """Encodes and decodes; made by ``load_model``, or from a ``Vocab``."""

    def __init__(self, vocab: Vocab | None, file: str, kind: str = "") -> None:
        """Keep the vocabulary; nothing is built before the first use.

        Args:
            vocab: None if there is none, so that text is refused.
            file: Name of the model file, for messages.
            kind: What the file says about its tokenizer, for messages.
        """
        self._vocab = vocab
        self._file = file
        self._kind = kind
        self._libraries: dict[tuple[bool, bool], _Encode] = {}

    @property
    def has_text(self) -> bool:
        """Whether text can be encoded and decoded."""
        return self._vocab is not None

    @cached_property
    def stop_ids(self) -> frozenset[int]:
        """Ids at which generation ends; empty without a vocabulary."""
        return self._vocab.stop_ids() if self._vocab is not None else frozenset()

    @property
    def vocab(self) -> Vocab:
        """The vocabulary.

        Raises:
            ModelError: the file has none that is supported.
        """
        if self._vocab is None:
            unsupported = self._kind not in ("", "none", "no_vocab")
            what = f"tokenizer {quoted(self._kind)} is not supported"
            raise ModelError(
                what if unsupported else "has no tokenizer",
                where=self._file,
                hint="pass --tokens 1,2,3",
            )
        return self._vocab

    def encode(
        self,
        text: str,
        *,
        bos: bool | None = None,
        parse_special: bool = True,
        literal: str = "",
    ) -> list[int]:
        """Return the ids of a text; warn if it begins with two bos.

        Args:
            bos: Whether to put bos in front; None for what the file says.
            parse_special: Whether control tokens written in the text count as such.
            literal: A character that the text has in front of control tokens that are plain text
                all the same; it is left out. "" for none.

        Raises:
            ModelError: the file has no tokenizer, or no tokens for a character of the text.
        """
        vocab = self.vocab
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UsageError("the text is not valid Unicode", why=error.reason) from None
        start = vocab.special.get("bos")
        out = list(vocab.prefix) if bos is None else []
        if (vocab.add_bos and not out if bos is None else bos) and start is not None:
            out.append(start)
        n_front = len(out)
        if vocab.json and (not parse_special or not literal or literal not in text):
            plain = text.replace(literal, "") if literal else text
            out.extend(self._library(parses_control=parse_special)(plain))
        else:
            out.extend(self._by_parts(text, parse_special, literal))
        if start is not None and out[:2] == [start, start] and n_front == 1:
            what = "%s: the text begins with bos, and the tokenizer puts another in front of it"
            _log.warning(what, self._file)
        out.extend(vocab.suffix)
        if vocab.add_eos and not vocab.json:
            out.append(vocab.special["eos"])
        return out

    @cached_property
    def control_tokens(self) -> SpecialTokens:
        """Finds control tokens in a text.

        Raises:
            ModelError: the file has no tokenizer.
        """
        types = self.vocab.types
        return SpecialTokens(t for t, i in self._special.items() if types[i] in CONTROL_TYPES)

    def decode(self, ids: Iterable[int], *, special: bool = False) -> str:
        """Return the text of ids; bytes that are not UTF-8 become U+FFFD.

        Args:
            ids: Token ids.
            special: Whether control tokens show in the text.

        Raises:
            ModelError: the file has no tokenizer.
            UsageError: an id that is not in the vocabulary.
        """
        stream = self.stream(special=special)
        return "".join([*map(stream.push, ids), stream.finish()])

    def stream(self, *, special: bool = False) -> "TextStream":
        """Return a decoder that takes one id at a time.

        Raises:
            ModelError: the file has no tokenizer.
        """
        strip = self.vocab.kind == "llama" and self.vocab.add_space_prefix
        return TextStream(self, special=special, strip_space=strip)

    def token_bytes(self, token: int, *, special: bool = False) -> bytes:
        """Return the bytes of one token.

        Raises:
            ModelError: the file has no tokenizer.
            UsageError: the id is not in the vocabulary.
        """
        vocab = self.vocab
        if not 0 <= token < len(vocab.tokens):
            why = f"there are {len(vocab.tokens)} tokens"
            raise UsageError(f"no token {token}", where=self._file, why=why)
        text, kind = vocab.tokens[token], vocab.types[token]
        if kind in (TokenType.CONTROL, TokenType.UNKNOWN):
            return text.encode() if special else b""
        if kind is TokenType.USER_DEFINED:
            return text.encode()
        if vocab.kind == "llama":
            byte = byte_of(text) if kind is TokenType.BYTE else None
            return text.replace(SPACE, " ").encode() if byte is None else bytes([byte])
        letters = self._letters
        if all(letter in letters for letter in text):
            return bytes(letters[letter] for letter in text)
        return text.encode()

    # --- helpers ---------------------------------------------------------------------------

    @cached_property
    def _letters(self) -> dict[str, int]:
        return byte_letters()

    def _by_parts(self, text: str, parse_special: bool, literal: str) -> Iterator[int]:
        """Yield the ids of a text that is cut at special tokens."""
        vocab, fresh, is_first = self.vocab, True, True
        for part, token in self._split(text, parse_special, literal):
            if token is not None:
                yield token
                fresh = True
            elif vocab.json:
                yield from self._library(parses_control=False, continues=not is_first)(part)
            else:
                prefix = fresh and vocab.kind == "llama" and vocab.add_space_prefix
                yield from self._plain(f" {part}" if prefix else part)
                fresh = False
            is_first = False

    def _library(self, *, parses_control: bool, continues: bool = False) -> _Encode:
        """Return what encodes as ``tokenizer.json`` says, see ``make_library``; made once."""
        kind = parses_control, continues
        if kind not in self._libraries:
            self._libraries[kind] = make_library(
                self.vocab.json, self._file, parses_control=parses_control, continues=continues
            )
        return self._libraries[kind]

    @cached_property
    def _encoder(self) -> _Encode:
        vocab = self.vocab
        return make_spm(vocab) if vocab.kind == "llama" else make_bpe(vocab, self._file)

    def _plain(self, text: str) -> list[int]:
        # SentencePiece writes a space as that letter, so the letter itself comes back as one.
        raw = (text.replace(SPACE, " ") if self.vocab.kind == "llama" else text).encode()
        ids = self._encoder(text)
        unknown = self.vocab.special.get("unknown")
        if unknown not in ids and b"".join(map(self.token_bytes, ids)) != raw:
            missing = [quoted(c) for c in dict.fromkeys(text) if self._lacks(c)]
            raise ModelError(
                f"its vocabulary cannot write {', '.join(missing) or quoted(text)}",
                where=self._file,
                hint=self._writable(),
            )
        return ids

    def _writable(self) -> str:
        """Return which characters may be used, as advice."""
        known = "those that the model was trained on"
        size = len(self.vocab.tokens)
        if size <= _FEW:
            texts = (self.token_bytes(i).decode(errors="ignore") for i in range(size))
            known = quoted("".join(text for text in texts if len(text) == 1))
        return f"use only the characters {known}"

    def _lacks(self, character: str) -> bool:
        ids = self._encoder(character)
        return b"".join(map(self.token_bytes, ids)) != character.encode()

    @cached_property
    def _special(self) -> dict[str, int]:
        """Tokens that are never merged from smaller ones: control and user-defined."""
        vocab = self.vocab
        pairs = zip(vocab.tokens, vocab.types, strict=True)
        return {t: i for i, (t, kind) in enumerate(pairs) if t and kind in SPECIAL_TYPES}

    @cached_property
    def _found(self) -> tuple[SpecialTokens, SpecialTokens]:
        """What finds user-defined tokens alone, and all special ones."""
        types = self.vocab.types
        user = [t for t, i in self._special.items() if types[i] is TokenType.USER_DEFINED]
        return SpecialTokens(user), SpecialTokens(self._special)

    def _split(
        self, text: str, parse_special: bool, literal: str
    ) -> Iterator[tuple[str, int | None]]:
        """Yield pieces of text, each with its id if it is a special token.

        Of a vocabulary with ``tokenizer.json`` only control tokens are cut out: the library finds
        the others.
        """
        vocab, start, strips = self.vocab, 0, False
        finder = self.control_tokens if vocab.json else self._found[parse_special]
        for first, end in finder.find(text):
            token = self._special[text[first:end]]
            is_literal = bool(literal) and text[first - 1 : first] == literal
            if is_literal and vocab.types[token] in CONTROL_TYPES:
                continue
            part = text[start:first]
            part = part.lstrip() if strips else part
            part = part.rstrip() if token in vocab.lstrip else part
            part = part.replace(literal, "") if literal else part
            if part:
                yield part, None
            yield text[first:end], token
            start, strips = end, token in vocab.rstrip
        part = text[start:].lstrip() if strips else text[start:]
        part = part.replace(literal, "") if literal else part
        if part:
            yield part, None


class TextStream:
    """Decodes ids one at a time, holding bytes back until they form a character."""

    def __init__(self, tokenizer: Tokenizer, *, special: bool, strip_space: bool) -> None:
        """Start an empty text.

        Args:
            tokenizer: Whose ids come.
            special: Whether control tokens show in the text.
            strip_space: Whether the first space of the text belongs to the encoding.
        """
        self._tokenizer = tokenizer
        self._special = special
        self._strip = strip_space
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """Take one id and return the text that is complete now, which may be empty.

        Raises:
            UsageError: the id is not in the vocabulary.
        """
        raw = self._tokenizer.token_bytes(token, special=self._special)
        if self._strip and raw:
            self._strip = False
            raw = raw.removeprefix(b" ")
        return self._decoder.decode(raw)

    def finish(self) -> str:
        """Return what is left: U+FFFD for bytes of an incomplete character."""
        return self._decoder.decode(b"", final=True)
