"""Rows for the spans of a track: those in one row follow each other or lie in each other."""

from collections.abc import Sequence

from ggsched.trace.timeline import Span


def rows(spans: Sequence[Span]) -> dict[int, int]:
    """Return the row of each span by id: 0 unless spans cross each other, the lowest that is free.

    Streams that do not keep copies and launches in order (STR-1) need a second row.
    """
    ends: list[list[float]] = []
    placed: dict[int, int] = {}
    for span in sorted(spans, key=lambda s: (s.start_s, -s.end_s, s.id)):
        row = next((i for i, open_ends in enumerate(ends) if _fits(span, open_ends)), len(ends))
        if row == len(ends):
            ends.append([])
        ends[row].append(span.end_s)
        placed[span.id] = row
    return placed


def _fits(span: Span, open_ends: list[float]) -> bool:
    """Whether a span lies in those that are open in a row; those that are over are closed."""
    while open_ends and open_ends[-1] <= span.start_s:
        open_ends.pop()
    return not open_ends or span.end_s <= open_ends[-1]
