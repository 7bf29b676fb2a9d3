"""The page in Chromium: drawn, hovered, zoomed; light and dark; from 20 to 20,000 commands."""

import base64
import zlib

import pytest

from ggsched.report.html import write_page
from ggsched.trace.times import timeline_of
from tests.report.chromium import Chromium
from tests.report.plans import large_timeline, pipeline_trace
from tests.trace.test_times import traced_run, two_sim

pytestmark = pytest.mark.browser

READY = "window.ggsched && ggsched.stages.every((s) => s.frames > 0)"
COUNT = """
(() => {
  const kind = CanvasRenderingContext2D.prototype;
  window.counted = {};
  for (const name of ["fillRect", "fillText", "stroke"]) {
    const draw = kind[name];
    kind[name] = function (...args) {
      const key = `${this.canvas.id}.${name}`;
      window.counted[key] = (window.counted[key] || 0) + 1;
      return draw.apply(this, args);
    };
  }
})()
"""


@pytest.fixture(scope="module")
def browser():
    with Chromium() as found:
        yield found


SIZES = ["small", "pipeline", "medium", pytest.param("large", marks=pytest.mark.slow)]
COMMANDS = {"medium": 4_000, "large": 20_000}


@pytest.fixture(scope="module", params=SIZES)
def shown(request, tmp_path_factory):
    """Give the path of a page, and what is on it."""
    path = tmp_path_factory.mktemp("page") / f"{request.param}.html"
    if request.param in COMMANDS:
        made, traced = large_timeline(COMMANDS[request.param])[0], ()
        assert len(made.spans) > 0.9 * COMMANDS[request.param]
    else:
        trace = traced_run(two_sim(), 2)[1] if request.param == "small" else pipeline_trace(8, 8)
        made, traced = timeline_of(trace), trace.plans
    write_page(str(path), made, traced)
    return path, made


def open_page(browser, path, **options):
    browser.messages.clear()
    browser.open(path.as_uri(), **options)
    browser.until(READY)


def pixels(browser, selector):
    """Return how many colours a canvas shows; one means that it is empty."""
    return browser.ask(
        f"(() => {{ const c = document.querySelector('{selector}');"
        "const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
        "const seen = new Set(); for (let i = 0; i < d.length; i += 4)"
        " if (d[i + 3]) seen.add(d[i] * 65536 + d[i + 1] * 256 + d[i + 2]);"
        "return seen.size; })()"
    )


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_is_drawn_without_a_complaint(browser, shown, dark):
    path, made = shown
    open_page(browser, path, dark=dark)
    assert browser.complaints() == []
    for canvas in ("#timeline", "#memory", "#splits"):
        assert pixels(browser, canvas) > 3, canvas
    rows = browser.ask("document.querySelectorAll('#devices tbody tr').length")
    devices = {made.tracks[s.track].device for s in made.spans if s.run >= 0} - {""}
    assert rows == len(devices)
    # Nothing is wider than the window.
    assert browser.ask("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("zoom", [1, 0.5, 0.1, 0.01])
def test_what_is_drawn_depends_on_the_width_and_not_on_the_number_of_commands(browser, shown, zoom):
    open_page(browser, shown[0])
    browser.ask(COUNT)
    browser.ask(f"ggsched.view.fit(), ggsched.view.zoom({zoom}), window.counted = {{}}, 0")
    browser.ask("ggsched.timeline.stage.paint(), ggsched.splits.stage.paint(), 0")
    counted = browser.ask("window.counted")
    rows = browser.ask("ggsched.timeline.rows.length")
    # In each row at most one rectangle for each kind and pixel, or one for each visible span.
    assert 0 < counted["timeline.fillRect"] <= rows * 6 * 1280
    assert counted.get("timeline.fillText", 0) <= 20 * 1280 / 16 * max(1, rows)
    assert counted.get("timeline.stroke", 0) <= 2 * 400 + 200
    assert counted["splits.fillRect"] <= 4 * 1280
    assert counted["splits.stroke"] <= 3200


def center_of(browser, kind):
    """Zoom to the middle span of a kind, and return where it is in the window."""
    span = browser.ask(
        f"(() => {{ const all = [...D.spans.kind.keys()].filter((i) => D.spans.kind[i] === '{kind}'"
        " && D.spans.end[i] > D.spans.start[i] && D.spans.run[i] >= 0);"
        "return all[Math.floor(all.length / 2)] ?? -1; })()"
    )
    if span < 0:
        return None
    browser.ask(
        f"(() => {{ const a = D.spans.start[{span}], b = D.spans.end[{span}];"
        "ggsched.view.show(a - 2 * (b - a), b + 2 * (b - a)); })()"
    )
    browser.ask("new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(r)))")
    x, y = browser.ask(
        f"(() => {{ const t = ggsched.timeline, box = t.stage.canvas.getBoundingClientRect();"
        f"return [box.left + t.stage.x((D.spans.start[{span}] + D.spans.end[{span}]) / 2),"
        f" box.top + t.yOf({span}) + 10]; }})()"
    )
    return span, x, y


@pytest.mark.parametrize("kind", ["launch", "copy", "wait", "sync"])
def test_hover_tells_command_bytes_and_reason(browser, shown, kind):
    path, made = shown
    open_page(browser, path)
    place = center_of(browser, kind)
    if place is None:
        pytest.skip(f"no {kind} takes any time here")
    span, x, y = place
    browser.mouse("mouseMoved", x, y)
    browser.until("!tip.hidden")
    text = browser.ask("tip.innerText")
    expected = made.spans[span]
    assert f"c{expected.command} " in text
    assert "took " in text
    if expected.reason:
        assert expected.reason in text
    if kind == "copy":
        assert f"{expected.src} -> {expected.dst}" in text
    browser.mouse("mouseMoved", 5, 5)
    browser.until("tip.hidden")


def test_click_keeps_details_and_arrows_lead_on(browser, shown):
    open_page(browser, shown[0])
    span, x, y = center_of(browser, "launch")
    for kind in ("mousePressed", "mouseReleased"):
        browser.mouse(kind, x, y, button="left", clickCount=1)
    browser.until(f"ggsched.timeline.selected === {span}")
    assert f"c{shown[1].spans[span].command} " in browser.ask(
        "document.getElementById('details').innerText"
    )
    if browser.ask("document.querySelectorAll('#details button').length"):
        browser.ask("document.querySelector('#details button').click()")
        assert browser.ask("ggsched.timeline.selected") != span


def test_zoom_by_wheel_pan_by_drag_and_keys(browser, shown):
    open_page(browser, shown[0])
    length = "(ggsched.view.to - ggsched.view.from)"
    before = browser.ask(length)
    box = browser.ask(
        "(() => { const b = ggsched.timeline.stage.canvas.getBoundingClientRect();"
        "return [b.left, b.top]; })()"
    )
    x, y = box[0] + 500, box[1] + 40
    browser.mouse("mouseWheel", x, y, deltaX=0, deltaY=-400, modifiers=2)  # with Ctrl
    browser.until(f"{length} < {0.9 * before}")
    start = browser.ask("ggsched.view.from")
    browser.mouse("mousePressed", x, y, button="left", clickCount=1)
    browser.mouse("mouseMoved", x - 120, y, button="left", buttons=1)
    browser.mouse("mouseReleased", x - 120, y, button="left", clickCount=1)
    assert browser.ask("ggsched.view.from") > start
    browser.ask("ggsched.timeline.stage.canvas.focus()")
    browser.call("Input.dispatchKeyEvent", type="keyDown", key="f")
    browser.until(f"Math.abs({length} - (ggsched.view.most - ggsched.view.least)) < 1e-6")


def test_memory_and_splits_answer_to_the_pointer(browser, shown):
    open_page(browser, shown[0], height=2400)
    x, y = browser.ask(
        "(() => { const m = ggsched.memory, b = D.blocks, i = m.ids[0];"
        "const box = m.stage.canvas.getBoundingClientRect();"
        "ggsched.view.show(b.start[i] - 1, 2 * b.end[i] - b.start[i] + 1);"
        "return [box.left + m.stage.x((b.start[i] + b.end[i]) / 2),"
        " box.top + m.y(b.offset[i] + b.bytes[i] / 2)]; })()"
    )
    browser.mouse("mouseMoved", x, y)
    browser.until("!tip.hidden")
    assert " at a" in browser.ask("tip.innerText")
    x, y = browser.ask(
        "(() => { const g = ggsched.splits, box = g.stage.canvas.getBoundingClientRect();"
        "const b = g.box(0); return [box.left + b.x + b.width / 2, box.top + b.y + 20]; })()"
    )
    browser.mouse("mouseMoved", x, y)
    browser.until("!tip.hidden && tip.innerText.startsWith('s0 ')")


def test_it_asks_no_network(browser, shown):
    open_page(browser, shown[0])
    asked = [
        m["params"]["request"]["url"]
        for m in browser.messages
        if m.get("method") == "Network.requestWillBeSent"
    ]
    assert [u for u in asked if not u.startswith(("file:", "about:", "data:"))] == []


def test_a_picture_can_be_taken(browser, shown, tmp_path):
    open_page(browser, shown[0])
    browser.screenshot(tmp_path / "page.png")
    data = (tmp_path / "page.png").read_bytes()
    assert data.startswith(b"\x89PNG")
    assert len(zlib.compress(base64.b64encode(data))) > 10_000
