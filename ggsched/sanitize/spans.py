"""Sets of bytes as sorted lists of spans that do not touch each other."""

from collections.abc import Iterable, Sequence

from ggsched.sanitize.events import Span


def merge(spans: Iterable[Span]) -> list[Span]:
    """Return the same bytes as sorted spans that do not touch each other."""
    ordered = sorted(spans)
    if len({span[0] for span in ordered}) == len(ordered):
        return [span for span in ordered if span[2] > span[1]]
    merged: list[Span] = []
    current, begin, until = -1, 0, 0
    for span in ordered:
        space, start, end = span
        if merged and space == current and start <= until:
            if end > until:
                until = end
                merged[-1] = (space, begin, end)
        elif end > start:
            merged.append(span)
            current, begin, until = span
    return merged


def subtract(spans: Sequence[Span], holes: Sequence[Span]) -> list[Span]:
    """Return the bytes of ``spans`` that are not in ``holes``; both merged."""
    if not {span[0] for span in holes}.intersection([span[0] for span in spans]):
        return list(spans)
    left: list[Span] = []
    k = 0
    for space, start, end in spans:
        at = start
        while k < len(holes) and (holes[k][0], holes[k][2]) <= (space, at):
            k += 1
        j = k
        while j < len(holes) and holes[j][0] == space and holes[j][1] < end:
            if holes[j][1] > at:
                left.append((space, at, holes[j][1]))
            at = max(at, holes[j][2])
            j += 1
        if at < end:
            left.append((space, at, end))
    return left
