"""One self-contained page: data, style and scripts are in it, and it loads nothing."""

import json
from collections.abc import Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import Final

from ggsched.errors import UsageError
from ggsched.files.reading import package_text
from ggsched.report.data import page_data
from ggsched.trace.schema import TracedPlan
from ggsched.trace.timeline import Timeline

SCRIPTS: Final = (
    "format.js",
    "axis.js",
    "view.js",
    "timeline.js",
    "timeline_draw.js",
    "memory.js",
    "splits.js",
    "tables.js",
    "summary.js",
    "main.js",
)


def page(timeline: Timeline, traced: Sequence[TracedPlan] = ()) -> str:
    """Return a timeline as an HTML page that stands alone.

    Args:
        timeline: What happened, or what is expected to.
        traced: What is expected of the timeline's plans, shown beside what happened.
    """
    own = partial(package_text, "ggsched.report")
    data = json.dumps(page_data(timeline, traced), ensure_ascii=False, separators=(",", ":"))
    parts = {
        "title": escape(timeline.name),
        "style": own("page/style.css"),
        "data": data.replace("<", "\\u003c"),  # so that no text of it can end the element
        "script": "\n".join(own(f"page/{name}") for name in SCRIPTS),
    }
    text = own("page/page.html")
    pieces = text.split("@@")
    # Odd pieces are names; what stands for one of them is not looked at again.
    return "".join(parts[p] if i % 2 else p for i, p in enumerate(pieces))


def write_page(path: str, timeline: Timeline, traced: Sequence[TracedPlan] = ()) -> None:
    """Write the page to a file.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        Path(path).write_text(page(timeline, traced), encoding="utf-8")
    except OSError as error:
        why = error.strerror or str(error)
        raise UsageError("cannot write the page", where=path, why=why) from error
