"""The calls of a library as a program in C, which shows a fault of it without ggsched.

Calls are written to a file before they are made, so that the file has the one that ends the
process. ``program`` keeps those on which the last one depends. What a library looks like, the
harness of its backend says (``CLibrary``).
"""

import ctypes
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, TextIO

from ggsched.files.reading import contents

_SHOW: Final = 'for (size_t i = 0; i < sizeof {0}; i++) printf("%02x ", {0}[i]); printf("\\n");'


class CLibrary(Protocol):
    """A library in C as the harness of a backend describes it.

    Attributes:
        functions: What has the functions as attributes, which are replaced during a record.
        signatures: Result and arguments of each, a letter each: ``v`` nothing, ``p`` pointer, ``z``
            ``q`` ``i`` ``b`` integers, ``f`` float, ``s`` text, another one as ``literal`` says.
        reads: Functions that read host memory: places of its address and of its length.
        writes: The same for functions that write host memory, and place of the object that
            ``synchronize`` is called with.
        synchronize: Function that waits until host memory is written.
        bases: Functions whose result is an address to which others are relative.
        shared: Functions that make objects of which many unrelated calls are made.
        makers: Functions that make something and have an effect as well.
        frees: Functions that release something.
        prologue: The beginning of a program, up to the first call.
    """

    functions: Any
    signatures: Mapping[str, str]
    reads: Mapping[str, tuple[int, int]]
    writes: Mapping[str, tuple[int, int, int]]
    synchronize: str
    bases: tuple[str, ...]
    shared: tuple[str, ...]
    makers: tuple[str, ...]
    frees: tuple[str, ...]
    prologue: str

    def literal(self, code: str, value: Any) -> str:
        """Return an argument of another type in C."""

    def statement(self, name: str, args: list[str]) -> str | None:
        """Return what is written in place of a call, or None for the call."""


@contextmanager
def recorded(library: CLibrary, path: Path) -> Iterator[None]:
    """Write the calls of a library to a file, as lines of JSON."""
    # Whoever holds the lock may collect garbage, which releases objects of the library.
    lock, functions = threading.RLock(), library.functions
    plain = {n: getattr(functions, n) for n in library.signatures if hasattr(functions, n)}
    with path.open("w", encoding="ascii") as file:
        for name, function in plain.items():
            place = library.reads.get(name)
            setattr(functions, name, _recording(name, function, place, file, lock))
        try:
            yield
        finally:
            for name, function in plain.items():
                setattr(functions, name, function)


def _recording(
    name: str,
    function: Callable[..., Any],
    place: tuple[int, int] | None,
    file: TextIO,
    lock: "threading.RLock",
) -> Callable[..., Any]:
    def note(*entry: Any) -> None:
        line = json.dumps(entry) + "\n"
        with lock:
            if not file.closed:  # else what is freed after the case
                file.write(line)
                file.flush()

    def call(*args: Any) -> Any:
        data = "" if place is None else ctypes.string_at(args[place[0]], args[place[1]]).hex()
        note(name, threading.get_ident(), [_plain(a) for a in args], data)
        result = function(*args)
        note("=", threading.get_ident(), result if isinstance(result, int) else 0, "")
        return result

    return call


def _plain(value: Any) -> Any:
    if isinstance(value, ctypes.Structure):
        return [getattr(value, entry[0]) for entry in value._fields_]
    return value.decode() if isinstance(value, bytes) else value


@dataclass(slots=True)
class _Statement:
    """A call as text, with the variables that it makes and uses."""

    name: str
    lines: list[str]
    made: str
    used: set[str] = field(default_factory=set)


def program(library: CLibrary, calls: Path, title: str) -> str:
    """Return the program in C that makes the last of the recorded calls, and what it needs.

    Args:
        calls: The file that ``recorded`` wrote.
        title: What it shows.
    """
    kept = _needed(library, list(_statements(library, calls)))
    lines = [f"    {line}" for statement in kept for line in statement.lines]
    return "\n".join([f"// {' '.join(title.split())}", library.prologue, *lines, "}", ""])


def _needed(library: CLibrary, statements: list[_Statement]) -> list[_Statement]:
    """Return the last call and those before it on whose objects it depends."""
    ends = statements and statements[-1].name not in library.frees  # it has ended the process
    last = [i for i, s in enumerate(statements) if s.name in library.writes]
    goal = len(statements) - 1 if ends or not last else last[-1]
    shared = {s.made for s in statements if s.name in library.shared}
    kept, used, before = {goal}, set(statements[goal].used), -1
    while len(kept) > before:
        before = len(kept)
        for i, statement in enumerate(statements[:goal]):
            is_effect = not statement.made or statement.name in library.makers
            is_effect &= statement.name not in (*library.frees, *library.writes)
            touches = bool((statement.used - shared) & used)
            if i not in kept and (statement.made in used or (is_effect and touches)):
                kept.add(i)
                used |= statement.used | ({statement.made} - {""})
    return [statements[i] for i in sorted(kept)]


def _statements(library: CLibrary, calls: Path) -> Iterator[_Statement]:
    """Yield what was called; a call that did not return comes last."""
    names: dict[int, str] = {}
    bases: dict[int, str] = {}
    waiting: dict[int, _Statement] = {}
    for count, line in enumerate(contents(calls).decode("ascii").splitlines()):
        name, thread, args, data = json.loads(line)
        if name != "=":
            waiting[thread] = _statement(library, count, (name, args, data), names, bases)
            continue
        made = waiting.pop(thread)
        if library.signatures[made.name][0] == "p" and args:
            names[args] = made.made
            bases |= {args: made.made} if made.name in library.bases else {}
        else:
            made.made = ""
        yield made
    yield from waiting.values()


def _statement(
    library: CLibrary,
    count: int,
    call: tuple[str, list[Any], str],
    names: Mapping[int, str],
    bases: Mapping[int, str],
) -> _Statement:
    name, args, data = call
    signature = library.signatures[name]
    texts, made = [], _Statement(name, [], f"p{count}" if signature[0] == "p" else "")
    for code, value in zip(signature[1:], args, strict=True):
        text = _literal(library, code, value)
        if code == "p" and value:
            base = max((b for b in bases if b <= value), default=0)
            variable = names.get(value) or bases.get(base, "NULL")
            made.used |= {variable} - {"NULL"}
            is_inside = base and value not in names
            text = f"(char *) {variable} + {value - base}" if is_inside else variable
        texts.append(text)
    if name in library.reads:
        content = ", ".join(f"0x{data[i : i + 2]}" for i in range(0, len(data), 2))
        made.lines.append(f"static _Alignas(64) unsigned char d{count}[] = {{{content}}};")
        texts[library.reads[name][0]] = f"d{count}"
    if name in library.writes:
        address, length, waited = library.writes[name]
        made.lines.append(f"static unsigned char g{count}[{args[length]}];")
        texts[address] = f"g{count}"
    text = library.statement(name, texts) or f"{name}({', '.join(texts)});"
    made.lines.append(f"void * {made.made} = {text}" if made.made else text)
    if name in library.writes:
        made.lines += [f"{library.synchronize}({texts[waited]});", _SHOW.format(f"g{count}")]
    return made


def _literal(library: CLibrary, code: str, value: Any) -> str:
    if code == "s":
        return "NULL" if value is None else json.dumps(value)
    if code == "f":
        text = repr(float(value))
        return {"inf": "INFINITY", "-inf": "-INFINITY", "nan": "NAN"}.get(text, f"{text}f")
    if code == "p":
        return "NULL"
    return str(int(value)) if code in "zqib" else library.literal(code, value)
