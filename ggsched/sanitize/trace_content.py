"""Contents in a trace: does each read find what it needs?

The records are followed in the order of the calls, which is one of the orders that are possible.
Where nothing races all possible orders leave the same contents, so one of them is enough.
"""

from typing import Final, NamedTuple

from ggsched.sanitize.content_map import ContentMap
from ggsched.sanitize.report import Finding
from ggsched.trace.schema import Access, Alloc, Trace, Work

UNDEFINED: Final = -1
UNKNOWN: Final = -2


class _Content(NamedTuple):
    """Content of some bytes: its tag, and the record that wrote it.

    ``writer`` is ``UNDEFINED`` where nothing has written, ``UNKNOWN`` where the trace began later.
    """

    tag: str
    writer: int


def find_wrong_content(trace: Trace) -> list[Finding]:
    """Return reads of undefined bytes, and reads of other content than they need."""
    maps: dict[int, ContentMap[_Content]] = {}
    names: dict[int, str] = {}
    findings: list[Finding] = []
    for i, entry in enumerate(trace.entries):
        if isinstance(entry, Alloc):
            start = _Content("", UNKNOWN if entry.is_defined else UNDEFINED)
            maps[entry.memory], names[entry.memory] = ContentMap(start), entry.name
        elif isinstance(entry, Work):
            for access in entry.reads:
                if access.memory in maps:
                    finding = _check(i, entry, access, maps[access.memory], names[access.memory])
                    findings += [finding] if finding else []
            for memory, first, last, tag in entry.writes:
                if memory in maps and first < last:
                    maps[memory].give(first, last, _Content(tag, i))
    return findings


def _check(
    i: int, work: Work, access: Access, content: ContentMap[_Content], name: str
) -> Finding | None:
    for (tag, writer), start, end in content.pieces(access.start, access.end):
        where = f"{name}[{start}:{end}]"
        if writer == UNDEFINED and not tag:
            what = f"#{i} {work.label} reads {where}, which nothing has written"
            return Finding("undefined", what, i, "write it before", access.memory, start, end)
        if access.tag and tag != access.tag:
            what = f"#{i} {work.label} needs {access.tag!r} in {where}, {_there(tag, writer)}"
            fix = f"let {access.tag!r} be there before #{i}"
            if writer >= 0:
                fix += f", and #{writer} write elsewhere or later"
            return Finding("content", what, i, fix, access.memory, start, end)
    return None


def _there(tag: str, writer: int) -> str:
    if writer < 0:
        return "which nothing has written"
    return f"but finds {tag!r} of #{writer}" if tag else f"but finds what #{writer} has written"
