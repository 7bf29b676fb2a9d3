"""How fluent the page is: keys that zoom and pan, of 200 and of 20,000 commands, in Chromium.

A key counts until the second frame behind it is shown, so nothing is below two frames (33.3 ms).
"""

from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory

from benchmarks.measure import ratio
from benchmarks.table import Row
from ggsched.report.html import write_page
from tests.report.chromium import NAMES, Chromium
from tests.report.plans import large_timeline

FEW, MANY, ROUNDS = 200, 20_000, 8
PRESS = """(async () => {
  const at = performance.now(), canvas = document.querySelector("#timeline");
  canvas.dispatchEvent(new KeyboardEvent("keydown", { key: "%s", bubbles: true }));
  await new Promise((shown) => requestAnimationFrame(() => requestAnimationFrame(shown)));
  return performance.now() - at;
})()"""


def run() -> list[Row]:
    """Measure with the browser of the distribution; without one there is nothing to measure."""
    if not any(map(which, NAMES)):
        return []
    few, many = ([ms for key in "wasd" for ms in _keys(n, key)] for n in (FEW, MANY))
    what = f"a key, {MANY} commands / {FEW}"
    rows = [Row("page", what, *ratio(many, few))]
    middle = sorted(many)[len(many) // 2]
    return [
        *rows,
        Row("page", f"a key, {MANY} commands", middle, min(many), max(many), "ms", "<= 50"),
    ]


def _keys(commands: int, key: str) -> list[float]:
    """Return the milliseconds of each press."""
    with TemporaryDirectory() as folder, Chromium() as browser:
        path = Path(folder) / "page.html"
        write_page(str(path), large_timeline(commands)[0], ())
        browser.open(path.as_uri(), height=1600)
        browser.until("window.ggsched && ggsched.stages.every((s) => s.frames > 0)")
        return [browser.ask(PRESS % key) for _ in range(ROUNDS + 1)][1:]
