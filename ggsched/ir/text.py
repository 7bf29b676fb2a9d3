r"""Graphs as text, one tensor or node a line, and back.

    graph "two layers"
    t0 = input f32[4, 64] "x"
    t1 = weight q8_0[32, 64] "w"
    t2 = temp f32[4, 32] "up"
    n0 t2 = mul_mat(t1, t0) "up"
    t3 = view t2 f32[2, 32] strides=(128, 4) offset=256 "up"
    t4 = temp f32[2, 32]
    n1 t4 = rms_norm(t3; eps=1e-06)
    outputs t4

Ids are dense and ascending; a line only names what stands above it. Roots are contiguous, so
strides and offset (in bytes) are written for views alone. Parameters at their default are left
out. In quoted strings ``\"`` and ``\\`` stand for themselves and ``\u{a}`` for a code point;
every string survives. Empty lines and lines that start with ``#`` are skipped.
"""

import re
from typing import Final

from ggsched.collector import collector_paused
from ggsched.errors import GraphError
from ggsched.ids import show
from ggsched.ir.dtype import dtype_by_name
from ggsched.ir.graph import Graph, Node, verify_graph
from ggsched.ir.ops import Param, access_modes, op_by_name
from ggsched.ir.params import canonical_params, check_arity
from ggsched.ir.tensor import MAX_AXES, Role, Tensor, contiguous_strides, span_nbytes

MAX_TEXT: Final = 1 << 26  # characters; time and memory are linear in them
_MAX_DIGITS: Final = 40
_MAX_TOKENS: Final = 1 << 16  # per line: 32,767 outputs
_HINT: Final = 'as in: n0 t2 = mul_mat(t1, t0) "label"'

_TOKEN: Final = re.compile(
    r"""[ \t]*(?:
        (?P<string>"(?:[^"\\]|\\.)*")
      | (?P<number>[+-]?(?:[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|inf\b))
      | (?P<word>[A-Za-z_][A-Za-z0-9_]*(?:\.[a-z][a-z0-9_]*)?)
      | (?P<mark>[=(),;\[\]])
    )""",
    re.VERBOSE | re.ASCII,
)
_ESCAPE: Final = re.compile(r"\\(?:u\{([0-9a-f]{1,6})\}|(.?))", re.ASCII)
_ID: Final = re.compile(r"[tn](0|[1-9][0-9]{0,8})", re.ASCII)


def print_graph(graph: Graph) -> str:
    """Return the text of a verified graph; ``parse_graph`` gives an equal graph back.

    Examples:
        >>> from ggsched import GraphBuilder
        >>> from ggsched.ir import parse_graph, print_graph
        >>> g = GraphBuilder("small")
        >>> text = print_graph(g.build(g.silu(g.input("x", (4, 64)))))
        >>> parse_graph(text).nodes[0].op
        'silu'
    """
    lines = [f"graph {quote(graph.name)}"]
    shown = 0
    for node in graph.nodes:
        needed = max(node.tensors) + 1
        lines += [_tensor_line(t) for t in graph.tensors[shown:needed]]
        shown = max(shown, needed)
        lines.append(_node_line(node))
    lines += [_tensor_line(t) for t in graph.tensors[shown:]]
    lines.append("outputs " + ", ".join(show("tensor", t) for t in graph.outputs))
    return "\n".join(line.rstrip() for line in lines) + "\n"


def quote(text: str) -> str:
    """Return a string in quotes, on one line, printable."""
    return '"' + "".join(_escaped(c) for c in text) + '"'


def _escaped(char: str) -> str:
    if char in '"\\':
        return "\\" + char
    return char if char.isprintable() else f"\\u{{{ord(char):x}}}"


def _tensor_line(t: Tensor) -> str:
    shape = ", ".join(map(str, t.shape))
    head, tail = t.role.value, ""
    if t.is_view:
        head = f"view {show('tensor', t.storage)}"
        tail = f" strides=({', '.join(map(str, t.strides))}) offset={t.offset}"
    name = f" {quote(t.name)}" if t.name else ""
    return f"{show('tensor', t.id)} = {head} {t.dtype}[{shape}]{tail}{name}"


def _node_line(n: Node) -> str:
    operands = ", ".join(show("tensor", t) for t in n.inputs)
    params = ", ".join(f"{key}={_param(value)}" for key, value in n.params.items())
    name = f" {quote(n.name)}" if n.name else ""
    call = f"{n.op}({operands}{'; ' if params else ''}{params})"
    return f"{show('node', n.id)} {show('tensor', n.output)} = {call}{name}"


def _param(value: Param) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return quote(value)
        case tuple():
            return f"({', '.join(map(str, value))})"
        case _:
            return repr(value)


@collector_paused()
def parse_graph(text: str) -> Graph:
    """Read a graph from its text form and verify it.

    Args:
        text: What ``print_graph`` returned, or text of that form.

    Raises:
        GraphError: the text does not parse (``where`` names the line), or ``verify_graph``
            refuses the graph.

    Examples:
        >>> from ggsched import GraphBuilder
        >>> from ggsched.ir import parse_graph, print_graph
        >>> g = GraphBuilder("small")
        >>> graph = g.build(g.silu(g.input("x", (4, 64))))
        >>> parse_graph(print_graph(graph)) == graph
        True
    """
    if len(text) > MAX_TEXT:
        raise GraphError(f"a text of {len(text)} characters", hint=f"at most {MAX_TEXT}")
    reader = _Reader()
    for number, line in enumerate(text.split("\n"), 1):
        line = line.strip(" \t\r")
        if not line or line.startswith("#"):
            continue
        try:
            reader.line(_Line(line))
        except GraphError as error:
            raise GraphError(
                f"{error.where}: {error.what}" if error.where else error.what,
                where=f"line {number}",
                why=error.why,
                hint=error.hint or _HINT,
            ) from None
    if reader.name is None or reader.outputs is None:
        missing = "graph" if reader.name is None else "outputs"
        raise GraphError(f"there is no line {missing!r}", where="text", hint=_HINT)
    graph = Graph(reader.name, tuple(reader.tensors), tuple(reader.nodes), reader.outputs)
    verify_graph(graph)
    return graph


class _Line:
    """The tokens of one line, taken from the left."""

    def __init__(self, line: str) -> None:
        self.tokens: list[tuple[str, str]] = []
        self.at = 0
        position = 0
        while position < len(line):
            match = _TOKEN.match(line, position)
            if match is None:
                raise GraphError(f"cannot read {line[position : position + 20]!r}")
            self.tokens.append((str(match.lastgroup), match[str(match.lastgroup)]))
            position = match.end()
            if len(self.tokens) > _MAX_TOKENS:
                raise GraphError(f"more than {_MAX_TOKENS} words in one line")

    @property
    def next(self) -> tuple[str, str]:
        return self.tokens[self.at] if self.at < len(self.tokens) else ("end", "the end of line")

    def take(self, kind: str, text: str = "") -> str:
        """Take a token of a kind, and of a text if one is given."""
        found, value = self.next
        if found != kind or (text and value != text):
            raise GraphError(f"expected {text or kind}, found {value[:40]}")
        self.at += 1
        return value

    def takes(self, kind: str, text: str = "") -> bool:
        """Take such a token if it comes next."""
        found, value = self.next
        if found != kind or (text and value != text):
            return False
        self.at += 1
        return True

    def key(self, name: str) -> None:
        """Take ``name=``."""
        self.take("word", name)
        self.take("mark", "=")

    def end(self) -> None:
        if self.at < len(self.tokens):
            raise GraphError(f"expected the end of line, found {self.next[1][:40]}")

    def string(self) -> str:
        return _ESCAPE.sub(_unescaped, self.take("string")[1:-1])

    def label(self) -> str:
        """Take the optional string that ends a line."""
        text = self.string() if self.next[0] == "string" else ""
        self.end()
        return text

    def id(self, letter: str) -> int:
        word = self.take("word")
        if word[0] != letter or not _ID.fullmatch(word):
            raise GraphError(f"expected an id like {letter}12, found {word[:40]}")
        return int(word[1:])

    def value(self) -> int | float:
        number = self.take("number")
        if len(number) > _MAX_DIGITS:
            raise GraphError(f"the number {number[:20]}... is too long")
        plain = number.lstrip("+-")
        return int(number) if plain.isdigit() else float(number)

    def integer(self) -> int:
        value = self.value()
        if isinstance(value, float):
            raise GraphError(f"expected an integer, found {value!r}")
        return value

    def integers(self, last: str) -> tuple[int, ...]:
        """Take integers with commas between them, and the closing mark."""
        out: list[int] = []
        if self.takes("mark", last):
            return ()
        while True:
            out.append(self.integer())
            if self.takes("mark", last):
                return tuple(out)
            self.take("mark", ",")

    def ids(self) -> list[int]:
        """Take tensor ids with commas between them, perhaps none."""
        out: list[int] = []
        while self.next[0] == "word":
            out.append(self.id("t"))
            if not self.takes("mark", ","):
                break
        return out

    def param(self) -> Param:
        if self.next[0] == "string":
            return self.string()
        if self.takes("mark", "("):
            return self.integers(")")
        if self.next in (("word", "true"), ("word", "false")):
            return self.take("word") == "true"
        return self.value()


def _unescaped(match: re.Match[str]) -> str:
    if match[1] is not None and int(match[1], 16) <= 0x10FFFF:
        return chr(int(match[1], 16))
    if match[2] in ('"', "\\"):
        return str(match[2])
    raise GraphError(
        f"unknown escape {match[0]!r}", hint='write \\" or \\\\ or a code point as in \\u{a}'
    )


class _Reader:
    """Collects what the lines say."""

    def __init__(self) -> None:
        self.name: str | None = None
        self.tensors: list[Tensor] = []
        self.nodes: list[Node] = []
        self.outputs: tuple[int, ...] | None = None

    def line(self, line: _Line) -> None:
        if self.outputs is not None:
            raise GraphError("the line of outputs must be the last")
        if self.name is None:
            line.take("word", "graph")
            self.name = line.string()
            line.end()
        elif line.takes("word", "outputs"):
            ids = line.ids()
            line.end()
            self.outputs = tuple(self._tensor(i).id for i in ids)
        elif line.next[1].startswith("n"):
            self._read_node(line)
        else:
            self._read_tensor(line)

    def _tensor(self, number: int) -> Tensor:
        if number >= len(self.tensors):
            raise GraphError(f"{show('tensor', number)} is not defined above")
        return self.tensors[number]

    def _read_tensor(self, line: _Line) -> None:
        number = line.id("t")
        if number != len(self.tensors):
            raise GraphError(f"the next tensor must be {show('tensor', len(self.tensors))}")
        line.take("mark", "=")
        kind = line.take("word")
        roles = {role.value: role for role in Role}
        if kind != "view" and kind not in roles:
            raise GraphError(f"unknown kind {kind[:40]!r}", hint=f"view, {', '.join(roles)}")
        root = self._tensor(line.id("t")) if kind == "view" else None
        dtype = dtype_by_name(line.take("word")[:40])
        line.take("mark", "[")
        shape = line.integers("]")
        if len(shape) > MAX_AXES:
            raise GraphError(f"{len(shape)} axes", hint=f"a tensor has at most {MAX_AXES}")
        offset, storage, role = 0, number, roles.get(kind)
        if root is None:
            strides = contiguous_strides(dtype, shape)
        else:
            storage, role = root.id, root.role
            line.key("strides")
            line.take("mark", "(")
            strides = line.integers(")")
            line.key("offset")
            offset = line.integer()
        nbytes = span_nbytes(dtype, shape, strides)
        name = line.label()
        assert role is not None  # one of the two branches has set it
        self.tensors.append(
            Tensor(number, name, dtype, shape, strides, storage, offset, nbytes, role)
        )

    def _read_node(self, line: _Line) -> None:
        number = line.id("n")
        if number != len(self.nodes):
            raise GraphError(f"the next node must be {show('node', len(self.nodes))}")
        result = self._tensor(line.id("t"))
        line.take("mark", "=")
        op = op_by_name(line.take("word")[:40])
        line.take("mark", "(")
        operands = [self._tensor(i) for i in line.ids()]
        given: dict[str, Param] = {}
        if line.takes("mark", ";"):
            while True:
                key = line.take("word")[:40]
                line.take("mark", "=")
                if key in given:
                    raise GraphError(f"parameter {key} is given twice")
                given[key] = line.param()
                if not line.takes("mark", ","):
                    break
        line.take("mark", ")")
        name = line.label()
        params = canonical_params(op, given)
        check_arity(op, params, len(operands))
        modes = access_modes(op, operands, result, params)
        ids = tuple(t.id for t in operands)
        self.nodes.append(Node(number, op.name, ids, result.id, params, name, modes))
