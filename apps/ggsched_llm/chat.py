"""Chat templates: what a model wants a conversation to look like, written by its makers in Jinja.

A template comes with the file, so it is not trusted. It runs in Jinja's sandbox, which hides
everything but values and their plain methods, and it may neither loop nor write without bounds. All
that it makes is charged to one account: rounds of loops, calls, characters and elements.
"""

import json
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from traceback import walk_tb
from types import FrameType
from typing import Any, Final, NamedTuple, NoReturn

from jinja2 import TemplateError, nodes, pass_context
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from ggsched.errors import ModelError

TEMPLATE_KEY: Final = "tokenizer.chat_template"
MAX_TEMPLATE: Final = 1 << 18
MAX_OUTPUT: Final = 1 << 22
MAX_STEPS: Final = 100_000
MAX_WORK: Final = 1 << 20
"""Elements, and texts by their characters."""
_CHARACTERS: Final = 256
MAX_INTEGER: Final = 1 << 64
"""Magnitude of integers."""

MAX_SECONDS: Final = 20.0
"""Time for one text; whatever is left uncharged ends there."""

_MAX_INDENT: Final = 16
_MAX_DIGITS: Final = 16
_FILTERS: Final = {
    "abs", "attr", "batch", "capitalize", "count", "d", "default", "dictsort", "e", "escape",
    "first", "float", "format", "indent", "int", "items", "join", "last", "length", "list",
    "lower", "map", "max", "min", "reject", "rejectattr", "replace", "reverse", "round", "safe",
    "select", "selectattr", "sort", "string", "sum", "title", "tojson", "trim", "truncate",
    "unique", "upper",
}  # fmt: skip
_WIDE: Final = re.compile(r"[*]|[0-9]{4}")
_TEXT_METHODS: Final = {
    "capitalize", "count", "endswith", "find", "index", "isalnum", "isalpha", "isdecimal",
    "isdigit", "islower", "isnumeric", "isspace", "istitle", "isupper", "join", "lower", "lstrip",
    "partition", "removeprefix", "removesuffix", "replace", "rfind", "rindex", "rpartition",
    "rsplit", "rstrip", "split", "splitlines", "startswith", "strip", "swapcase", "title", "upper",
}  # fmt: skip
"""Those whose results are no longer than what they are given, and two that are bounded."""


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
    """Counts the rounds of all loops, and charges for what is made.

    Attributes:
        steps: Rounds and calls that are left.
        work: Elements and characters that are left.
        deadline: When its time ends, by ``time.monotonic``.
    """

    intercepted_binops = frozenset({"+", "-", "*", "**", "%"})
    steps = MAX_STEPS
    work = MAX_WORK
    deadline = math.inf

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Refuse powers, and repetitions of anything but numbers; charge for sums of texts."""
        numbers = isinstance(left, int | float) and isinstance(right, int | float)
        if operator == "+":
            return self.charged(left + right)
        if operator == "-":
            return self.charged(left - right)
        if operator == "%" and numbers:
            return left % right
        if operator != "*" or not numbers or abs(left * right) > MAX_STEPS:
            raise _Refused(f"it computes {operator} of what may be large")
        return left * right

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Call a macro or a method, and charge for the result."""
        context, called, *given = args
        self.step()
        text, name = getattr(called, "__self__", None), getattr(called, "__name__", "")
        if isinstance(text, str):
            for value in (text, *given):
                self.charged(value)
            given = _bounded(name, text, given)
        return self.charged(super().call(context, called, *given, **kwargs))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Hide methods that make large values of small ones."""
        if isinstance(obj, str):
            return attr in _TEXT_METHODS
        return not isinstance(obj, int | float | bytes) and super().is_safe_attribute(
            obj, attr, value
        )

    def wrap_str_format(self, value: Any) -> None:
        """Leave ``format`` out too, which can pad."""

    def counted(self, items: Any) -> Any:
        """Yield items, as long as there are steps left."""
        for item in items:
            self.step()
            yield item

    def step(self) -> None:
        """Charge for a round of a loop, or for a call."""
        self.steps -= 1
        if time.monotonic() > self.deadline:
            raise _Refused(f"it takes more than {MAX_SECONDS:g} s")
        if self.steps < 0:
            raise _Refused(f"its loops and calls take more than {MAX_STEPS} rounds")

    def charged(self, value: Any) -> Any:
        """Return a value, with each of its elements charged as often as it would be written."""
        if time.monotonic() > self.deadline:
            raise _Refused(f"it takes more than {MAX_SECONDS:g} s")
        left = [value]
        while left:
            item = left.pop()
            self.work -= 1
            if isinstance(item, str):
                self.work -= len(item) // _CHARACTERS
                if len(item) > MAX_OUTPUT:
                    raise _Refused(f"it writes more than {MAX_OUTPUT} characters")
            elif isinstance(item, int) and abs(item) > MAX_INTEGER:
                raise _Refused(f"it computes integers beyond {MAX_INTEGER}")
            elif isinstance(item, list | tuple):
                left.extend(item)
            elif isinstance(item, dict | Namespace):
                pairs = item if isinstance(item, dict) else item._Namespace__attrs
                left.extend(pairs)
                left.extend(pairs.values())
            if self.work < len(left):
                raise _Refused("it makes too much text, or too many values")
        return value

    def limited(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a filter that is charged for what it is given and for what it returns."""
        first = 1 if hasattr(function, "jinja_pass_arg") else 0

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            for value in args[first:]:
                self.charged(value)
            of, *given = args[first:]
            if name == "join":
                of = list(of)
                _bounded(name, str(given[0] if given else kwargs.get("d", "")), [of])
            elif name == "replace":
                _bounded(name, str(of), [*given, *kwargs.values()])
            elif name == "indent" and _width(*given, **kwargs) > _MAX_INDENT:
                raise _Refused(f"it indents by more than {_MAX_INDENT}")
            elif name == "format" and _WIDE.search(str(of)):
                raise _Refused("it formats with a width of more than 3 digits")
            elif name == "round" and _digits(*given, **kwargs) > _MAX_DIGITS:
                raise _Refused(f"it rounds to more than {_MAX_DIGITS} digits")
            elif name == "batch":
                of = list(of)
                return self.charged(_batches(of, *given, **kwargs))
            elif name == "sum" and not isinstance(kwargs.get("start", 0), int | float):
                raise _Refused("it adds up what are no numbers")
            return self.charged(function(*args[:first], of, *given, **kwargs))

        return call


def _batches(items: list[Any], linecount: int, fill_with: Any = None) -> list[list[Any]]:
    """Return lists of ``linecount`` items each, the last one filled up if a filler is given."""
    if not 0 < linecount <= MAX_STEPS:
        raise _Refused(f"it makes batches of {linecount}")
    found = [items[i : i + linecount] for i in range(0, len(items), linecount)]
    if found and fill_with is not None:
        found[-1] = found[-1] + [fill_with] * (linecount - len(found[-1]))
    return found


def _digits(precision: Any = 0, *_args: Any, **_kwargs: Any) -> int:
    return abs(int(precision))


def _width(width: Any = 4, *_args: Any, **_kwargs: Any) -> int:
    return len(width) if isinstance(width, str) else int(width)


def _bounded(name: str, text: str, given: list[Any]) -> list[Any]:
    """Return the arguments of a method of a text, unless the result would be too long."""
    if name == "join" and given:
        given = [list(given[0])]
        grown = len(text) * len(given[0])
    elif name == "replace" and len(given) > 1:
        grown = text.count(str(given[0])) * len(str(given[1]))
    else:
        grown = 0
    if grown > MAX_OUTPUT:
        raise _Refused(f"it writes more than {MAX_OUTPUT} characters")
    return given


class _Charges(NodeTransformer):
    """Lets each loop of a template count its rounds, and all that makes values charge for them."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        """Count rounds."""
        self.generic_visit(node)
        node.iter = _filtered(node.iter, "counted")
        return node

    def visit_Output(self, node: nodes.Output) -> nodes.Node:
        """Charge for what is written, also into a variable."""
        self.generic_visit(node)
        node.nodes = [_filtered(child, "charged") for child in node.nodes]
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        """Charge for the parts, which become texts, and for the whole."""
        self.generic_visit(node)
        node.nodes = [_filtered(child, "charged") for child in node.nodes]
        return _filtered(node, "charged")

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        """Charge for what is compared, and for what is searched."""
        self.generic_visit(node)
        node.expr = _filtered(node.expr, "charged")
        for operand in node.ops:
            operand.expr = _filtered(operand.expr, "charged")
        return node

    def visit_List(self, node: nodes.List | nodes.Dict) -> nodes.Node:
        """Charge for elements."""
        self.generic_visit(node)
        return _filtered(node, "charged")

    visit_Dict = visit_List

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        """Charge for elements, where it is not a target of an assignment."""
        self.generic_visit(node)
        return _filtered(node, "charged") if node.ctx == "load" else node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        """Charge for slices, which are copies."""
        self.generic_visit(node)
        return _filtered(node, "charged") if isinstance(node.arg, nodes.Slice) else node


def _filtered(node: nodes.Node, name: str) -> nodes.Filter:
    assert isinstance(node, nodes.Expr)
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


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
        environment = self._environment
        known = {**environment.filters, "tojson": _to_json}
        environment.filters = {name: environment.limited(name, known[name]) for name in _FILTERS}
        # What depends on the context is not computed in advance.
        for method in (environment.counted, environment.charged):
            environment.filters[method.__name__] = pass_context(_with_context(method))
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
            tree = _Charges().visit(environment.parse(source))
            self._template = environment.from_string(tree)
        except Exception as error:  # also what Python says of the code that Jinja makes
            raise self._error(str(error)) from error

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """Return the text of a conversation.

        Args:
            messages: The turns so far.
            add_generation_prompt: Whether the text ends with the beginning of an answer.

        Raises:
            ModelError: the template fails, or refuses the conversation.
        """
        self._environment.steps, self._environment.work = MAX_STEPS, MAX_WORK
        self._environment.deadline = time.monotonic() + MAX_SECONDS
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
        except Exception as error:  # whatever its expressions raise
            why = f"{_line_of(error)} computes what its values do not allow: {error}"
            raise self._error(why) from error
        return "".join(out)

    def _error(self, why: str) -> ModelError:
        return ModelError(
            "the chat template cannot be used",
            where=f"{self._file}: key {TEMPLATE_KEY}",
            why=" ".join(why.split())[:200],
            hint="give a finished prompt as -p instead of a conversation",
        )


def _line_of(error: Exception) -> str:
    """Return the line of the template where an error was raised; Jinja puts it in the traceback."""
    at = [line for frame, line in walk_tb(error.__traceback__) if _is_template(frame)]
    return f"line {at[-1]}" if at else "an expression of it"


def _is_template(frame: FrameType) -> bool:
    return frame.f_code.co_filename == "<template>"


def _with_context(method: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda _context, value: method(value)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON; the arguments are those of transformers."""
    if indent is not None and indent > _MAX_INDENT:
        raise _Refused(f"it indents by more than {_MAX_INDENT}")
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
