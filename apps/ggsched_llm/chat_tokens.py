"""Tokens of conversations: control tokens come from the template, not from what somebody wrote."""

import logging
from collections.abc import Sequence
from typing import Final

from ggsched.errors import UsageError
from ggsched_llm.chat import ChatTemplate, Message
from ggsched_llm.tokenizer import Tokenizer

_log = logging.getLogger("ggsched")

# Code points that Unicode reserves for programs, so that no text has them.
_MARKS: Final = tuple(map(chr, range(0xFDD0, 0xFDF0)))


def conversation_ids(
    template: ChatTemplate,
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    *,
    parse_special: bool = False,
) -> list[int]:
    """Return the tokens of a conversation that ends with the beginning of an answer.

    Templates mostly write bos themselves; it is not put in front of them again. If the text begins
    with two all the same, the first question is answered with a warning.

    Args:
        template: Of the model.
        tokenizer: Of the model.
        messages: The turns so far.
        parse_special: Whether control tokens written in a message count as such; if not, they are
            plain text. Those of the template always count.

    Raises:
        ModelError: the template or the tokenizer cannot be used.
        UsageError: a message is not valid Unicode text.
    """
    mark = "" if parse_special else _unused(messages)
    marked = [Message(m.role, _marked(tokenizer, m.content, mark)) for m in messages]
    text = template.render(marked)
    vocab = tokenizer.vocab
    bos = vocab.tokens[vocab.special["bos"]] if "bos" in vocab.special else ""
    starts = bool(bos) and text.startswith(bos)
    ids = tokenizer.encode(text, bos=False if starts else None, literal=mark)
    is_first = all(message.role != "assistant" for message in messages)
    if starts and is_first and ids[:2] == 2 * [vocab.special["bos"]]:
        _log.warning("the conversation begins with two bos: its template or first message adds one")
    return ids


def _unused(messages: Sequence[Message]) -> str:
    """Return a character that no message has."""
    text = "".join(message.content for message in messages)
    for mark in _MARKS:
        if mark not in text:
            return mark
    why = "it has all 32 of the code points U+FDD0 to U+FDEF, which are no characters"
    raise UsageError("the conversation is not text", why=why)


def _marked(tokenizer: Tokenizer, text: str, mark: str) -> str:
    """Return a text with a mark in front of each control token, see ``Tokenizer.encode``."""
    if not mark:
        return text
    out, at = "", 0
    for first, end in tokenizer.control_tokens.find(text):
        out += text[at:first] + mark + text[first:end]
        at = end
    return out + text[at:]
