"""Find ``litmus`` fences in Markdown."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from ggsched.errors import UsageError

Line = tuple[int, str]
Fence = tuple[int, str, list[Line]]
"""(line of the opening fence, what follows ``litmus`` there, lines inside)."""

_OPENING: Final = re.compile(r"\s*(`{3,}|~{3,})\s*([^`]*)$")


def has_fences(lines: Iterable[Line]) -> bool:
    """Whether some line opens a ``litmus`` fence."""
    for _, line in lines:
        match = _OPENING.match(line)
        if match and match[2].split()[:1] == ["litmus"]:
            return True
    return False


def litmus_fences(file: str, lines: Sequence[Line]) -> Iterator[Fence]:
    """Yield the ``litmus`` fences; what stands in other fences is text.

    Raises:
        UsageError: a ``litmus`` fence without an end.
    """
    opened, info, start = "", "", 0
    body: list[Line] = []
    for number, line in lines:
        match = _OPENING.match(line)
        if opened:
            is_end = match and not match[2] and match[1].startswith(opened)
            if not is_end:
                body.append((number, line))
                continue
            if info.split()[:1] == ["litmus"]:
                yield start, info.strip()[len("litmus") :].strip(), body
            opened = ""
        elif match:
            opened, info, start, body = match[1], match[2], number, []
    if opened and info.split()[:1] == ["litmus"]:
        raise UsageError("the fence is not closed", where=f"{file}:{start}", why=info.strip())
