"""``ggsched run --chat``: a conversation in a terminal, or with the lines of a pipe."""

import errno
import json
import sys
from collections.abc import Callable
from contextlib import nullcontext, redirect_stdout, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from ggsched.cli.console import leave_line_open, messages, write_line
from ggsched.cli.interruption import Stopping
from ggsched.cli.output_files import output_file
from ggsched.errors import ModelError, UsageError
from ggsched.files.reading import read_text_argument
from ggsched.printable import is_terminal, results, write_out
from ggsched_llm.chat import ChatTemplate, Message
from ggsched_llm.chat_tokens import conversation_ids
from ggsched_llm.generation import tokens_at_most
from ggsched_llm.stop_text import StopText

if TYPE_CHECKING:
    from ggsched_llm.sampling import Sampling
    from ggsched_llm.session import Session

_MAX_LINE: Final = 1 << 20
"""Characters of a question, more than contexts hold."""
_HINT: Final = "Ctrl-C stops an answer, and ends at the prompt; /help lists commands."
_HELP: Final = """\
/clear      forget the conversation
/regen      answer the last question again
/save FILE  write the conversation, as JSON
/load FILE  go on with a conversation that was written
/exit       end
A line that ends with a backslash goes on with the next one."""
_ROLES: Final = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True)
class Talk:
    """What a conversation begins with.

    Attributes:
        system: The system message, or "".
        first: The first question; None to read it.
        n_predict: Tokens of an answer at most, see ``tokens_at_most``.
        sampling: How they are chosen.
        stops: Strings that end an answer.
        is_single: Whether the first answer ends it.
        parse_special: Whether control tokens written in a message count as such.
    """

    system: str
    first: str | None
    n_predict: int
    sampling: "Sampling"
    stops: tuple[str, ...]
    is_single: bool = False
    parse_special: bool = False


def converse(session: "Session", talk: Talk, before_text: Callable[[], None]) -> None:
    """Answer question after question, until the input ends.

    Args:
        session: Where the answers come from.
        talk: What the conversation begins with.
        before_text: Called before anything is written or read on the terminal.

    Raises:
        ModelError: the file has no chat template, or it cannot be used.
        UsageError: stdin cannot be read; or, off a terminal, the conversation does not fit the
            context, or a command of it fails.
        KeyboardInterrupt: Ctrl-C at the prompt, or twice during an answer.
    """
    conversation = _Conversation(session, talk, before_text)
    if _is_typed():
        messages().print(_HINT)
    if talk.first is not None:
        conversation.ask(talk.first)
    while not (talk.is_single and conversation.answers):
        before_text()
        line = _question()
        if line is None or line == "/exit":
            break
        try:
            conversation.take(line)
        except (UsageError, ModelError) as error:
            if not _is_typed():
                raise
            write_line(f"ggsched: error: {error.one_line()}")


class _Conversation:
    """Turns, and the tokens of them that the session has.

    Attributes:
        answers: How many were given.
    """

    def __init__(self, session: "Session", talk: Talk, before_text: Callable[[], None]) -> None:
        self._session, self._talk, self._before_text = session, talk, before_text
        self._template: ChatTemplate = session.model.chat_template()
        self._fed: list[int] = []
        self.answers = 0
        self._turns: list[Message] = []
        self._clear()

    def take(self, line: str) -> None:
        """Answer a question, or do what a command says.

        Raises:
            UsageError: the conversation does not fit the context, or the command fails.
        """
        name, _, rest = line.partition(" ")
        match name:
            case _ if not line.startswith("/"):
                self.ask(line.strip())
            case "/clear":
                self._clear()
                messages().print("The conversation is forgotten.")
            case "/regen":
                self._again()
            case "/save":
                self._save(rest.strip())
            case "/load":
                self._load(rest.strip())
            case "/help":
                messages().print(_HELP)
            case _:
                hint = "/help lists commands; a question may begin with a space"
                raise UsageError(f"there is no command {name!r}", where="--chat", hint=hint)

    def ask(self, question: str) -> None:
        """Answer a question.

        Raises:
            UsageError: the conversation does not fit the context.
        """
        if question:
            self._answer_last([*self._turns, Message("user", question)])

    def _answer_last(self, turns: list[Message]) -> None:
        ids, fed = self._ids(turns), self._fed
        kept = len(fed) if len(fed) < len(ids) and ids[: len(fed)] == fed else 0
        if not kept:
            self._session.reset()
        self._fed = []  # nothing is known of the cache if generation fails
        with Stopping() if _is_typed() else nullcontext() as stopping:
            answer, generated = self._answer(ids, kept, stopping)
        self._fed = [*ids, *generated][: self._session.n_past]
        self._turns = [*turns, Message("assistant", answer)]
        self.answers += 1

    def _clear(self) -> None:
        self._turns = [Message("system", self._talk.system)] if self._talk.system else []

    def _again(self) -> None:
        if not self._turns or self._turns[-1].role != "assistant":
            raise UsageError("there is no answer yet", where="/regen")
        self._answer_last(self._turns[:-1])

    def _save(self, path: str) -> None:
        turns = [turn._asdict() for turn in self._turns]
        with output_file(_named(path, "/save"), "the conversation") as file:
            file.write(json.dumps(turns, indent=1, ensure_ascii=False).encode() + b"\n")
        messages().print(f"{len(turns)} messages are in {path}.")

    def _load(self, path: str) -> None:
        try:
            text = read_text_argument(_named(path, "/load"))
            turns = [Message(**turn) for turn in json.loads(text)]
            is_right = all(t.role in _ROLES and isinstance(t.content, str) for t in turns)
        except (ValueError, TypeError, RecursionError):
            is_right = False
        if not is_right:
            hint = "a conversation is a list of objects with role and content, as /save writes it"
            raise UsageError("it is not a conversation", where=path, hint=hint)
        self._turns = turns

    def _ids(self, turns: list[Message]) -> list[int]:
        """Return the tokens of a conversation."""
        session, parse_special = self._session, self._talk.parse_special
        tokenizer, n_ctx = session.model.tokenizer, session.options.n_ctx
        ids = conversation_ids(self._template, tokenizer, turns, parse_special=parse_special)
        if len(ids) >= n_ctx:
            raise UsageError(
                f"the conversation has {len(ids)} tokens",
                why=f"the context holds {n_ctx}",
                hint="use a larger -c, or start again",
            )
        return ids

    def _answer(
        self, ids: list[int], kept: int, stopping: Stopping | None
    ) -> tuple[str, list[int]]:
        """Write an answer as it comes; return it with its tokens."""
        session, talk = self._session, self._talk
        tokenizer = session.model.tokenizer
        decoder, cut = tokenizer.stream(), StopText(talk.stops)
        written: list[str] = []
        generated: list[int] = []

        def write(text: str) -> None:
            self._before_text()
            written.append(text)
            write_out(text)
            results().flush()
            leave_line_open(not text.endswith("\n"))

        sampling = replace(talk.sampling, seed=talk.sampling.seed + self.answers)
        most = tokens_at_most(talk.n_predict, len(ids), session.options.n_ctx)
        for token in session.generate(ids[kept:], most, sampling, stop=tokenizer.stop_ids):
            generated.append(token)
            write(cut.push(decoder.push(token)))
            if cut.is_done or (stopping is not None and stopping.is_asked):
                break
        if not cut.is_done:
            write(cut.push(decoder.finish()) + cut.finish())
        write_out("\n")
        results().flush()
        leave_line_open(False)
        return "".join(written), generated


def _named(path: str, command: str) -> str:
    if not path:
        raise UsageError("name a file", where=command, hint=f"{command} FILE")
    return path


def _is_typed() -> bool:
    return is_terminal(sys.stdin)


def _question() -> str | None:
    """Return the next question, without backslashes at the ends of its lines; None at the end."""
    lines: list[str] = []
    while (line := _line("> " if not lines else "| ")) and line.rstrip("\r\n").endswith("\\"):
        lines.append(line.rstrip("\r\n")[:-1])
        if sum(map(len, lines)) > _MAX_LINE:
            break
    if not line and not lines:
        return None
    text = "\n".join([*lines, line.rstrip("\r\n")])
    if len(text) >= _MAX_LINE:
        raise UsageError("the question is too long", where="-", why=f"{_MAX_LINE} characters")
    return text


def _line(prompt: str) -> str:
    """Return the next line of stdin, or "" at its end; in a terminal with readline's history."""
    try:
        if sys.stdin is None:
            raise OSError(errno.EBADF, "stdin is closed")
        if not _is_typed():
            return sys.stdin.readline(_MAX_LINE)
        return _typed(prompt) + "\n"
    except EOFError:
        messages().print()
        return ""
    except KeyboardInterrupt:
        messages().print()
        raise
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise UsageError("cannot read the question", where="-", why=why) from error


def _typed(prompt: str) -> str:
    """Return a line that is typed.

    Raises:
        EOFError: Ctrl-D.
    """
    with suppress(ImportError):  # not every Python has it
        import readline  # noqa: F401  # used by input(), where it writes on descriptor 1
    if not is_terminal(sys.stderr):
        messages().print(prompt, end="")
        prompt = ""
    with open(1, "w", closefd=False) as screen, redirect_stdout(screen):
        return input(prompt)
