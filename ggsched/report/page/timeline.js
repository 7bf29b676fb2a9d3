// The timeline: where each span lies, what is under the pointer, what is shown of it.

const AXIS = 20, ROW = 26, GAP = 10, GHOST = 7;
const MOST_FOLDS = 5;
const KINDS = ["launch", "upload", "download", "copy", "sync", "host", "wait", "barrier", "record"];

class Timeline {
  constructor(view, runs) {
    this.view = view;
    this.runs = runs;
    this.hovered = -1;
    this.selected = -1;
    this.showArrows = true;
    this.showExpected = true;
    this.rows = [];
    this.tracks = [];
    this.layOut();
    this.arrowsOf = new Map();
    D.arrows.forEach(([, src, dst], i) => {
      for (const span of [src, dst]) {
        if (!this.arrowsOf.has(span)) this.arrowsOf.set(span, []);
        this.arrowsOf.get(span).push(i);
      }
    });
    this.indexNodes();
    this.indexExpected();
    this.stage = new Stage("timeline", view, (stage) => drawTimeline(this, stage));
    this.stage.runs = runs;
    this.stage.height = this.height;
    this.stage.hover = (x, y, event) => this.hover(x, y, event);
    this.stage.click = (x, y) => this.select(this.find(x, y));
    this.stage.escape = () => this.select(-1);
    this.fillBar();
    this.showDetails();
  }

  /** Give each track with spans its rows, the host first, streams of one device together. */
  layOut() {
    const used = new Set(D.spans.track);
    const order = D.tracks.map((_, i) => i).filter((i) => used.has(i));
    const devices = [...new Set(D.tracks.map((l) => l.device))];
    order.sort((a, b) => devices.indexOf(D.tracks[a].device) - devices.indexOf(D.tracks[b].device) || a - b);
    const hasGhosts = D.expected.some((e) => e.command.length);
    let y = AXIS + (D.runs.length ? 18 : 0) + 4;
    this.trackAt = new Map();
    for (const track of order) {
      const { name, device, rows } = D.tracks[track];
      const ghost = hasGhosts && device ? GHOST + 3 : 0;
      const label = device && !name.startsWith(device) ? `${device} ${name}` : name;
      this.trackAt.set(track, { track, name: label, device, y, ghostY: y + rows * ROW, rows });
      y += rows * ROW + ghost + GAP;
    }
    this.tracks = [...this.trackAt.values()];
    this.height = Math.max(y, 90);
    const of = new Map();
    D.spans.track.forEach((track, i) => {
      const key = `${track}.${D.spans.row[i]}`;
      if (!of.has(key)) of.set(key, []);
      of.get(key).push(i);
    });
    for (const [key, ids] of of) {
      const [track, row] = key.split(".").map(Number);
      const { start, end } = P;
      ids.sort((a, b) => start[a] - start[b] || end[b] - end[a]);
      this.rows.push({
        track, row, ids, y: this.trackAt.get(track).y + row * ROW,
        starts: Float64Array.from(ids, (i) => start[i]),
        ends: Float64Array.from(ids, (i) => end[i]),
        kinds: Uint8Array.from(ids, (i) => KINDS.indexOf(D.spans.kind[i])),
        lengthiest: ids.reduce((most, i) => Math.max(most, end[i] - start[i]), 0),
      });
    }
    this.ys = Float64Array.from(D.spans.track, (track, i) => this.trackAt.get(track).y + D.spans.row[i] * ROW);
    this.yOf = (span) => this.ys[span];
    this.arrowFrom = Float64Array.from(D.arrows, ([, src]) => P.end[src]);
    this.arrowTo = Float64Array.from(D.arrows, ([isCopy, , dst]) => (isCopy ? P.start : P.end)[dst]);
  }

  indexNodes() {
    this.nodesOf = new Map();
    D.nodes.span.forEach((span, i) => {
      if (!this.nodesOf.has(span)) this.nodesOf.set(span, [i, i + 1]);
      else this.nodesOf.get(span)[1] = i + 1;
    });
  }

  indexExpected() {
    this.expectedOf = D.expected.map((e) => new Map(e.command.map((command, i) => [command, i])));
  }

  expected(span) {
    const run = D.spans.run[span], command = D.spans.command[span];
    if (run < 0 || command < 0) return null;
    const plan = D.runs[run][0], i = this.expectedOf[plan] && this.expectedOf[plan].get(command);
    if (i === undefined) return null;
    return D.expected[plan].end[i] - D.expected[plan].start[i];
  }

  fillBar() {
    const check = (text, name) => {
      const box = el("input", { type: "checkbox", onchange: (e) => { this[name] = e.target.checked; this.stage.ask(); } });
      box.checked = this[name];
      return el("label", {}, box, ` ${text}`);
    };
    const known = [["launch", "launch"], ["copy", "copy"], ["wait", "wait"], ["sync", "host sync"], ["host", "host"]];
    const legend = known.map(([kind, text]) => el("span", {}, el("i", { style: `background:var(${COLOUR[kind]})` }), text));
    const ghosts = D.expected.some((e) => e.command.length);
    if (ghosts) legend.push(el("span", {}, el("i", { style: "background:var(--ghost)" }), "expected"));
    document.getElementById("timeline-bar").append(
      ...this.runs.buttons(), viewButtons(this.view), check("arrows", "showArrows"),
      ...(ghosts ? [check("expected", "showExpected")] : []),
      el("div", { class: "legend" }, ...legend),
      el("span", { class: "keys" }, `keys: ${D.runs.length > 1 ? "[ ] step from run to run, " : ""}w a s d move and zoom, f shows all; drag, Ctrl + wheel, click`),
    );
  }

  /** Return the span at a pixel, the innermost if several, or -1. */
  find(x, y) {
    if (x < GUTTER) return -1;
    const row = this.rows.find((r) => y >= r.y && y < r.y + ROW);
    if (!row) return -1;
    const at = this.stage.at(x), reach = this.stage.at(x + 3) - at;
    const { start, end } = P;
    let best = -1, distance = Infinity;
    for (let k = above(row.starts, at + reach) - 1, seen = 0; k >= 0 && seen < 64; k -= 1, seen += 1) {
      const i = row.ids[k];
      const away = at < start[i] ? start[i] - at : at > end[i] ? at - end[i] : 0;
      if (away <= reach && away < distance) {
        best = i;
        distance = away;
        if (!away) break;
      }
    }
    return best;
  }

  findNode(span, x) {
    const range = this.nodesOf.get(span), at = this.stage.at(x);
    if (!range) return -1;
    for (let i = range[0]; i < range[1]; i += 1) if (P.nodeStart[i] <= at && at <= P.nodeEnd[i]) return i;
    return -1;
  }

  hover(x, y, event) {
    const found = event ? this.find(x, y) : -1;
    if (found !== this.hovered) {
      this.hovered = found;
      this.stage.ask();
    }
    if (found < 0) {
      const fold = event && x >= GUTTER ? axis.foldAt(this.stage.at(x)) : -1;
      showTip(fold < 0 ? null : [`folded: ${timeText(axis.ends[fold] - axis.starts[fold])}`, axis.labels[fold]], event);
      return;
    }
    const node = this.findNode(found, x);
    const inside = node < 0 ? "" : `${D.texts[D.nodes.label[node]]}: ${timeText(D.nodes.end[node] - D.nodes.start[node])}`;
    showTip([inside, ...this.lines(found)], event);
  }

  select(span) {
    this.selected = span;
    this.showDetails();
    this.stage.ask();
  }

  /** When the run of a span began. */
  begin(i) {
    return D.spans.run[i] < 0 ? this.runs.origin : D.runs[D.spans.run[i]][1];
  }

  /** What there is to say of a span. */
  lines(i) {
    const s = D.spans, text = (k) => D.texts[s[k][i]];
    const taken = s.end[i] - s.start[i], expected = this.expected(i);
    const what = s.command[i] >= 0 ? `c${s.command[i]} ${text("label")}` : text("label");
    const where = D.tracks[s.track[i]];
    const reason = text("reason");
    return [
      what,
      `${this.trackAt.get(s.track[i]).name}${s.run[i] >= 0 ? `, run ${s.run[i]}` : ""}`,
      `took ${timeText(taken)}${s.estimated[i] ? " (estimated)" : ""}` +
        (expected === null ? "" : `, expected ${timeText(expected)}`) +
        `; began at ${timeText(s.start[i] - this.begin(i))}` +
        (where.device ? `, enqueued at ${timeText(s.issued[i] - this.begin(i))}` : "") +
        (s.run[i] >= 0 ? " of the run" : ""),
      reason && `because of ${reason}`,
      text("path") && `${text("path")}: ${bytesText(s.bytes[i])}` + (taken > 0 ? `, ${rateText((s.bytes[i] / taken) * 1e6)}` : ""),
      !text("path") && s.bytes[i] > 0 && `touches ${bytesText(s.bytes[i])}`,
    ];
  }

  showDetails() {
    const box = document.getElementById("details");
    if (this.selected < 0) {
      const folded = D.folds.slice(0, MOST_FOLDS).map(([start, end, label]) => `${timeText(end - start)} (${label})`);
      const more = D.folds.length > MOST_FOLDS ? ` and ${D.folds.length - MOST_FOLDS} more` : "";
      box.replaceChildren(
        el("div", { class: "soft" }, "Click a span to keep its details here."),
        ...(folded.length ? [el("div", { class: "soft", id: "folded" }, `Folded: ${folded.join("; ")}${more}.`)] : []),
      );
      return;
    }
    const [what, ...rest] = this.lines(this.selected).filter(Boolean);
    const linked = (this.arrowsOf.get(this.selected) || []).slice(0, 12).map((i) => {
      const [, src, dst] = D.arrows[i], other = src === this.selected ? dst : src;
      const word = src === this.selected ? "leads to" : "comes from";
      const label = `${word} c${D.spans.command[other]} ${D.texts[D.spans.label[other]]}`;
      return el("button", { onclick: () => this.goTo(other) }, label);
    });
    box.replaceChildren(
      el("div", {}, el("b", {}, what), rest.join(" · ")),
      el("div", { class: "bar" }, ...linked),
    );
  }

  goTo(span) {
    const start = P.start[span], end = P.end[span], length = this.view.to - this.view.from;
    if (start < this.view.from || end > this.view.to) this.view.show((start + end - length) / 2, (start + end + length) / 2);
    this.select(span);
  }
}
