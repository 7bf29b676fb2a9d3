// Drawing the timeline: only what is visible, and densities where spans are narrower than pixels.

const MANY_ARROWS = 400;

function drawTimeline(t, stage) {
  const c = stage.context;
  drawTimeAxis(stage, AXIS, stage.height);
  drawGutter(t, stage);
  stage.clipBody(0, () => {
    drawRuns(stage);
    let drawn = 0;
    for (const row of t.rows) drawn += drawRow(t, stage, row);
    if (t.showExpected) drawExpected(t, stage);
    drawArrows(t, stage);
    for (const span of [t.hovered, t.selected]) {
      if (span >= 0) frameSpan(t, stage, span);
    }
    t.drawn = drawn;
  });
  c.strokeStyle = colour("--line");
  c.beginPath();
  c.moveTo(GUTTER - 0.5, 0);
  c.lineTo(GUTTER - 0.5, stage.height);
  c.stroke();
}

function drawGutter(t, stage) {
  const c = stage.context;
  let device = null;
  c.textAlign = "left";
  for (const track of t.tracks) {
    if (track.device !== device && track.device) {
      c.strokeStyle = colour("--line");
      c.beginPath();
      c.moveTo(0, track.y - GAP / 2 + 0.5);
      c.lineTo(stage.width, track.y - GAP / 2 + 0.5);
      c.stroke();
    }
    device = track.device;
    c.fillStyle = colour("--text");
    c.fillText(fitted(c, track.name, GUTTER - 14), 8, track.y + ROW / 2);
  }
  if (D.runs.length) {
    c.fillStyle = colour("--soft");
    c.fillText("runs", 8, AXIS + 9);
  }
}

function drawRuns(stage) {
  const c = stage.context;
  let last = -Infinity;
  D.runs.forEach(([, start, end], i) => {
    const x = stage.x(start), right = stage.x(end);
    if (right < GUTTER || x > stage.width || right - last < 1) return;
    last = right;
    c.fillStyle = colour("--panel");
    c.fillRect(x, AXIS, Math.max(1, right - x - 1), 17);
    c.fillStyle = colour("--soft");
    const left = Math.max(x, GUTTER) + 4;
    const text = fitted(c, `run ${i}`, Math.min(right, stage.width) - left - 2);
    if (text) c.fillText(text, left, AXIS + 9);
  });
}

/** Draw the spans of a row that are visible; return how many there are. */
function drawRow(t, stage, row) {
  const c = stage.context, s = D.spans, { view } = stage;
  const first = above(row.starts, view.from - row.lengthiest - 1e-9), end = above(row.starts, view.to);
  if (end - first > stage.width - GUTTER) {
    drawDensity(stage, row, first, end);
    return end - first;
  }
  const perPixel = (view.to - view.from) / (stage.width - GUTTER);
  for (let k = first; k < end; k += 1) {
    const i = row.ids[k], kind = s.kind[i];
    if (s.end[i] < view.from) continue;
    const x = stage.x(s.start[i]);
    if (kind === "record") {
      if (perPixel < 0.2) mark(c, x, row.y);
      continue;
    }
    const width = stage.x(s.end[i]) - x;
    const inset = kind === "wait" || kind === "barrier" ? 6 : 1;
    c.fillStyle = kindColour(kind);
    c.fillRect(x, row.y + inset, Math.max(1, width - (width > 3 ? 0.7 : 0)), ROW - 2 * inset - 2);
    if (width > 16) drawInside(t, stage, i, x, width, row.y);
  }
  return end - first;
}

const DENSE = ["launch", "copy", "sync", "host", "wait"];

/** More spans than pixels: show how much of each pixel's time each kind has, stacked from below. */
function drawDensity(stage, row, first, end) {
  const c = stage.context, s = D.spans, count = stage.width - GUTTER;
  const shares = DENSE.map(() => new Float32Array(count + 1));
  for (let k = first; k < end; k += 1) {
    const i = row.ids[k], kind = s.path[i] && D.texts[s.path[i]] ? "copy" : s.kind[i];
    const share = shares[DENSE.indexOf(kind)];
    const x = Math.max(0, stage.x(s.start[i]) - GUTTER), right = Math.min(count, stage.x(s.end[i]) - GUTTER);
    if (!share || right < 0 || x >= count) continue;
    for (let p = Math.floor(x); p < right; p += 1) share[p] += Math.min(p + 1, right) - Math.max(p, x);
  }
  const height = ROW - 4, base = row.y + 1 + height;
  const tops = new Float32Array(count).fill(base);
  DENSE.forEach((kind, n) => {
    c.fillStyle = kindColour(kind);
    for (let p = 0; p < count; p += 1) {
      const part = Math.min(1, shares[n][p]) * height;
      if (part < 0.05) continue;
      tops[p] -= part;
      c.fillRect(GUTTER + p, tops[p], 1, part);
    }
  });
}

function mark(c, x, y) {
  c.fillStyle = colour("--mark");
  c.beginPath();
  c.moveTo(x, y + ROW - 3);
  c.lineTo(x - 3, y + ROW + 2);
  c.lineTo(x + 3, y + ROW + 2);
  c.fill();
}

function drawInside(t, stage, i, x, width, y) {
  const c = stage.context, kind = D.spans.kind[i];
  const left = Math.max(x, GUTTER), room = Math.min(x + width, stage.width) - left - 6;
  const range = t.nodesOf.get(i);
  let textY = y + ROW / 2 - 1;
  if (range && width > 40) {
    textY = y + 7.5;
    drawNodes(stage, range, y);
  }
  c.font = `${range && width > 40 ? 10 : 11}px ${FONT}`;
  c.fillStyle = kind === "launch" || kind === "sync" || kind === "host" ? colour("--on") : colour(kind === "wait" ? "--text" : "--on-copy");
  const text = fitted(c, shortLabel(i), room);
  if (text) c.fillText(text, left + 3, textY);
  c.font = `12px ${FONT}`;
}

function shortLabel(i) {
  const label = D.texts[D.spans.label[i]];
  if (D.spans.path[i] && D.texts[D.spans.path[i]]) return `${D.spans.kind[i]} ${bytesText(D.spans.bytes[i])}`;
  return label.replace(/^launch /, "");
}

function drawNodes(stage, [first, end], y) {
  const c = stage.context;
  let last = -Infinity;
  for (let n = first; n < end; n += 1) {
    const x = stage.x(D.nodes.start[n]), right = stage.x(D.nodes.end[n]);
    if (right < GUTTER || x > stage.width || right - last < 1) continue;
    last = right;
    c.fillStyle = colour("--launch-2");
    c.fillRect(x, y + 13, Math.max(0.6, right - x - 0.6), ROW - 17);
    if (right - x > 50) {
      c.font = `9px ${FONT}`;
      c.fillStyle = colour("--on");
      const left = Math.max(x, GUTTER);
      c.fillText(fitted(c, D.texts[D.nodes.label[n]], right - left - 4), left + 2, y + 18);
    }
  }
}

function drawExpected(t, stage) {
  const c = stage.context, { view } = stage;
  c.fillStyle = colour("--ghost");
  D.runs.forEach(([plan, start, end]) => {
    const e = D.expected[plan];
    if (!e || start > view.to || Math.max(end, start + (e.end[e.end.length - 1] || 0)) < view.from) return;
    const last = new Map();
    for (let i = 0; i < e.command.length; i += 1) {
      const x = stage.x(start + e.start[i]), right = stage.x(start + e.end[i]);
      if (right < GUTTER || x > stage.width || right - (last.get(e.track[i]) || -1e9) < 0.7) continue;
      last.set(e.track[i], right);
      c.fillRect(x, t.trackAt.get(e.track[i]).ghostY, Math.max(0.8, right - x - 0.5), GHOST);
    }
  });
}

function drawArrows(t, stage) {
  const chosen = t.selected >= 0 ? t.selected : t.hovered;
  const focus = new Set(chosen >= 0 ? t.arrowsOf.get(chosen) : []);
  const visible = [];
  if (t.showArrows) {
    for (let i = 0; i < D.arrows.length && visible.length <= MANY_ARROWS; i += 1) {
      const [, src, dst] = D.arrows[i];
      const from = stage.x(D.spans.end[src]), to = stage.x(D.spans.end[dst]);
      const isInView = Math.max(from, to) >= GUTTER && Math.min(from, to) <= stage.width;
      if (isInView && t.yOf(src) !== t.yOf(dst)) visible.push(i);
    }
  }
  const all = visible.length <= MANY_ARROWS ? visible : [];
  for (const i of all) if (!focus.has(i)) drawArrow(t, stage, i, 0.35);
  for (const i of focus) drawArrow(t, stage, i, 1);
}

function drawArrow(t, stage, i, strength) {
  const c = stage.context, [isCopy, src, dst] = D.arrows[i], s = D.spans;
  const x = stage.x(s.end[src]), y = t.yOf(src) + ROW / 2 - 1;
  const toX = stage.x(isCopy ? s.start[dst] : s.end[dst]), toY = t.yOf(dst) + ROW / 2 - 1;
  c.globalAlpha = strength;
  c.strokeStyle = c.fillStyle = colour(isCopy ? "--copy" : "--text");
  c.lineWidth = strength === 1 ? 1.6 : 1;
  const bend = Math.min(40, Math.max(6, Math.abs(toX - x) / 2));
  c.beginPath();
  c.moveTo(x, y);
  c.bezierCurveTo(x + bend, y, toX - bend, toY, toX - 4, toY);
  c.stroke();
  c.beginPath();
  c.moveTo(toX, toY);
  c.lineTo(toX - 5, toY - 3);
  c.lineTo(toX - 5, toY + 3);
  c.fill();
  c.globalAlpha = 1;
}

function frameSpan(t, stage, span) {
  const c = stage.context, x = stage.x(D.spans.start[span]), right = stage.x(D.spans.end[span]);
  c.strokeStyle = colour("--mark");
  c.lineWidth = 2;
  c.strokeRect(x - 1, t.yOf(span), Math.max(3, right - x + 1.5), ROW - 2);
  c.lineWidth = 1;
}
