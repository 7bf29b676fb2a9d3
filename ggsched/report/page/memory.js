// One arena as a picture: time to the right, addresses upwards, a block for each value.

const CHART = 54, PICTURE = 260, CHUNK = 256;

class MemoryMap {
  constructor(view) {
    this.hovered = -1;
    this.arenas = [];
    D.plans.forEach((plan, p) => plan.arenas.forEach((a) => this.arenas.push({ ...a, plan: p })));
    const used = new Set(D.blocks.arena.map((a, i) => `${D.blocks.plan[i]}.${a}`));
    this.arenas = this.arenas.filter((a) => used.has(`${a.plan}.${a.id}`));
    this.arenas.sort((a, b) => (b.kind === "compute") - (a.kind === "compute") || b.bytes - a.bytes);
    this.fillBar(view);
    if (!this.arenas.length) {
      document.getElementById("memory").hidden = true;
      return;
    }
    this.stage = new Stage("memory", view, (stage) => this.draw(stage));
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
    const select = el("select", { "aria-label": "arena", onchange: (e) => this.choose(Number(e.target.value)) }, ...options);
    this.note = el("span", { class: "keys" });
    bar.append(...viewButtons(view), select, this.note);
  }

  choose(number) {
    const arena = (this.arena = this.arenas[number]);
    const b = D.blocks;
    this.ids = [];
    for (let i = 0; i < b.start.length; i += 1) {
      if (b.plan[i] === arena.plan && b.arena[i] === arena.id) this.ids.push(i);
    }
    this.starts = Float64Array.from(this.ids, (i) => b.start[i]);
    this.latest = []; // of each chunk of blocks the latest end, to pass over what is gone
    for (let k = 0; k < this.ids.length; k += CHUNK) {
      this.latest.push(Math.max(...this.ids.slice(k, k + CHUNK).map((i) => b.end[i])));
    }
    this.live = D.live[`${arena.plan}.${arena.id}`] || [];
    const most = (this.most = this.live.reduce((a, [, n]) => Math.max(a, n), 0));
    this.note.textContent = `${countText(this.ids.length)} values; at most ${bytesText(most)} in use at once of ${bytesText(arena.bytes)}` +
      (arena.least === null ? "" : `, of which ${bytesText(arena.least)} cannot be avoided`);
    this.stage.ask();
  }

  /** Call a function with each block that may be visible. */
  each(from, to, body) {
    const b = D.blocks, last = above(this.starts, to);
    for (let k = 0; k < last; k += 1) {
      if (k % CHUNK === 0 && this.latest[k / CHUNK] < from) k += CHUNK - 1;
      else if (b.end[this.ids[k]] >= from) body(this.ids[k]);
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

  drawLive(stage) {
    const c = stage.context, base = AXIS + CHART - 4;
    const height = (n) => base - (n / Math.max(1, this.most)) * (CHART - 12);
    c.beginPath();
    c.moveTo(stage.x(stage.view.from), base);
    let now = 0, column = -Infinity;
    const times = this.times && this.timesOf === this.live ? this.times : Float64Array.from(this.live, (p) => p[0]);
    [this.times, this.timesOf] = [times, this.live];
    const first = Math.max(0, above(times, stage.view.from) - 1);
    for (let k = first; k < this.live.length && times[k] <= stage.view.to; k += 1) {
      const x = stage.x(times[k]);
      if (x - column >= 0.5) {
        c.lineTo(x, height(now));
        column = x;
      }
      now = this.live[k][1];
      c.lineTo(x, height(now));
    }
    c.lineTo(stage.x(stage.view.to), height(now));
    c.lineTo(stage.x(stage.view.to), base);
    c.fillStyle = colour("--launch-2");
    c.globalAlpha = 0.45;
    c.fill();
    c.globalAlpha = 1;
  }

  drawBlocks(stage) {
    const c = stage.context, b = D.blocks;
    this.each(stage.view.from, stage.view.to, (i) => {
      const x = stage.x(b.start[i]), width = stage.x(b.end[i]) - x;
      const top = this.y(b.offset[i] + b.bytes[i]), height = this.y(b.offset[i]) - top;
      c.fillStyle = blockColour(b.label[i], i === this.hovered);
      c.fillRect(x, top, Math.max(1, width - 0.5), Math.max(1, height - 0.5));
      if (width > 34 && height > 11) {
        c.fillStyle = "#10141a";
        c.font = `10.5px ${FONT}`;
        const left = Math.max(x, GUTTER);
        c.fillText(fitted(c, D.texts[b.label[i]], Math.min(x + width, stage.width) - left - 5), left + 3, top + height / 2);
      }
    });
    c.font = `12px ${FONT}`;
  }

  hover(x, y, event) {
    let found = -1;
    const b = D.blocks;
    if (event && x >= GUTTER) {
      const at = this.stage.at(x), reach = this.stage.at(x + 2) - at;
      let nearest = 3; // pixels: a block may be thinner than a line
      this.each(at - reach, at + reach, (i) => {
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
      `in use for ${timeText(b.end[found] - b.start[found])} from ${timeText(b.start[found] - ORIGIN)}`,
    ], event);
  }
}

/** A light colour that stays the same for a value, and differs from its neighbours'. */
function blockColour(seed, isHovered) {
  const hue = (seed * 137.508) % 360;
  return `hsl(${hue.toFixed(1)} 55% ${isHovered ? 82 : 66}%)`;
}
