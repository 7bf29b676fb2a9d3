"""Draw the timeline of a page of ``ggsched`` as SVG, for the README.

Usage: ``python docs/images/timeline.py page.html docs/images/timeline.svg``; the README has the
command that makes the page.
"""

import json
import re
import sys
from html import escape
from pathlib import Path
from typing import Any

COLOURS = {"launch": "#3b82c4", "copy": "#d97b29", "upload": "#8a63b8", "download": "#3a9a6a"}
WIDTH, LEFT, ROW, BAR = 960, 120, 34, 20
TICKS = 5


def page_data(text: str) -> dict[str, Any]:
    """Return the data of a page."""
    found = re.search(r'<script[^>]*type="application/json"[^>]*>(.*?)</script>', text, re.DOTALL)
    if found is None:
        raise SystemExit("no page of ggsched")
    data: dict[str, Any] = json.loads(found[1])
    return data


def spans_of(data: dict[str, Any]) -> list[tuple[int, str, float, float, str]]:
    """Return (track, kind, start, end, label) of what takes time on devices."""
    columns = data["spans"]
    rows = zip(*(columns[key] for key in ("track", "kind", "start", "end", "label")), strict=True)
    return [
        (track, kind, start, end, data["texts"][label])
        for track, kind, start, end, label in rows
        if kind in COLOURS and end > start
    ]


def drawing(data: dict[str, Any]) -> str:
    """Return the SVG."""
    spans = spans_of(data)
    used = sorted({track for track, *_ in spans}, key=lambda t: data["tracks"][t]["device"])
    place = {track: i for i, track in enumerate(used)}
    last = max(end for *_, end, _ in spans)
    scale = (WIDTH - LEFT - 10) / last
    height = ROW * len(used) + 60
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    for track, row in place.items():
        names = data["tracks"][track]
        label = escape(f"{names['device']} {names['name']}")
        parts.append(f'<text x="6" y="{row * ROW + 24}">{label}</text>')
    for track, kind, start, end, label in spans:
        x, width = LEFT + start * scale, max(1.0, (end - start) * scale)
        parts.append(
            f'<rect x="{x:.1f}" y="{place[track] * ROW + 10}" width="{width:.1f}" height="{BAR}" '
            f'fill="{COLOURS[kind]}" stroke="white" stroke-width="0.5">'
            f"<title>{escape(label)}</title></rect>"
        )
    base = ROW * len(used) + 24
    for i in range(TICKS + 1):
        x, anchor = LEFT + last * scale * i / TICKS, "middle" if i < TICKS else "end"
        text = f"{last * i / TICKS:.0f} µs"
        parts.append(f'<text x="{x:.0f}" y="{base}" text-anchor="{anchor}">{text}</text>')
    for i, (kind, colour) in enumerate(COLOURS.items()):
        x = LEFT + 110 * i
        parts.append(f'<rect x="{x}" y="{base + 12}" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{x + 18}" y="{base + 22}">{kind}</text>')
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    page, target = map(Path, sys.argv[1:])
    target.write_text(drawing(page_data(page.read_text("utf-8"))), "utf-8")
