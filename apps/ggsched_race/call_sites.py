"""Where in the program a call stands: stacks of Python frames, each distinct one once."""

import ast
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Sequence
from itertools import islice
from linecache import getline
from operator import is_
from types import CodeType, FrameType
from typing import Final, NamedTuple

_DEPTHS: Final = range(48)
_OWN: Final = os.path.dirname(__file__)
_LIBRARIES: Final = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")})
_NAME: Final = re.compile(r"[A-Za-z_][\w.\[\]\"']*")
_MAX_LINES: Final = 40
"""Of a statement that is read for a name."""
_CONTAINERS: Final = (
    *(ast.Tuple, ast.List, ast.Set, ast.Dict),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
)


class Frame(NamedTuple):
    """A line that was being executed; a file below the current folder by its path from there."""

    file: str
    line: int
    function: str

    @property
    def is_library(self) -> bool:
        """Whether the file is of an installed library, or of none."""
        return self.file.startswith((*_LIBRARIES, "<", _OWN)) or "site-packages" in self.file

    def to_text(self) -> str:
        """Return e.g. ``train.py:12 in step``."""
        return f"{self.file}:{self.line} in {self.function}"


Stack = tuple[Frame, ...]
"""The innermost call first."""
Place = tuple[int | None, int | None, int | None, int | None]
"""First and last line, first and last column in bytes, of an expression; None is unknown."""


class CallSites:
    """Numbers for stacks.

    Args:
        added: Called with the number, the stack, and the place of the call in its innermost line
            when these are new.

    Attributes:
        outside: The stack of calls that Python does not see: threads of the engine that runs
            backward passes have none.
    """

    def __init__(self, added: Callable[[int, Stack, Place], None]) -> None:
        self._added = added
        self.outside: int | None = None
        self._known: dict[tuple[int, ...], list[tuple[list[CodeType], int]]] = {}
        self._stacks: dict[tuple[Stack, Place], int] = {}

    def here(self, first: FrameType | None = None) -> int:
        """Return the number of the calling stack, without the frames of this package.

        Args:
            first: Its innermost frame, if that is known.
        """
        first = first or sys._getframe(1)
        while first is not None and first.f_code.co_filename.startswith(_OWN):
            first = first.f_back
        if first is None and self.outside is not None:
            return self.outside
        codes: list[CodeType] = []
        lasts: list[int] = []
        for _ in _DEPTHS:
            if first is None:
                break
            codes.append(first.f_code)
            lasts.append(first.f_lasti)
            first = first.f_back
        # To compare code by identity takes less than its hash, or a number for each; and equal code
        # may be of different files.
        found = self._known.setdefault(tuple(lasts), [])
        for known, number in found:
            if len(known) == len(codes) and all(map(is_, known, codes)):
                return number
        stack, new = _stack(codes, lasts), len(self._stacks)
        number = self._stacks.setdefault(stack, new)
        found.append((codes, number))
        if number == new:
            self._added(number, *stack)
        return number


def _stack(codes: Sequence[CodeType], lasts: Sequence[int]) -> tuple[Stack, Place]:
    """Return the program's frames, those of libraries if there are no others, and the place."""
    here, frames = os.getcwd() + os.sep, []
    for code, last in zip(codes, lasts, strict=True):
        line = next((n for a, b, n in code.co_lines() if a <= last < b and n), code.co_firstlineno)
        place: Place = next(islice(code.co_positions(), last // 2, None), (None,) * 4)
        frames.append((Frame(code.co_filename, line, code.co_qualname), place))
    own = [found for found in frames if not found[0].is_library] or frames
    stack = tuple(frame._replace(file=frame.file.removeprefix(here)) for frame, _ in own)
    return stack, own[0][1] if own else (None,) * 4


def assigned_name(stack: Stack, place: Place = (None,) * 4) -> str:
    """Return the name that the program's innermost line assigns to, or "".

    A line that may make several objects names none: it has several statements, a container as its
    value, or two calls of the same function. A temporary within the line has no name.

    Args:
        place: Of the call; without it each call of the line counts as the one that is assigned.
    """
    if not stack or stack[0].is_library:
        return ""
    source = ""
    for line in range(stack[0].line, stack[0].line + _MAX_LINES):
        source += getline(stack[0].file, line)
        try:
            body = ast.parse(source.lstrip()).body
        except (SyntaxError, ValueError):  # the statement goes on, or is a compound one
            continue
        shift = len(source) - len(source.lstrip())
        first, last, start, end = place
        if first is not None and last is not None and start is not None and end is not None:
            first, last = first - stack[0].line + 1, last - stack[0].line + 1
            place = first, last, start - shift * (first == 1), end - shift * (last == 1)
        return _target(body, source.lstrip(), place)
    return ""


def _target(body: Sequence[ast.stmt], source: str, place: Place) -> str:
    match body:
        case [ast.Assign(targets=[target, *_], value=value)]:
            pass
        case [ast.AnnAssign(target=target, value=ast.expr() as value)]:
            pass
        case _:
            return ""
    called = [ast.dump(node.func) for node in ast.walk(value) if isinstance(node, ast.Call)]
    name = ast.get_source_segment(source, target) or ""
    whole = (value.lineno, value.end_lineno, value.col_offset, value.end_col_offset)
    if None not in place and place != whole:
        return ""
    is_one = not isinstance(value, _CONTAINERS) and len(set(called)) == len(called)
    return name if is_one and _NAME.fullmatch(name) else ""
