"""Writes the list of supported ops into a page: ``python -m ggsched_import.onnx.page FILE``."""

import sys
from pathlib import Path

from ggsched.files.reading import read_text
from ggsched_import.onnx import walk
from ggsched_import.onnx.call import CONVERTERS

START, END = "<!-- ops -->", "<!-- end -->"


def filled(text: str) -> str:
    """Return the page with the present list."""
    names = sorted({*CONVERTERS, *walk.CONTROL})
    before, _, rest = text.partition(START)
    after = rest.partition(END)[2]
    listed = ", ".join(f"`{name}`" for name in names)
    return f"{before}{START}\n{listed}\n{END}{after}"


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(filled(read_text(page)), encoding="utf-8")
