// The splits as a graph: a row for each device, in the order of the plan, with what flows between.

const BOX_H = 46, BOX_GAP = 26;

class SplitGraph {
  constructor(runs) {
    const bar = document.getElementById("splits-bar");
    this.hovered = -1;
    if (!D.plans.some((p) => p.splits.length)) {
      bar.append(el("span", { class: "soft" }, "No plan is in the trace."));
      document.getElementById("splits").hidden = true;
      return;
    }
    this.view = new View(0, 1);
    this.stage = new Stage("splits", this.view, (stage) => this.draw(stage));
    this.stage.hover = (x, y, event) => this.hover(x, y, event);
    this.note = el("span", { class: "keys" });
    const options = D.plans.map((p, i) => el("option", { value: i }, `plan ${i}: ${p.name}, ${p.nodes} nodes`));
    this.select = el("select", { "aria-label": "plan", onchange: (e) => this.choose(Number(e.target.value)) }, ...options);
    bar.append(viewButtons(this.view), ...(D.plans.length > 1 ? [this.select] : []), this.note);
    this.choose(0);
    runs.onStep((plan) => this.plan !== D.plans[plan] && plan < D.plans.length && this.choose(plan));
  }

  choose(number) {
    this.plan = D.plans[number];
    this.select.value = number;
    const { splits, edges } = this.plan;
    const used = [...new Set(splits.map((s) => s.device))].sort((a, b) => a - b);
    this.rowOf = new Map(used.map((device, i) => [device, i]));
    this.devices = used.map((device) => this.plan.devices[device]);
    this.edgesOf = splits.map(() => []);
    edges.forEach(([a, b], i) => {
      this.edgesOf[a].push(i);
      this.edgesOf[b].push(i);
    });
    this.longest = edges.reduce((most, [a, b]) => Math.max(most, b - a), 0);
    this.edges = [...edges.keys()].sort((a, b) => edges[a][0] - edges[b][0]);
    this.edgeStarts = Float64Array.from(this.edges, (i) => edges[i][0]);
    this.stage.height = 20 + used.length * (BOX_H + BOX_GAP);
    Object.assign(this.view, { least: -0.3, most: splits.length + 0.3, shortest: 2 });
    const moved = edges.reduce((sum, [, , n, copied]) => sum + copied * n, 0);
    this.note.textContent = `${countText(splits.length)} splits, ${countText(edges.length)} flows, ${bytesText(moved)} between devices`;
    this.view.show(-0.3, Math.min(splits.length + 0.3, 12));
  }

  box(i) {
    const x = this.stage.x(i), right = this.stage.x(i + 1);
    const y = 10 + this.rowOf.get(this.plan.splits[i].device) * (BOX_H + BOX_GAP);
    const gap = Math.min(30, (right - x) * 0.3);
    return { x, y, width: Math.max(1, right - x - gap) };
  }

  draw(stage) {
    const c = stage.context, { splits } = this.plan;
    c.fillStyle = colour("--text");
    this.devices.forEach((name, i) => {
      const y = 10 + i * (BOX_H + BOX_GAP);
      c.fillStyle = colour("--panel");
      c.fillRect(GUTTER, y - 4, stage.width - GUTTER, BOX_H + 8);
      c.fillStyle = colour("--text");
      c.fillText(fittedEnd(c, name, GUTTER - 14), 8, y + BOX_H / 2);
    });
    stage.clipBody(0, () => {
      this.drawEdges(stage);
      const first = Math.max(0, Math.floor(this.view.from) - 1), end = Math.min(splits.length, Math.ceil(this.view.to) + 1);
      const stride = Math.max(1, Math.floor((end - first) / (2 * stage.width)));
      for (let i = first; i < end; i += stride) this.drawBox(stage, i);
    });
  }

  drawBox(stage, i) {
    const c = stage.context, split = this.plan.splits[i], { x, y, width } = this.box(i);
    c.fillStyle = colour("--launch");
    c.globalAlpha = i === this.hovered || this.hovered < 0 || this.isNear(i) ? 1 : 0.45;
    c.fillRect(x, y, width, BOX_H);
    c.globalAlpha = 1;
    if (width < 26) return;
    c.fillStyle = colour("--on");
    const room = width - 8, count = split.end - split.first;
    c.font = `600 12px ${FONT}`;
    c.fillText(fitted(c, `s${i}`, room), x + 4, y + 10);
    c.font = `11px ${FONT}`;
    const nodes = count > 1 ? `n${split.first}..n${split.end - 1}` : `n${split.first}`;
    c.fillText(fitted(c, split.layers || `${nodes} (${count})`, room), x + 4, y + 24);
    c.fillText(fitted(c, split.ops, room), x + 4, y + 37);
    c.font = `12px ${FONT}`;
  }

  isNear(i) {
    return this.edgesOf[this.hovered].some((e) => this.plan.edges[e][0] === i || this.plan.edges[e][1] === i);
  }

  drawEdges(stage) {
    const { view } = this;
    const first = above(this.edgeStarts, view.from - this.longest - 1), last = above(this.edgeStarts, view.to);
    const chosen = this.hovered < 0 ? null : new Set(this.edgesOf[this.hovered]);
    const stride = Math.max(1, Math.floor((last - first) / 1500));
    for (let k = first; k < last; k += stride) {
      const e = this.edges[k];
      if (this.plan.edges[e][1] >= view.from - 1 && (!chosen || !chosen.has(e))) this.drawEdge(stage, e, chosen ? 0.15 : 0.5);
    }
    if (chosen) for (const e of chosen) this.drawEdge(stage, e, 1);
  }

  drawEdge(stage, e, strength) {
    const c = stage.context, [a, b, nbytes, copied] = this.plan.edges[e];
    const from = this.box(a), to = this.box(b);
    const y = from.y + BOX_H / 2, toY = to.y + BOX_H / 2, x = from.x + from.width;
    const isFlat = y === toY && b > a + 1;
    c.globalAlpha = strength;
    c.strokeStyle = c.fillStyle = colour(copied ? "--copy" : "--soft");
    c.lineWidth = strength === 1 ? 2 : 1.2;
    const bend = Math.max(8, (to.x - x) / 2);
    const dip = isFlat ? BOX_H / 2 + 14 : 0;
    c.beginPath();
    c.moveTo(x, y);
    c.bezierCurveTo(x + bend, y + dip * 1.5, to.x - bend, toY + dip * 1.5, to.x - 4, toY);
    c.stroke();
    c.beginPath();
    c.moveTo(to.x, toY);
    c.lineTo(to.x - 6, toY - 3.5);
    c.lineTo(to.x - 6, toY + 3.5);
    c.fill();
    if (strength === 1) {
      c.fillStyle = colour("--text");
      c.fillText(bytesText(nbytes), (x + to.x) / 2 - 18, (y + toY) / 2 + dip - 8);
    }
    c.globalAlpha = 1;
    c.lineWidth = 1;
  }

  hover(x, y, event) {
    let found = -1;
    if (event && x >= GUTTER) {
      const i = Math.floor(this.stage.at(x));
      if (i >= 0 && i < this.plan.splits.length) {
        const box = this.box(i);
        if (x <= box.x + box.width + 1 && y >= box.y && y <= box.y + BOX_H) found = i;
      }
    }
    if (found !== this.hovered) {
      this.hovered = found;
      this.stage.ask();
    }
    if (found < 0) {
      showTip(null);
      return;
    }
    const split = this.plan.splits[found];
    const flows = this.edgesOf[found].map((e) => this.plan.edges[e]);
    const sum = (side) => flows.filter((f) => f[3] && f[side] === found).reduce((n, f) => n + f[2], 0);
    showTip([
      `s${found} on ${this.plan.devices[split.device]}, ${split.stream}: n${split.first}..n${split.end - 1}`,
      split.layers,
      split.ops,
      `placed by ${split.causes}`,
      `copied in ${bytesText(sum(1))}, out ${bytesText(sum(0))}`,
    ], event);
  }
}
