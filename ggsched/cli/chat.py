"""``ggsched run --chat``: a conversation in a terminal, or with the lines of a pipe."""

import errno
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from ggsched.cli.console import messages
from ggsched.errors import UsageError
from ggsched.models.chat import Message
from ggsched.models.chat_tokens import conversation_ids
from ggsched.models.stop_text import StopText
from ggsched.printable import results, write_out

if TYPE_CHECKING:
    from ggsched.models.sampling import Sampling
    from ggsched.models.session import Session

_MAX_LINE: Final = 1 << 20
"""Characters of a question, more than contexts hold."""


@dataclass(frozen=True, slots=True)
class Talk:
    """What a conversation begins with.

    Attributes:
        system: The system message, or "".
        first: The first question; None to read it.
        n_predict: Tokens of an answer at most.
        sampling: How they are chosen.
        stops: Strings that end an answer.
        parse_special: Whether control tokens written in a message count as such.
    """

    system: str
    first: str | None
    n_predict: int
    sampling: "Sampling"
    stops: tuple[str, ...]
    parse_special: bool = False


def converse(session: "Session", talk: Talk, before_text: Callable[[], None]) -> None:
    """Answer question after question, until the input ends.

    Args:
        session: Where the answers come from.
        talk: What the conversation begins with.
        before_text: Called before anything is written or read on the terminal.

    Raises:
        ModelError: the file has no chat template, or it cannot be used.
        UsageError: the conversation does not fit the context, or stdin cannot be read.
    """
    template = session.model.chat_template()
    turns = [Message("system", talk.system)] if talk.system else []
    fed: list[int] = []
    for i, question in enumerate(_questions(talk.first, before_text)):
        turns.append(Message("user", question))
        tokenizer = session.model.tokenizer
        ids = conversation_ids(template, tokenizer, turns, parse_special=talk.parse_special)
        if len(ids) >= session.options.n_ctx:
            raise UsageError(
                f"the conversation has {len(ids)} tokens",
                why=f"the context holds {session.options.n_ctx}",
                hint="use a larger -c, or start again",
            )
        kept = len(fed) if ids[: len(fed)] == fed and len(fed) < len(ids) else 0
        if not kept:
            session.reset()
        answer, generated = _answer(session, ids[kept:], talk, i, before_text)
        fed = [*ids, *generated][: session.n_past]
        turns.append(Message("assistant", answer))


def _answer(
    session: "Session", ids: list[int], talk: Talk, turn: int, before_text: Callable[[], None]
) -> tuple[str, list[int]]:
    """Write an answer as it comes; return it with its tokens."""
    tokenizer = session.model.tokenizer
    decoder, cut = tokenizer.stream(), StopText(talk.stops)
    written: list[str] = []
    generated: list[int] = []

    def write(text: str) -> None:
        before_text()
        written.append(text)
        write_out(text)
        results().flush()

    sampling = replace(talk.sampling, seed=talk.sampling.seed + turn)
    for token in session.generate(ids, talk.n_predict, sampling, stop=tokenizer.stop_ids):
        generated.append(token)
        write(cut.push(decoder.push(token)))
        if cut.is_done:
            break
    if not cut.is_done:
        write(cut.push(decoder.finish()) + cut.finish())
    write_out("\n")
    results().flush()
    return "".join(written), generated


def _questions(first: str | None, before_text: Callable[[], None]) -> Iterator[str]:
    """Yield the first question and the lines of stdin that are not empty."""
    if first is not None:
        yield first
    before_text()
    while line := _line():
        if line.strip():
            yield line.strip()


def _line() -> str:
    """Return the next line of stdin, or "" at its end."""
    try:
        if sys.stdin is None:
            raise OSError(errno.EBADF, "stdin is closed")
        if sys.stdin.isatty():
            messages().print("> ", end="")
        line = sys.stdin.readline(_MAX_LINE)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise UsageError("cannot read the question", where="-", why=why) from error
    if len(line) == _MAX_LINE:
        raise UsageError("the question is too long", where="-", why=f"{_MAX_LINE} characters")
    return line
