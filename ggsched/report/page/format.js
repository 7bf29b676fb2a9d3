"use strict";
// The data of the page, and how numbers and elements are written.

const D = JSON.parse(document.getElementById("data").textContent);
const FONT = "system-ui, 'Segoe UI', Roboto, Arial, sans-serif";
const COLOUR = {
  launch: "--launch", upload: "--copy", download: "--copy", copy: "--copy",
  wait: "--wait", barrier: "--wait", record: "--mark", sync: "--sync", host: "--host",
};

const TIMES = [["ns", 1e-3], ["µs", 1], ["ms", 1e3], ["s", 1e6]];

/** A number that is not negative with three significant digits, or whole from 1000. */
function digits(number) {
  if (number >= 999.5) return number.toFixed(0);
  if (!number || number >= 1e-6) return String(Number(number.toPrecision(3)));
  return number.toFixed(2 - Math.floor(Math.log10(number))).replace(/\.?0+$/, ""); // no exponent
}

/** A time of so many microseconds; as seconds_text of ggsched/units.py writes it. */
function timeText(us) {
  const [unit, factor] = TIMES.find(([, f]) => us && Math.abs(us) / f < 999.5) || TIMES[3];
  return `${us < 0 ? "-" : ""}${digits(Math.abs(us) / factor)} ${unit}`;
}

/** A mark on a time axis: with the unit and the digits that steps of `step` need. */
function markText(us, step) {
  const [unit, factor] = TIMES.findLast(([, f]) => f <= Math.max(Math.abs(us), step)) || TIMES[0];
  const places = Math.max(0, Math.min(6, Math.ceil(-Math.log10(step / factor) - 1e-9)));
  return `${(us / factor || 0).toFixed(places).replace(/^-(0(\.0*)?)$/, "$1")} ${unit}`;
}

/** As nbytes_text of ggsched/units.py. */
function bytesText(count) {
  if (Math.abs(count) < 1024) return `${count} B`;
  const power = [1, 2, 3].find((n) => Math.abs(count) / 1024 ** n < 1023.95) || 4;
  return `${(count / 1024 ** power).toFixed(1)} ${["KiB", "MiB", "GiB", "TiB"][power - 1]}`;
}

/** Bytes per second, as rate_text of ggsched/units.py. */
function rateText(rate) {
  const prefixes = ["", "k", "M", "G", "T", "P"];
  let power = 0;
  while (rate / 1000 ** power >= 999.5 && power + 1 < prefixes.length) power += 1;
  return `${digits(rate / 1000 ** power)} ${prefixes[power]}B/s`;
}

function shareText(share) {
  return `${(100 * share).toFixed(1)}%`;
}

function countText(count) {
  return String(count).replace(/\B(?=(\d{3})+$)/g, "\u202f");
}

/** A colour as a pixel of an ImageData: bytes R, G, B, A of a little-endian number. */
function pixelOf(text) {
  if (!pixels.has(text)) {
    probe.clearRect(0, 0, 1, 1);
    probe.fillStyle = text;
    probe.fillRect(0, 0, 1, 1);
    const [r, g, b] = probe.getImageData(0, 0, 1, 1).data;
    pixels.set(text, (255 << 24 | b << 16 | g << 8 | r) >>> 0);
  }
  return pixels.get(text);
}

const pixels = new Map();
const probe = Object.assign(document.createElement("canvas"), { width: 1, height: 1 })
  .getContext("2d", { willReadFrequently: true });

/** Pixels that are computed and then drawn at once, however many things they show. */
class Raster {
  constructor() {
    this.canvas = document.createElement("canvas");
    this.context = this.canvas.getContext("2d");
  }

  /** Begin with nothing on it. */
  begin(width, height) {
    if (this.width !== width || this.height !== height) {
      this.image = this.context.createImageData(width, height);
      Object.assign(this.canvas, { width, height });
      this.at = new Uint32Array(this.image.data.buffer);
      [this.width, this.height] = [width, height];
    } else this.at.fill(0);
  }

  /** Fill [x, right) by [y, bottom), whole pixels, cut to what there is. */
  fill(x, right, y, bottom, pixel) {
    const from = Math.max(0, x), to = Math.min(this.width, right);
    const last = Math.min(this.height, bottom);
    if (from >= to) return;
    const { at, width } = this;
    for (let line = Math.max(0, y); line < last; line += 1) {
      const base = line * width;
      if (to - from > 32) at.fill(pixel, base + from, base + to);
      else for (let k = base + from; k < base + to; k += 1) at[k] = pixel; // quicker than a call
    }
  }

  draw(context, x, y, width, height) {
    this.context.putImageData(this.image, 0, 0);
    context.imageSmoothingEnabled = false;
    context.drawImage(this.canvas, x, y, width, height);
  }
}

/** A text in parts: names of links, such as `host->sim:0`, stay on one line. */
function withLinks(text) {
  return text.split(/(\S+->[^\s,.;]+)/).map((part, i) => (i % 2 ? el("span", { class: "link" }, part) : part));
}

/** Make an element. Children are elements or texts; nothing is ever read as HTML. */
function el(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "style") made.style.cssText = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

let palette = null;

/** Return a colour of the style sheet by its name; forgotten when light becomes dark. */
function colour(name) {
  if (!palette) palette = new Map();
  if (!palette.has(name)) {
    palette.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
  }
  return palette.get(name);
}

function kindColour(kind) {
  return colour(COLOUR[kind] || "--wait");
}

/** The first index whose value is above a limit, in a sorted array. */
function above(sorted, limit) {
  let low = 0, high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] > limit) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** A text shortened so that it fits a width, or "" if nothing of it would be left. */
function fitted(context, text, width) {
  if (width < 14) return "";
  if (context.measureText(text).width <= width) return text;
  let length = Math.floor((text.length * width) / context.measureText(text).width);
  while (length > 1 && context.measureText(`${text.slice(0, length)}…`).width > width) length -= 1;
  return length > 2 ? `${text.slice(0, length)}…` : "";
}

/** A name shortened likewise at its beginning: devices and streams differ at the end. */
function fittedEnd(context, name, width) {
  const whole = context.measureText(name).width;
  let length = whole > width ? Math.floor((name.length * width) / whole) : name.length;
  if (length === name.length) return name;
  while (length > 1 && context.measureText(`…${name.slice(-length)}`).width > width) length -= 1;
  return `…${name.slice(-length)}`;
}

/** A count with its noun, as "1 node" and "2 nodes". */
function countOf(count, noun) {
  return `${countText(count)} ${noun}${count === 1 ? "" : "s"}`;
}

const tip = document.getElementById("tip");

/** Show lines near the pointer, or nothing. */
function showTip(lines, event) {
  tip.hidden = !lines;
  if (!lines) return;
  tip.replaceChildren(...lines.filter(Boolean).map((line) => el("div", {}, line)));
  const box = tip.getBoundingClientRect();
  const left = Math.min(event.clientX + 14, innerWidth - box.width - 8);
  const over = event.clientY + 18 + box.height > innerHeight;
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${Math.max(4, over ? event.clientY - box.height - 10 : event.clientY + 18)}px`;
}
