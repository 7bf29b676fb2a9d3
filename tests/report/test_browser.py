"""The page in Chromium: drawn, hovered, zoomed; light and dark; from 20 to 20,000 commands."""

import base64
import zlib

import msgspec
import pytest

from ggsched.report.html import write_page
from ggsched.trace.timeline import TimedRun
from ggsched.trace.times import timeline_of
from tests.report.chromium import Chromium
from tests.report.plans import large_timeline, pipeline_trace, runs_of
from tests.test_units import RATES, SIZES, TIMES
from tests.trace.test_times import traced_run, two_sim
from tests.trace.timelines import launch, sync, timeline

pytestmark = pytest.mark.browser

READY = "window.ggsched && ggsched.stages.every((s) => s.frames > 0)"
COUNT = """
(() => {
  const kind = CanvasRenderingContext2D.prototype;
  window.counted = {};
  for (const name of ["fillRect", "fillText", "stroke", "drawImage"]) {
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


PAGES = ["small", "pipeline", "medium", pytest.param("large", marks=pytest.mark.slow)]
COMMANDS = {"medium": 4_000, "large": 20_000}


@pytest.fixture(scope="module", params=PAGES)
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
    browser.open(path.as_uri(), **{"height": 1600} | options)
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
    browser.ask("ggsched.stages.forEach((s) => s.paint()), 0")
    counted = browser.ask("window.counted")
    rows = browser.ask("ggsched.timeline.rows.length")
    # Each row is one picture, or at most a rectangle for every third pixel with its nodes.
    drawn = counted.get("timeline.fillRect", 0) + counted.get("timeline.drawImage", 0)
    assert 0 < drawn <= rows * 2 * 1280
    assert counted.get("memory.fillRect", 0) <= 20
    assert counted.get("timeline.fillText", 0) <= 20 * 1280 / 16 * max(1, rows)
    assert counted.get("timeline.stroke", 0) <= 100
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
    open_page(browser, shown[0], height=4000)
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


RUNS = [(0, 12.0, 12.5), (0, 12.6, 12.604), (0, 12.604, 12.607), (0, 12.607, 12.612)]


@pytest.fixture(scope="module")
def stepped(tmp_path_factory):
    """Give the path of a page of four runs behind 12 s of compilation; the third is the fastest."""
    made = runs_of(*RUNS, before=[(0.0, 0.001)])
    plan = pipeline_trace(2, 2).plans[0].plan
    path = tmp_path_factory.mktemp("page") / "stepped.html"
    write_page(str(path), msgspec.structs.replace(made, plans=(plan,)))
    return path


def shown_run(browser):
    """Return the runs that are wholly in view, and what is said of the run."""
    runs = browser.ask(
        "D.runs.map((_, i) => i).filter((i) => P.runStart[i] >= ggsched.view.from"
        " && P.runEnd[i] <= ggsched.view.to)"
    )
    return runs, browser.ask("document.getElementById('run').innerText")


def press(browser, key):
    browser.call("Input.dispatchKeyEvent", type="keyDown", key=key)
    browser.call("Input.dispatchKeyEvent", type="keyUp", key=key)


def test_it_opens_on_the_fastest_run_and_steps_from_run_to_run(browser, stepped):
    open_page(browser, stepped)
    assert shown_run(browser) == ([2], "run 2 of 0 to 3: 3 ms, fastest of plan 0")
    assert "3 ms" in browser.ask("document.getElementById('summary').innerText")
    for key, run, took in [("]", 3, "5 ms"), ("]", 3, "5 ms"), ("[", 2, "3 ms"), ("[", 1, "4 ms")]:
        press(browser, key)
        runs, text = shown_run(browser)
        assert runs == [run]
        assert text.startswith(f"run {run} of 0 to 3: {took}")
    browser.ask("document.querySelector('button[title^=next]').click()")
    assert shown_run(browser)[0] == [2]


def test_compilation_is_folded_and_named(browser, stepped):
    open_page(browser, stepped)
    press(browser, "f")
    browser.ask("ggsched.timeline.stage.canvas.focus()")
    press(browser, "f")
    length = browser.ask("ggsched.view.to - ggsched.view.from")
    assert length < 1e6  # of 12.6 s
    assert "12 s (plan 0 is made" in browser.ask("document.getElementById('folded').innerText")
    inverse = "[0, 1e6, 12e6, 12.5e6, 12.6e6].map((t) => axis.time(axis.place(t)))"
    assert browser.ask(inverse) == pytest.approx([0, 1e6, 12e6, 12.5e6, 12.6e6], abs=1)
    x, y = browser.ask(
        "(() => { const s = ggsched.timeline.stage, box = s.canvas.getBoundingClientRect();"
        "return [box.left + s.x(axis.places[0] + axis.width / 2), box.top + 60]; })()"
    )
    browser.mouse("mouseMoved", x, y)
    browser.until("!tip.hidden && tip.innerText.startsWith('folded: 12 s')")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_nothing_is_out_of_sight_in_a_narrow_window(browser, shown, dark):
    open_page(browser, shown[0], width=500, dark=dark)
    outside = browser.ask(
        "[...document.querySelectorAll('body *')].filter((e) => e.getClientRects().length &&"
        " (e.getBoundingClientRect().right > innerWidth + 0.5 || e.scrollWidth > e.clientWidth + 1"
        " && getComputedStyle(e).overflowX !== 'visible')).map((e) => e.outerHTML.slice(0, 80))"
    )
    assert outside == []
    assert browser.ask("document.documentElement.scrollWidth") == 500
    heads = browser.ask(  # a word of a heading is not broken
        "[...document.querySelectorAll('th')].filter((e) => { const r = document.createRange();"
        " r.selectNodeContents(e); const n = e.innerText.split(' ').length;"
        " return r.getClientRects().length > n;"
        " }).map((e) => e.innerText)"
    )
    assert heads == []


def test_links_buttons_and_shares_stay_together_in_a_narrow_window(browser, shown):
    open_page(browser, shown[0], width=500)
    browser.ask(
        "document.getElementById('limit').replaceChildren(...withLinks("
        "Array.from({ length: 30 }, (_, i) => `${'i'.repeat(i)} host->sim:0, `).join('')))"
    )
    texts = browser.ask("[...document.querySelectorAll('.link')].map((e) => e.innerText)")
    assert texts.count("host->sim:0") >= 30
    for selector in ("#limit .link", ".bar .group"):
        heights = browser.ask(
            f"[...document.querySelectorAll('{selector}')].map((e) => e.offsetHeight)"
        )
        assert len(heights) > 2
        assert len(set(heights)) == 1
    below = browser.ask(
        "[...document.querySelectorAll('#devices td .soft')].map((e) =>"
        " e.offsetTop - e.previousElementSibling.offsetTop)"
    )
    assert below
    assert min(below) > 0


def texts_of(browser, selector):
    return browser.ask(f"[...document.querySelectorAll('{selector}')].map((e) => e.innerText)")


def test_what_is_of_no_use_to_a_page_is_left_out(browser, shown, stepped):
    for path, made in ((stepped, None), shown):
        open_page(browser, path)
        (keys,) = texts_of(browser, "#timeline-bar .keys")
        assert ("[ ]" in keys) == (made is None or len(made.runs) > 1)
        heads = texts_of(browser, "#plans th")
        assert len(set(heads)) == len(heads)
        for column in range(1, len(heads) + 1):
            assert set(texts_of(browser, f"#plans td:nth-child({column})")) - {"", "\u2013"}


def test_expected_launches_are_named_by_plan_and_what_took_no_time_has_no_ratio(browser, tmp_path):
    trace = pipeline_trace(2, 2)
    made = timeline_of(trace)
    track = next(t.id for t in made.tracks if t.device)
    spans = [
        msgspec.structs.replace(s, end_s=s.start_s) if s.track == track else s for s in made.spans
    ]
    path = tmp_path / "page.html"
    write_page(str(path), msgspec.structs.replace(made, spans=tuple(spans)), trace.plans)
    open_page(browser, path)
    first, second = (row.split("\t") for row in texts_of(browser, "#expected tbody tr"))
    assert first[0].startswith(f"{made.plans[0].name}, {made.tracks[track].device}, ")
    assert first[2:] == ["\u2013", "\u2013"]
    assert second[3].endswith("\u00d7")


def test_arrows_between_runs_are_drawn_where_both_ends_are_in_sight(browser, tmp_path):
    made = timeline(launch(1, 0, 1), sync(1, 2, target=1), launch(2, 4, 5), sync(5, 6, target=1))
    runs = (TimedRun(0, -1, 3), TimedRun(0, 3, 6))
    spans = [msgspec.structs.replace(s, run=int(s.start_s > 3)) for s in made.spans]
    plans = (pipeline_trace(2, 2).plans[0].plan,)
    path = tmp_path / "page.html"
    write_page(str(path), msgspec.structs.replace(made, spans=tuple(spans), runs=runs, plans=plans))
    open_page(browser, path)
    shown = []
    for view in ("show(-1e6, 3e6)", "show(0, 1.5e6)", "show(3e6, 6e6)", "fit()"):
        browser.ask(f"ggsched.view.{view}, 0")
        shown.append(browser.ask("arrowsInSight(ggsched.timeline, ggsched.view).length"))
    assert shown == [1, 1, 0, 2]
    # The run is wholly in sight, also what comes before its first span.
    assert browser.ask("ggsched.view.from < P.runStart[0] && P.runEnd[1] < ggsched.view.to")


def test_names_of_rows_stay_apart_in_a_narrow_window(browser, stepped):
    """Streams of one device, and devices of one backend, differ at the end of their names."""
    open_page(browser, stepped, width=500)
    names = ["opencl:0 q0", "opencl:1 q0", "ray://node-17/cuda:0 q0", "ray://node-17/cuda:0 q1"]
    shown = browser.ask(
        f"{names}.map((n) => fittedEnd(ggsched.timeline.stage.context, n, GUTTER - 14))"
    )
    assert len(set(shown)) == 4
    assert shown[:2] == names[:2]
    assert all(short.strip("\u2026") in name for short, name in zip(shown, names, strict=True))
    assert browser.ask("[countOf(1, 'node'), countOf(2, 'node')]") == ["1 node", "2 nodes"]


def test_numbers_are_those_of_the_command_line(browser, stepped):
    open_page(browser, stepped)
    for seconds, text in TIMES:
        assert browser.ask(f"timeText({1e6 * seconds!r})") == text
    for nbytes, text in SIZES:
        assert browser.ask(f"bytesText({nbytes})") == text
    for rate, unit, text in RATES:
        if unit == "B":
            assert browser.ask(f"rateText({rate!r})") == text


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
