// The time axis: gaps in which nothing runs are folded, and runs are stepped through.

/** Places on the axis are microseconds, less what is folded away in front of them. */
class Axis {
  constructor(folds, width) {
    this.width = width;
    this.starts = Float64Array.from(folds, ([start]) => start);
    this.ends = Float64Array.from(folds, ([, end]) => end);
    this.labels = folds.map(([, , label]) => label);
    this.removed = [0];
    folds.forEach(([start, end]) => this.removed.push(this.removed[this.removed.length - 1] + end - start - width));
    this.places = Float64Array.from(folds, ([start], i) => start - this.removed[i]);
  }

  /** The place of a time. */
  place(time) {
    const i = above(this.starts, time) - 1;
    if (i < 0) return time;
    if (time >= this.ends[i]) return time - this.removed[i + 1];
    return this.places[i] + ((time - this.starts[i]) / (this.ends[i] - this.starts[i])) * this.width;
  }

  /** The time of a place. */
  time(place) {
    const i = this.foldAt(place);
    if (i >= 0) return this.starts[i] + ((place - this.places[i]) / this.width) * (this.ends[i] - this.starts[i]);
    return place + this.removed[above(this.places, place)];
  }

  /** The fold at a place, or -1. */
  foldAt(place) {
    const i = above(this.places, place) - 1;
    return i >= 0 && place < this.places[i] + this.width ? i : -1;
  }

  /** All times of a column as places. */
  column(times) {
    return this.starts.length ? Float64Array.from(times, (t) => this.place(t)) : Float64Array.from(times);
  }

  /** Call a function with each piece of [from, to] that is not folded, as places. */
  pieces(from, to, body) {
    let at = from;
    for (let i = above(this.places, from) - 1; i < this.places.length; i += 1) {
      const start = i < 0 ? from : this.places[i];
      if (start > to) break;
      if (start > at) body(at, start);
      if (i >= 0) at = Math.max(at, start + this.width);
    }
    if (at < to) body(at, to);
  }
}

const axis = new Axis(D.folds, D.fold);
// What is drawn is looked up by place; texts have the times of D.
const P = {
  start: axis.column(D.spans.start), end: axis.column(D.spans.end),
  nodeStart: axis.column(D.nodes.start), nodeEnd: axis.column(D.nodes.end),
  blockStart: axis.column(D.blocks.start), blockEnd: axis.column(D.blocks.end),
  runStart: axis.column(D.runs.map(([, start]) => start)), runEnd: axis.column(D.runs.map(([, , end]) => end)),
};

/** Steps from run to run; marks on the axis count from the start of the run that is shown. */
class Runs {
  constructor(view) {
    this.view = view;
    this.now = Math.max(0, D.opening.run);
    this.label = el("span", { id: "run", "aria-live": "polite" });
    this.fastest = D.opening.run;
    this.listeners = [];
    if (D.runs.length) view.onChange(() => this.tell());
    document.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "[") this.step(-1);
      else if (event.key === "]") this.step(1);
    });
  }

  /** When the run began that times are told from. */
  get origin() {
    return D.runs.length ? D.runs[this.now][1] : D.begin;
  }

  /** Call a function with the plan of each run that is stepped to. */
  onStep(listener) {
    this.listeners.push(listener);
  }

  step(by) {
    if (D.runs.length) this.show(Math.min(Math.max(this.now + by, 0), D.runs.length - 1));
  }

  show(run) {
    this.now = run;
    for (const listener of this.listeners) listener(D.runs[run][0]);
    const margin = 0.02 * (P.runEnd[run] - P.runStart[run]);
    this.view.show(P.runStart[run] - margin, P.runEnd[run] + margin);
  }

  tell() {
    const [plan, start, end] = D.runs[this.now];
    const fastest = this.now === this.fastest ? `, fastest of plan ${plan}` : "";
    this.label.textContent = `run ${this.now} of 0 to ${D.runs.length - 1}: ${timeText(end - start)}${fastest}`;
  }

  buttons() {
    const button = (text, title, act) => el("button", { title, "aria-label": title, onclick: act }, text);
    return D.runs.length < 2 ? [] : [
      el("div", { class: "group" },
        button("[", "previous run, key [", () => this.step(-1)),
        button("]", "next run, key ]", () => this.step(1)),
        button("run", "show this run", () => this.show(this.now))),
      this.label,
    ];
  }
}
