// A part of an axis that is zoomed and panned, shared by all canvases on that axis.

const WIDE_GUTTER = 132, NARROW_GUTTER = 88, NARROW = 640;

// Names of rows are on the left of each canvas, shorter where the window is narrow.
let GUTTER = WIDE_GUTTER;

class View {
  constructor(begin, end) {
    const margin = 0.01 * (end - begin) || 1;
    this.least = begin - margin;
    this.most = end + margin;
    this.shortest = Math.max(1e-3, (this.most - this.least) * 1e-7);
    this.listeners = [];
    this.from = this.least;
    this.to = this.most;
  }

  onChange(listener) {
    this.listeners.push(listener);
  }

  /** Show [from, to], moved so that it stays within the limits. */
  show(from, to) {
    const length = Math.min(Math.max(to - from, this.shortest), this.most - this.least);
    const middle = (from + to) / 2;
    this.from = Math.min(Math.max(middle - length / 2, this.least), this.most - length);
    this.to = this.from + length;
    this.changed();
  }

  fit() {
    this.show(this.least, this.most);
  }

  zoom(factor, at) {
    const centre = at === undefined ? (this.from + this.to) / 2 : at;
    this.show(centre - (centre - this.from) * factor, centre + (this.to - centre) * factor);
  }

  pan(by) {
    this.show(this.from + by, this.to + by);
  }

  changed() {
    for (const listener of this.listeners) listener();
  }
}

/** A canvas that is redrawn at most once a frame, with the pointer, the wheel and keys on a view. */
class Stage {
  constructor(id, view, draw) {
    this.canvas = document.getElementById(id);
    this.context = this.canvas.getContext("2d");
    this.view = view;
    this.draw = draw;
    this.height = 100;
    this.width = 100;
    this.isAsked = false;
    this.isInSight = true;
    this.isStale = false;
    this.drawnMs = 0;
    this.frames = 0;
    view.onChange(() => this.ask());
    new ResizeObserver(() => this.ask()).observe(this.canvas);
    new IntersectionObserver(([entry]) => {
      this.isInSight = entry.isIntersecting;
      if (this.isInSight && this.isStale) this.ask();
    }).observe(this.canvas);
    this.listen();
  }

  /** Pixel of a place on the axis. */
  x(at) {
    return GUTTER + ((at - this.view.from) / (this.view.to - this.view.from)) * (this.width - GUTTER);
  }

  /** Place on the axis of a pixel. */
  at(x) {
    return this.view.from + ((x - GUTTER) / (this.width - GUTTER)) * (this.view.to - this.view.from);
  }

  /** Draw with the next frame, or once the canvas comes into sight. */
  ask() {
    this.isStale = this.frames > 0 && !this.isInSight;
    if (this.isAsked || this.isStale) return;
    this.isAsked = true;
    requestAnimationFrame(() => {
      this.isAsked = false;
      this.paint();
    });
  }

  paint() {
    const begin = performance.now();
    const ratio = window.devicePixelRatio || 1;
    this.width = this.canvas.clientWidth;
    GUTTER = this.width < NARROW ? NARROW_GUTTER : WIDE_GUTTER;
    this.canvas.style.height = `${this.height}px`;
    const [w, h] = [Math.round(this.width * ratio), Math.round(this.height * ratio)];
    if (this.canvas.width !== w || this.canvas.height !== h) {
      this.canvas.width = w;
      this.canvas.height = h;
    }
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.context.clearRect(0, 0, this.width, this.height);
    this.context.font = `12px ${FONT}`;
    this.context.textBaseline = "middle";
    this.draw(this);
    this.drawnMs = performance.now() - begin;
    this.frames += 1;
  }

  clipBody(top, body) {
    const c = this.context;
    c.save();
    c.beginPath();
    c.rect(GUTTER, top, this.width - GUTTER, this.height - top);
    c.clip();
    body();
    c.restore();
  }

  listen() {
    const canvas = this.canvas;
    let held = null;
    canvas.addEventListener("wheel", (event) => {
      const along = Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey;
      if (along) {
        this.view.pan(((event.deltaX || event.deltaY) / (this.width - GUTTER)) * (this.view.to - this.view.from));
      } else if (event.ctrlKey || event.metaKey || document.activeElement === canvas) {
        this.view.zoom(Math.exp(event.deltaY * 0.0018), this.at(event.offsetX));
      } else return; // the page scrolls
      event.preventDefault();
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      held = { x: event.clientX, moved: 0 };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!held) {
        this.hover(event.offsetX, event.offsetY, event);
        return;
      }
      const by = event.clientX - held.x;
      held.x = event.clientX;
      held.moved += Math.abs(by);
      canvas.classList.toggle("moving", held.moved > 4);
      this.view.pan((-by / (this.width - GUTTER)) * (this.view.to - this.view.from));
    });
    canvas.addEventListener("pointerup", (event) => {
      if (held && held.moved <= 4) this.click(event.offsetX, event.offsetY, event);
      held = null;
      canvas.classList.remove("moving");
    });
    canvas.addEventListener("pointerleave", () => this.hover(-1, -1, null));
    canvas.addEventListener("dblclick", () => this.view.fit());
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    const length = this.view.to - this.view.from;
    const actions = {
      w: () => this.view.zoom(0.7), "+": () => this.view.zoom(0.7), ArrowUp: () => this.view.zoom(0.7),
      s: () => this.view.zoom(1 / 0.7), "-": () => this.view.zoom(1 / 0.7), ArrowDown: () => this.view.zoom(1 / 0.7),
      a: () => this.view.pan(-0.2 * length), ArrowLeft: () => this.view.pan(-0.2 * length),
      d: () => this.view.pan(0.2 * length), ArrowRight: () => this.view.pan(0.2 * length),
      f: () => this.view.fit(), 0: () => this.view.fit(), Escape: () => this.escape(),
    };
    if (actions[event.key] && !event.ctrlKey && !event.metaKey && !event.altKey) {
      actions[event.key]();
      event.preventDefault();
    }
  }

  hover() {}

  click() {}

  escape() {}
}

/** Buttons for a view, for those who have no wheel. */
function viewButtons(view) {
  const length = () => view.to - view.from;
  const button = (text, title, act) => el("button", { title, "aria-label": title, onclick: act }, text);
  return el("div", { class: "group" },
    button("−", "zoom out", () => view.zoom(2)),
    button("+", "zoom in", () => view.zoom(0.5)),
    button("◂", "earlier", () => view.pan(-0.4 * length())),
    button("▸", "later", () => view.pan(0.4 * length())),
    button("all", "show everything", () => view.fit()));
}

/** Round steps for about `count` marks on an axis. */
function axisStep(length, count) {
  const rough = length / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
}

/** Draw the time axis and its grid down to a height; folds are hatched and named. */
function drawTimeAxis(stage, top, bottom) {
  const c = stage.context, view = stage.view, { origin } = stage.runs;
  const step = axisStep(view.to - view.from, (stage.width - GUTTER) / 110);
  c.textAlign = "left";
  c.lineWidth = 1;
  c.strokeStyle = colour("--grid");
  c.fillStyle = colour("--soft");
  let free = GUTTER;
  c.beginPath();
  axis.pieces(view.from, view.to, (from, to) => {
    // Times from the origin on: a place in a piece that is not folded has the same distance.
    const first = axis.time(from) - origin, base = from - first;
    for (let i = Math.ceil(first / step); i * step < to - base; i += 1) {
      const x = Math.round(stage.x(base + i * step)) + 0.5, text = markText(i * step, step);
      if (x < GUTTER) continue;
      c.moveTo(x, top);
      c.lineTo(x, bottom);
      const right = x + 3 + c.measureText(text).width;
      if (x < free || right > stage.width) continue;
      c.fillText(text, x + 3, top - 9);
      free = right + 8;
    }
  });
  c.stroke();
}

/** Draw the folds over a canvas; their names stand upright where there is room. */
function drawFolds(stage, top, bottom) {
  const c = stage.context;
  axis.places.forEach((place, i) => {
    const x = stage.x(place), right = Math.max(x + 3, stage.x(place + axis.width));
    if (right < GUTTER || x > stage.width) return;
    c.fillStyle = colour("--fold");
    c.fillRect(x, top, right - x, bottom - top);
    c.strokeStyle = colour("--line");
    c.strokeRect(Math.round(x) + 0.5, top, Math.round(right - x), bottom - top);
    if (right - x < 13) return;
    const took = `${timeText(axis.ends[i] - axis.starts[i])}: ${axis.labels[i]}`;
    c.fillStyle = colour("--text");
    c.font = `11px ${FONT}`;
    c.save();
    const across = right - x > bottom - top;
    c.translate(across ? Math.max(x, GUTTER) + 6 : (x + right) / 2, across ? top + 14 : bottom - 6);
    if (!across) c.rotate(-Math.PI / 2);
    c.fillText(fitted(c, took, (across ? Math.min(right, stage.width) - Math.max(x, GUTTER) : bottom - top) - 12), 0, 0);
    c.restore();
    c.font = `12px ${FONT}`;
  });
}
