"""Reads PTX: what of a kernel can be reached before it waits, and where addresses come from."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

WAIT = "griddepcontrol.wait"
COPY = "cp.async"
BULK = "cp.async.bulk"
ENDS = ("ret", "exit", "trap")
OWN = ("param", "shared", "local", "const")
"""Spaces that are not memory of the device; without a space an address may be anywhere."""

_ENTRY = re.compile(r"\.entry (\w+)\s*\([^)]*\)[^{]*")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_LABEL = re.compile(r"^([$\w]+):\s*(.*)$", re.DOTALL)
_GUARD = re.compile(r"^@!?(%?[\w$]+)\s+(.*)$", re.DOTALL)
_ACCESS = re.compile(r"^(ld|ldu|st|atom|red|prefetch|prefetchu|cp|discard|applypriority)\b")
_REGISTER = re.compile(r"%[a-z]+\d+")
_PARAMETER = re.compile(r"\w+_param_(\d+)")
_WRITES_NOTHING = ("st.", "red.", "cp.", "bra", "bar.", "mbarrier.", "prefetch", "fence", "ret")


@dataclass
class Statement:
    """An instruction; a guard is the predicate under which it runs."""

    text: str
    guard: str = ""

    @property
    def op(self) -> str:
        return re.split(r"[\s;]", self.text, maxsplit=1)[0]

    @property
    def is_access(self) -> bool:
        """Whether it may read or write memory of the device."""
        if not _ACCESS.match(self.op):
            return False
        if self.op.startswith("cp.async"):
            return not self.op.startswith(("cp.async.wait", "cp.async.commit"))
        return not any(f".{space}" in self.op for space in OWN)


@dataclass
class Block:
    """Statements in a row, of which only the last may jump."""

    statements: list[Statement] = field(default_factory=list)
    after: list[int] = field(default_factory=list)


def kernels_of(ptx: str) -> dict[str, str]:
    """Return the text of each kernel by name, without comments."""
    text = _COMMENT.sub("", ptx)
    found = {}
    for match in _ENTRY.finditer(text):
        depth = 0
        for brace in re.finditer("[{}]", text[match.end() :]):
            depth += 1 if brace[0] == "{" else -1
            if depth == 0:
                found[match[1]] = text[match.start() : match.end() + brace.end()]
                break
    return found


def blocks_of(kernel: str) -> list[Block]:
    """Return the blocks of a kernel, the entry first, with what each may go on to.

    Raises:
        ValueError: a jump whose targets the text does not say, a call, or a label twice.
    """
    blocks, labels, jumps = [Block()], {}, []
    for label, statement in _statements(kernel):
        if label:
            if label in labels:
                raise ValueError(f"two labels {label}")
            if blocks[-1].statements or jumps:
                blocks.append(Block())
            labels[label] = len(blocks) - 1
        if statement is None:
            continue
        blocks[-1].statements.append(statement)
        op = statement.op.split(".")[0]
        if op in ("brx", "call"):
            raise ValueError(f"{statement.text!r}: nobody knows where it goes")
        if op in ("bra", *ENDS):
            jumps.append((len(blocks) - 1, statement))
            blocks.append(Block())
    for i, block in enumerate(blocks[:-1]):
        last = block.statements[-1] if block.statements else None
        if last is None or last.guard or last.op.split(".")[0] not in ("bra", *ENDS):
            block.after.append(i + 1)
    for i, statement in jumps:
        if statement.op.startswith("bra"):
            blocks[i].after.append(labels[statement.text.split()[-1]])
    return blocks


def before_wait(kernel: str) -> list[Statement]:
    """Return the statements that some path reaches from the entry without having waited.

    A wait under a guard is none, since it may not happen.
    """
    blocks, found = blocks_of(kernel), []
    seen, left = {0}, [0]
    while left:
        block = blocks[left.pop()]
        for statement in block.statements:
            if statement.op.startswith(WAIT) and not statement.guard:
                break
            found.append(statement)
        else:
            left += [i for i in block.after if i not in seen]
            seen.update(block.after)
    return found


def parameters_behind(kernel: str) -> dict[str, set[str]]:
    """Return for each register what it is computed from: numbers of parameters, or ``memory``.

    Whatever way the kernel takes: all that is ever written to a register counts.
    """
    made: dict[str, set[str]] = {}
    uses: list[tuple[list[str], list[str]]] = []
    for _, statement in _statements(kernel):
        if statement is None or statement.op.startswith(_WRITES_NOTHING):
            continue
        head, _, rest = statement.text.partition(" ")
        to, froms = _operands(rest)
        if head.startswith("ld.param"):
            number = _PARAMETER.search(rest)
            for register in to:
                made.setdefault(register, set()).add(number[1] if number else "memory")
        elif _ACCESS.match(head):
            for register in to:
                made.setdefault(register, set()).add("memory")
        else:
            uses.append((to, froms))
    changes = True
    while changes:
        changes = False
        for to, froms in uses:
            sources = set().union(*(made.get(register, set()) for register in froms))
            for register in to:
                old = made.setdefault(register, set())
                changes |= not sources <= old
                old |= sources
    return made


def address_of(statement: Statement) -> list[str]:
    """Return the registers of the address that an access reads, or writes if it reads none."""
    places = re.findall(r"\[([^\]]*)\]", statement.text)
    return _REGISTER.findall(places[1 if statement.op.startswith(COPY) else 0])


def _operands(rest: str) -> tuple[list[str], list[str]]:
    """Return the registers that an instruction writes and reads: the first operand, and others."""
    match = re.match(r"\s*(\{[^}]*\}|[^,]*)(.*)$", rest, re.DOTALL)
    assert match
    return _REGISTER.findall(match[1]), _REGISTER.findall(match[2])


def _statements(kernel: str) -> Iterator[tuple[str, Statement | None]]:
    """Yield labels and instructions in order, each label with what follows it, or alone."""
    body = kernel[kernel.index("{") + 1 : kernel.rindex("}")]
    # Braces around instructions open scopes of names, those in an operand hold registers.
    body = re.sub(r"(^|;|:)(\s*[{}])+", lambda m: (m[1] or "") + "\n", body)
    for piece in body.split(";"):
        text = " ".join(piece.split()).lstrip("{} ")
        label = ""
        while match := _LABEL.match(text):
            if label:
                yield label, None
            label, text = match[1], match[2].lstrip("{} ")
        if not text or text.startswith("."):
            if label:
                yield label, None
            continue
        guard = _GUARD.match(text)
        yield label, Statement(guard[2], guard[1]) if guard else Statement(text)
