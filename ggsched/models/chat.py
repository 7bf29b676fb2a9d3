"""Chat templates: what a model wants a conversation to look like, written by its makers in Jinja.

A template comes with the file, so it is not trusted. It runs in Jinja's sandbox, which hides
everything but values and their plain methods, and it may neither loop nor write without bounds.
"""

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ggsched.errors import ModelError

TEMPLATE_KEY: Final = "tokenizer.chat_template"
MAX_TEMPLATE: Final = 1 << 18
MAX_OUTPUT: Final = 1 << 22
MAX_STEPS: Final = 100_000


class Message(NamedTuple):
    """One turn of a conversation.

    Attributes:
        role: ``system``, ``user`` or ``assistant``.
        content: Its text.
    """

    role: str
    content: str


class _Refused(Exception):
    """A template requests more than it gets, or refuses a conversation itself."""


class _Environment(ImmutableSandboxedEnvironment):
    """Counts the rounds of all loops, and the size of products of strings.

    Attributes:
        steps: Rounds that are left.
    """

    intercepted_binops = frozenset({"*", "**", "%"})
    steps = MAX_STEPS

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Refuse powers, and repetitions of anything but numbers."""
        numbers = isinstance(left, int | float) and isinstance(right, int | float)
        if operator == "%" and numbers:
            return left % right
        if operator != "*" or not numbers or abs(left * right) > MAX_STEPS:
            raise _Refused(f"it computes {operator} of what may be large")
        return left * right

    def counted(self, items: Any) -> Any:
        """Yield items, as long as there are steps left."""
        for item in items:
            self.steps -= 1
            if self.steps < 0:
                raise _Refused(f"its loops take more than {MAX_STEPS} rounds")
            yield item


def _count_loops(tree: nodes.Template) -> None:
    """Let each loop of a template count its rounds."""
    for loop in tree.find_all(nodes.For):
        loop.iter = nodes.Filter(loop.iter, "counted", [], [], None, None, lineno=loop.lineno)


def _raise(message: object) -> NoReturn:
    raise _Refused(str(message))


class ChatTemplate:
    """Turns conversations into text."""

    def __init__(self, source: str, special: Mapping[str, str], file: str) -> None:
        """Compile a template.

        Args:
            source: Jinja.
            special: Text of ``bos_token`` and ``eos_token``.
            file: Name of the model file, for messages.

        Raises:
            ModelError: it is not a template.
        """
        self._file = file
        self._special = dict(special)
        self._environment = _Environment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
        )
        self._environment.filters.pop("center")
        self._environment.filters |= {"counted": self._environment.counted, "tojson": _to_json}
        self._environment.globals = {
            "raise_exception": _raise,
            "strftime_now": time.strftime,
            "namespace": self._environment.globals["namespace"],
            "range": self._environment.globals["range"],
            "dict": dict,
        }
        if len(source) > MAX_TEMPLATE:
            raise self._error(f"it has {len(source)} characters, {MAX_TEMPLATE} are allowed")
        try:
            tree = self._environment.parse(source)
            _count_loops(tree)
            self._template = self._environment.from_string(tree)
        except (TemplateError, RecursionError) as error:
            raise self._error(str(error)) from error

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """Return the text of a conversation.

        Args:
            messages: The turns so far.
            add_generation_prompt: Whether the text ends with the beginning of an answer.

        Raises:
            ModelError: the template fails, or refuses the conversation.
        """
        self._environment.steps = MAX_STEPS
        plain = [message._asdict() for message in messages]
        out: list[str] = []
        size = 0
        try:
            pieces = self._template.generate(
                messages=plain,
                add_generation_prompt=add_generation_prompt,
                tools=None,
                **self._special,
            )
            for piece in pieces:
                size += len(piece)
                if size > MAX_OUTPUT:
                    raise _Refused(f"it writes more than {MAX_OUTPUT} characters")
                out.append(piece)
        except _Refused as error:
            raise self._error(str(error)) from error
        except (TemplateError, RecursionError, ArithmeticError, MemoryError) as error:
            raise self._error(str(error) or "out of memory") from error
        except (TypeError, ValueError, KeyError, AttributeError, IndexError) as error:
            raise self._error(f"{type(error).__name__}: {error}") from error
        return "".join(out)

    def _error(self, why: str) -> ModelError:
        return ModelError(
            "the chat template cannot be used",
            where=f"{self._file}: key {TEMPLATE_KEY}",
            why=" ".join(why.split())[:200],
            hint="give a finished prompt as -p instead of a conversation",
        )


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)
