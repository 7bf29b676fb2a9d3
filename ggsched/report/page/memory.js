// One arena as a picture: time to the right, addresses upwards, a block for each value.

const CHART = 54, PICTURE = 260, CHUNK = 256;

class MemoryMap {
  constructor(view, runs) {
    this.runs = runs;
    this.raster = new Raster();
    this.hovered = -1;
    this.arenas = [];
    D.plans.forEach((plan, p) => plan.arenas.forEach((a) => this.arenas.push({ ...a, plan: p })));
    const used = new Set(D.blocks.arena.map((a, i) => `${D.blocks.plan[i]}.${a}`));
    this.arenas = this.arenas.filter((a) => used.has(`${a.plan}.${a.id}`));
    this.arenas.sort((a, b) => (b.kind === "compute") - (a.kind === "compute") || b.bytes - a.bytes);
    runs.onStep((plan) => this.follow(plan));
    this.fillBar(view);
    if (!this.arenas.length) {
      document.getElementById("memory").hidden = true;
      return;
    }
    this.stage = new Stage("memory", view, (stage) => this.draw(stage));
    this.stage.runs = runs;
    this.stage.height = AXIS + CHART + PICTURE + 12;
    this.stage.hover = (x, y, event) => this.hover(x, y, event);
    this.choose(0);
  }

  fillBar(view) {
    const bar = document.getElementById("memory-bar");
    if (!this.arenas.length) {
      bar.append(el("span", { class: "soft" }, "No plan is in the trace, so nobody knows what lay where."));
      return;
    }
    const several = D.plans.length > 1;
    const options = this.arenas.map((a, i) =>
      el("option", { value: i }, `a${a.id} ${a.device} ${a.kind} ${bytesText(a.bytes)}${several ? ` (plan ${a.plan})` : ""}`));
    this.select = el("select", { "aria-label": "arena", onchange: (e) => this.choose(Number(e.target.value)) }, ...options);
    this.note = el("span", { class: "keys" });
    bar.append(viewButtons(view), this.select, this.note);
  }

  /** Show an arena of a plan, on the same device where it has one. */
  follow(plan) {
    if (!this.arena || this.arena.plan === plan) return;
    const own = this.arenas.filter((a) => a.plan === plan);
    const next = own.find((a) => a.device === this.arena.device && a.kind === this.arena.kind) || own[0];
    if (next) this.choose(this.arenas.indexOf(next));
  }

  choose(number) {
    const arena = (this.arena = this.arenas[number]);
    this.select.value = number;
    const b = D.blocks;
    this.ids = [];
    for (let i = 0; i < b.start.length; i += 1) {
      if (b.plan[i] === arena.plan && b.arena[i] === arena.id) this.ids.push(i);
    }
    this.starts = Float64Array.from(this.ids, (i) => P.blockStart[i]);
    this.finish = Float64Array.from(this.ids, (i) => P.blockEnd[i]);
    this.offsets = Float64Array.from(this.ids, (i) => b.offset[i]);
    this.sizes = Float64Array.from(this.ids, (i) => b.bytes[i]);
    this.tones = Uint32Array.from(this.ids, (i) => pixelOf(blockColour(b.label[i])));
    this.latest = []; // of each chunk of blocks the latest end, to pass over what is gone
    for (let k = 0; k < this.ids.length; k += CHUNK) {
      this.latest.push(Math.max(...this.finish.subarray(k, k + CHUNK)));
    }
    this.live = D.live[`${arena.plan}.${arena.id}`] || [];
    this.times = axis.column(this.live.map(([at]) => at));
    const most = (this.most = this.live.reduce((a, [, n]) => Math.max(a, n), 0));
    this.note.textContent = `${countText(this.ids.length)} values; ${bytesText(arena.bytes)} reserved` +
      (arena.least === null ? "" : ` (any safe layout needs ${bytesText(arena.least)})`) + `; at most ${bytesText(most)} in use at once in these runs`;
    this.stage.ask();
  }

  /** Call a function with the index in ``ids`` of each block that may be visible. */
  each(from, to, body) {
    const last = above(this.starts, to);
    for (let k = 0; k < last; k += 1) {
      if (k % CHUNK === 0 && this.latest[k / CHUNK] < from) k += CHUNK - 1;
      else if (this.finish[k] >= from) body(k);
    }
  }

  y(address) {
    return AXIS + CHART + PICTURE - (address / this.arena.bytes) * PICTURE;
  }

  draw(stage) {
    const c = stage.context;
    drawTimeAxis(stage, AXIS, stage.height - 10);
    this.drawGutter(stage);
    stage.clipBody(AXIS, () => {
      this.drawLive(stage);
      this.drawBlocks(stage);
      drawFolds(stage, AXIS, stage.height - 10);
    });
    c.strokeStyle = colour("--line");
    c.strokeRect(GUTTER - 0.5, AXIS + CHART - 0.5, stage.width - GUTTER, PICTURE + 1);
  }

  drawGutter(stage) {
    const c = stage.context;
    c.fillStyle = colour("--soft");
    c.textAlign = "right";
    c.fillText("in use", GUTTER - 8, AXIS + CHART / 2 + 8);
    c.fillText(bytesText(this.most), GUTTER - 8, AXIS + 10);
    const step = 2 ** Math.ceil(Math.log2(Math.max(1, this.arena.bytes / 6)));
    for (let at = 0; at <= this.arena.bytes; at += step) {
      if (this.y(at) > AXIS + CHART + 4) c.fillText(bytesText(at), GUTTER - 8, this.y(at));
    }
    c.textAlign = "left";
  }

  /** The most that is in use within each pixel. */
  drawLive(stage) {
    const c = stage.context, base = AXIS + CHART - 4, count = stage.width - GUTTER, { view } = stage;
    const most = new Float64Array(count + 1), scale = count / (view.to - view.from);
    let k = Math.max(0, above(this.times, view.from) - 1), now = 0;
    for (let p = 0; p <= count; p += 1) {
      const right = view.from + (p + 1) / scale;
      most[p] = now;
      for (; k < this.live.length && this.times[k] < right; k += 1) {
        now = this.live[k][1];
        if (now > most[p]) most[p] = now;
      }
    }
    const height = (n) => base - (n / Math.max(1, this.most)) * (CHART - 12);
    c.beginPath();
    c.moveTo(GUTTER, base);
    for (let p = 0; p <= count; p += 1) {
      if (p && most[p] === most[p - 1] && most[p] === most[p + 1]) continue;
      c.lineTo(GUTTER + p, height(most[p ? p - 1 : 0]));
      c.lineTo(GUTTER + p, height(most[p]));
    }
    c.lineTo(stage.width, base);
    c.fillStyle = colour("--launch-2");
    c.globalAlpha = 0.45;
    c.fill();
    c.globalAlpha = 1;
  }

  /** Blocks as pixels, so that their number does not matter; names where there is room. */
  drawBlocks(stage) {
    const c = stage.context, b = D.blocks, top = AXIS + CHART, { raster } = this;
    const ratio = window.devicePixelRatio || 1, names = [];
    raster.begin(Math.round((stage.width - GUTTER) * ratio), Math.round(PICTURE * ratio));
    const across = raster.width / (stage.view.to - stage.view.from), up = raster.height / this.arena.bytes;
    const { starts, finish, offsets, sizes, tones } = this, { from, to } = stage.view;
    this.each(from, to, (k) => {
      const x = Math.round((starts[k] - from) * across), right = Math.round((finish[k] - from) * across);
      const y = Math.round(raster.height - (offsets[k] + sizes[k]) * up), bottom = Math.round(raster.height - offsets[k] * up);
      const gap = right - x > 3 ? 1 : 0, line = bottom - y > 3 ? 1 : 0;
      raster.fill(x, Math.max(x + 1, right - gap), y, Math.max(y + 1, bottom - line), tones[k]);
      if (right - x > 34 * ratio && bottom - y > 11 * ratio) names.push([this.ids[k], x / ratio, right / ratio, (y + bottom) / (2 * ratio)]);
    });
    raster.draw(c, GUTTER, top, stage.width - GUTTER, PICTURE);
    c.fillStyle = "#10141a";
    c.font = `10.5px ${FONT}`;
    for (const [i, x, right, middle] of names) {
      const left = Math.max(0, x);
      c.fillText(fitted(c, D.texts[b.label[i]], Math.min(right, stage.width - GUTTER) - left - 5), GUTTER + left + 3, top + middle);
    }
    c.font = `12px ${FONT}`;
    if (this.hovered >= 0) this.frame(stage, this.hovered);
  }

  /** Mark the block under the pointer. */
  frame(stage, i) {
    const c = stage.context, b = D.blocks, x = stage.x(P.blockStart[i]), top = this.y(b.offset[i] + b.bytes[i]);
    c.strokeStyle = colour("--mark");
    c.lineWidth = 2;
    c.strokeRect(x, top, Math.max(2, stage.x(P.blockEnd[i]) - x), Math.max(2, this.y(b.offset[i]) - top));
    c.lineWidth = 1;
  }

  hover(x, y, event) {
    let found = -1;
    const b = D.blocks;
    if (event && x >= GUTTER) {
      const at = this.stage.at(x), reach = this.stage.at(x + 2) - at;
      let nearest = 3; // pixels: a block may be thinner than a line
      this.each(at - reach, at + reach, (k) => {
        const i = this.ids[k];
        const away = Math.max(y - this.y(b.offset[i]), this.y(b.offset[i] + b.bytes[i]) - y, 0);
        if (away < nearest) [nearest, found] = [away, i];
      });
    }
    if (found !== this.hovered) {
      this.hovered = found;
      this.stage.ask();
    }
    showTip(found < 0 ? null : [
      D.texts[b.label[found]],
      `${bytesText(b.bytes[found])} at a${b.arena[found]}[${b.offset[found]}:${b.offset[found] + b.bytes[found]}], run ${b.run[found]}`,
      `in use for ${timeText(b.end[found] - b.start[found])} from ${timeText(b.start[found] - D.runs[b.run[found]][1])} of the run`,
    ], event);
  }
}

/** A light colour that stays the same for a value, and differs from its neighbours'. */
function blockColour(seed) {
  const hue = (seed * 137.508) % 360;
  return `hsl(${hue.toFixed(1)} 55% 66%)`;
}
