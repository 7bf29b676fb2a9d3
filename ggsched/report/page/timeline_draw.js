// Drawing the timeline: only what is visible, and densities where spans are narrower than pixels.

const MANY_ARROWS = 200, MANY_GHOSTED_RUNS = 12;

function drawTimeline(t, stage) {
  const c = stage.context;
  drawTimeAxis(stage, AXIS, stage.height);
  drawGutter(t, stage);
  stage.clipBody(0, () => {
    drawRuns(t, stage);
    let drawn = 0;
    for (const row of t.rows) drawn += drawRow(t, stage, row);
    if (t.showExpected) drawExpected(t, stage);
    drawArrows(t, stage);
    drawFolds(stage, AXIS + (D.runs.length ? 18 : 0), stage.height - 2);
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
    c.fillText(fittedEnd(c, track.name, GUTTER - 14), 8, track.y + ROW / 2);
  }
  if (D.runs.length) {
    c.fillStyle = colour("--soft");
    c.fillText("runs", 8, AXIS + 9);
  }
}

function drawRuns(t, stage) {
  const c = stage.context;
  let last = -Infinity;
  D.runs.forEach((_, i) => {
    const x = stage.x(P.runStart[i]), right = stage.x(P.runEnd[i]);
    if (right < GUTTER || x > stage.width || right - last < 1) return;
    last = right;
    const isNow = i === t.runs.now;
    c.fillStyle = colour(isNow ? "--done" : "--panel");
    c.fillRect(x, AXIS, Math.max(1, right - x - 1), 17);
    c.fillStyle = colour(isNow ? "--text" : "--soft");
    const left = Math.max(x, GUTTER) + 4;
    const text = fitted(c, `run ${i}`, Math.min(right, stage.width) - left - 2);
    if (text) c.fillText(text, left, AXIS + 9);
  });
}

/** Draw the spans of a row that are visible; return how many there are. */
function drawRow(t, stage, row) {
  const c = stage.context, { view } = stage;
  const first = above(row.starts, view.from - row.lengthiest - 1e-9), end = above(row.starts, view.to);
  if (end - first > (stage.width - GUTTER) / 3) {
    drawDensity(stage, row, first, end);
    return end - first;
  }
  const perPixel = (view.to - view.from) / (stage.width - GUTTER);
  for (let k = first; k < end; k += 1) {
    if (row.ends[k] < view.from) continue;
    const i = row.ids[k], kind = KINDS[row.kinds[k]], x = stage.x(row.starts[k]);
    if (kind === "record") {
      if (perPixel < 0.2) mark(c, x, row.y);
      continue;
    }
    const width = stage.x(row.ends[k]) - x;
    const inset = kind === "wait" || kind === "barrier" ? 6 : 1;
    c.fillStyle = kindColour(kind);
    c.fillRect(x, row.y + inset, Math.max(1, width - (width > 3 ? 0.7 : 0)), ROW - 2 * inset - 2);
    if (width > 16) drawInside(t, stage, i, x, width, row.y);
  }
  return end - first;
}

// Stacked from below; copies of all directions are one.
const DENSE = ["launch", "copy", "sync", "host", "wait"];
const DENSE_OF = Int8Array.from(KINDS, (kind) => DENSE.indexOf(kind === "upload" || kind === "download" ? "copy" : kind));
const density = new Raster();

/** More spans than a third of the pixels: how much of each pixel's time each kind has. */
function drawDensity(stage, row, first, end) {
  const count = stage.width - GUTTER, height = ROW - 4, { view } = stage, { starts, ends, kinds } = row;
  const scale = count / (view.to - view.from), many = DENSE.length, { from } = view;
  const shares = new Float32Array(count * many);
  for (let k = first; k < end; k += 1) {
    const n = DENSE_OF[kinds[k]];
    if (n < 0) continue;
    const x = Math.max(0, (starts[k] - from) * scale), right = Math.min(count, (ends[k] - from) * scale);
    let p = Math.floor(x);
    if (p + 1 >= right) {
      if (x < right) shares[p * many + n] += right - x;
      continue;
    }
    shares[p * many + n] += p + 1 - x;
    for (p += 1; p + 1 <= right; p += 1) shares[p * many + n] += 1;
    if (p < right) shares[p * many + n] += right - p;
  }
  density.begin(count, height);
  const tones = DENSE.map((kind) => pixelOf(kindColour(kind))), { at } = density;
  for (let p = 0; p < count; p += 1) {
    let top = height;
    for (let n = 0; n < many && top > 0; n += 1) {
      const share = shares[p * many + n];
      if (share < 0.002) continue;
      const next = Math.max(0, Math.min(top - 1, Math.round(top - share * height)));
      for (let line = next; line < top; line += 1) at[line * count + p] = tones[n];
      top = next;
    }
  }
  density.draw(stage.context, GUTTER, row.y + 1, count, height);
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
    const x = stage.x(P.nodeStart[n]), right = stage.x(P.nodeEnd[n]);
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
  const c = stage.context, { view } = stage, shown = [];
  c.fillStyle = colour("--ghost");
  D.runs.forEach(([plan, start], run) => {
    const e = D.expected[plan];
    if (!e || !e.command.length || P.runStart[run] > view.to) return;
    const last = axis.place(start + e.end[e.end.length - 1]);
    if (Math.max(P.runEnd[run], last) >= view.from) shown.push([e, start]);
  });
  if (shown.length > MANY_GHOSTED_RUNS) return; // too narrow to see
  for (const [e, start] of shown) {
    const last = new Map();
    for (let i = 0; i < e.command.length; i += 1) {
      const x = stage.x(axis.place(start + e.start[i])), right = stage.x(axis.place(start + e.end[i]));
      if (right < GUTTER || x > stage.width || right - (last.get(e.track[i]) || -1e9) < 0.7) continue;
      last.set(e.track[i], right);
      c.fillRect(x, t.trackAt.get(e.track[i]).ghostY, Math.max(0.8, right - x - 0.5), GHOST);
    }
  }
}

/** The arrows in sight; of those from run to run the ones that begin and end there. */
function arrowsInSight(t, { from, to }) {
  return [...D.arrows.keys()].filter((i) => {
    const [, src, dst] = D.arrows[i], ends = [t.arrowFrom[i], t.arrowTo[i]];
    const least = Math.min(...ends), most = Math.max(...ends), { run } = D.spans;
    return t.ys[src] !== t.ys[dst] && (run[src] === run[dst] ? most >= from && least <= to : least >= from && most <= to);
  });
}

function drawArrows(t, stage) {
  const chosen = t.selected >= 0 ? t.selected : t.hovered;
  const visible = t.showArrows ? arrowsInSight(t, stage.view) : [];
  if (visible.length <= MANY_ARROWS) {
    for (const isCopy of [0, 1]) strokeArrows(t, stage, visible.filter((i) => D.arrows[i][0] === isCopy), isCopy, 0.35);
  }
  for (const i of (chosen >= 0 && t.arrowsOf.get(chosen)) || []) strokeArrows(t, stage, [i], D.arrows[i][0], 1);
}

/** Draw arrows of one colour at once. */
function strokeArrows(t, stage, arrows, isCopy, strength) {
  const c = stage.context;
  c.globalAlpha = strength;
  c.strokeStyle = c.fillStyle = colour(isCopy ? "--copy" : "--text");
  c.lineWidth = strength === 1 ? 1.6 : 1;
  const places = arrows.map((i) => [
    stage.x(t.arrowFrom[i]), t.ys[D.arrows[i][1]] + ROW / 2 - 1, stage.x(t.arrowTo[i]), t.ys[D.arrows[i][2]] + ROW / 2 - 1,
  ]);
  c.beginPath();
  for (const [x, y, toX, toY] of places) {
    const bend = Math.min(40, Math.max(6, Math.abs(toX - x) / 2));
    c.moveTo(x, y);
    c.bezierCurveTo(x + bend, y, toX - bend, toY, toX - 4, toY);
  }
  c.stroke();
  c.beginPath();
  for (const [, , toX, toY] of places) {
    c.moveTo(toX, toY);
    c.lineTo(toX - 5, toY - 3);
    c.lineTo(toX - 5, toY + 3);
  }
  c.fill();
  c.globalAlpha = 1;
}

function frameSpan(t, stage, span) {
  const c = stage.context, x = stage.x(P.start[span]), right = stage.x(P.end[span]);
  c.strokeStyle = colour("--mark");
  c.lineWidth = 2;
  c.strokeRect(x - 1, t.yOf(span), Math.max(3, right - x + 1.5), ROW - 2);
  c.lineWidth = 1;
}
