"""Read the litmus notation, from plain files and from ``litmus`` fences in Markdown."""

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from ggsched.errors import UsageError
from ggsched_testing.litmus.markdown import has_fences, litmus_fences
from ggsched_testing.litmus.program import (
    BARE_VERBS,
    CAPTURE_VERBS,
    KINDS,
    SYNC_VERBS,
    LitmusBlock,
    Op,
    Range,
    Variant,
    is_host,
)

Line = tuple[int, str]
"""(number in the file from 1, text)."""

_HEADER: Final = re.compile(r"litmus(?=\s|$)(?!\s*:)")
_NAME: Final = re.compile(r"[A-Za-z_][\w.'-]*")
_VERB: Final = re.compile(r"[\w.+*/'-]+")
_RANGE: Final = re.compile(
    r"([A-Za-z_][\w.'-]*)(?:\[\s*([0-9]{1,15})\s*:\s*([0-9]{1,15})\s*\])?(?:([#?])([^\s#?>;\[\]]+))?"
)
_MARKERS: Final[dict[str, Variant]] = {"-": "broken", "+": "fixed"}


_log = logging.getLogger("ggsched")


def parse_litmus(text: str, file: str = "litmus") -> list[LitmusBlock]:
    """Return all blocks of a file.

    Args:
        text: The file's content. With a ``litmus`` fence in it, it is taken as Markdown.
        file: Its name, for messages.

    Raises:
        UsageError: a block that is malformed, with file and line; or no block at all.
    """
    lines = [(i, line.rstrip("\r")) for i, line in enumerate(text.split("\n"), 1)]
    if file.lower().endswith((".md", ".markdown")) or has_fences(lines):
        blocks = [
            _block(file, number, f"litmus {info}", body)
            for number, info, body in litmus_fences(file, lines)
        ]
    else:
        blocks = _plain(file, lines)
    if not blocks:
        raise UsageError("no litmus block", where=file, hint="a block begins: litmus ID KIND")
    return blocks


def _plain(file: str, lines: Iterable[Line]) -> list[LitmusBlock]:
    found: list[tuple[int, str, list[Line]]] = []
    for number, line in lines:
        text = _bare(line)
        if _HEADER.match(text):
            found.append((number, text, []))
        elif text and not found:
            raise _error(file, number, "an operation before the first header", text)
        elif text:
            found[-1][2].append((number, line))
    return [_block(file, number, header, body) for number, header, body in found]


def _block(file: str, number: int, header: str, body: Sequence[Line]) -> LitmusBlock:
    words = _bare(header).split()
    if len(words) != 3:
        raise _error(file, number, "a header is: litmus ID KIND", header)
    kind = next((k for k in KINDS if k == words[2]), None)
    if kind is None:
        raise _error(file, number, f"kind {words[2]!r} is not one of {', '.join(KINDS)}", header)
    ops = tuple(_op(file, n, line) for n, line in body if _bare(line))
    if not ops:
        raise _error(file, number, f"{words[1]} has no operations", header)
    known = {op.actor for op in ops} | {op.target for op in ops if op.verb == "rec"}
    for op in ops:
        if op.verb in ("wait", "sync") and op.target not in known and op.target[0] != "_":
            text = "%s:%d: nobody records %s, so this wait has no effect: %s"
            _log.warning(text, file, op.line, op.target, op.text)
    return LitmusBlock(words[1], kind, file, number, ops)


def _op(file: str, number: int, line: str) -> Op:
    text = _bare(line)
    only = _MARKERS.get(text[0])
    if only:
        text = text[1:].lstrip()
    actor, colon, rest = text.partition(":")
    actor = actor.rstrip()
    if not colon or not _NAME.fullmatch(actor):
        raise _error(file, number, "an operation is: actor: verb reads > writes", line)
    verb, operands = [*rest.split(maxsplit=1), "", ""][:2]
    operands = operands.rstrip()
    if not _VERB.fullmatch(verb):
        raise _error(file, number, "no verb after the actor", line)
    op = Op(number, " ".join(text.split()), actor, verb, only=only or "")
    if verb in SYNC_VERBS:
        if not _NAME.fullmatch(operands):
            raise _error(file, number, f"{verb} takes one name", line)
        return replace(op, target=operands)
    if verb in BARE_VERBS:
        if operands or (verb in CAPTURE_VERBS and is_host(actor)):
            what = "takes no operands" if operands else "is for queues"
            raise _error(file, number, f"{verb} {what}", line)
        return op
    reads, writes = _operands(file, number, line, operands)
    return replace(op, reads=reads, writes=writes)


def _operands(
    file: str, number: int, line: str, text: str
) -> tuple[tuple[Range, ...], tuple[Range, ...]]:
    sides = text.split(">")
    if len(sides) > 2 or (len(sides) == 2 and not sides[1].strip()):
        raise _error(file, number, "write at most one >, followed by what is written", line)
    reads = _ranges(file, number, line, sides[0], "?")
    return reads, _ranges(file, number, line, sides[1], "#") if len(sides) == 2 else ()


def _ranges(file: str, number: int, line: str, text: str, sign: str) -> tuple[Range, ...]:
    ranges = []
    at = 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        match = _RANGE.match(text, at)
        if match is None or not (match.end() == len(text) or text[match.end()].isspace()):
            raise _error(file, number, f"no range: {text[at:].split()[0]!r}", line)
        name, start, end, mark, tag = match.groups()
        if mark not in (None, sign):
            side = "a read needs content by ?" if sign == "?" else "a write leaves content by #"
            raise _error(file, number, f"{side}: {match[0]!r}", line)
        if start is None:
            ranges.append(Range(name, None, None, tag or ""))
        elif int(start) < int(end):
            ranges.append(Range(name, int(start), int(end), tag or ""))
        else:
            raise _error(file, number, f"an empty range: {match[0]!r}", line)
        at = match.end()
    return tuple(ranges)


def _bare(line: str) -> str:
    """Return a line without comment and outer space."""
    return line.partition(";")[0].strip()


def _error(file: str, number: int, what: str, line: str) -> UsageError:
    return UsageError(what, where=f"{file}:{number}", why=" ".join(line.split())[:60])
