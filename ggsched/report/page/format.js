"use strict";
// The data of the page, and how numbers and elements are written.

const D = JSON.parse(document.getElementById("data").textContent);
// Times count from the first run on, or from the beginning where there is none.
const ORIGIN = D.runs.length ? Math.min(...D.runs.map(([, start]) => start)) : D.begin;
const FONT = "system-ui, 'Segoe UI', Roboto, Arial, sans-serif";
const COLOUR = {
  launch: "--launch", upload: "--copy", download: "--copy", copy: "--copy",
  wait: "--wait", barrier: "--wait", record: "--mark", sync: "--sync", host: "--host",
};

/** Times are microseconds. `step` is the finest difference that has to be seen. */
function timeText(us, step) {
  const size = Math.max(Math.abs(us), step || 0);
  const [unit, factor] =
    size >= 1e6 ? ["s", 1e6] : size >= 1e3 ? ["ms", 1e3] : size >= 1 || us === 0 ? ["µs", 1] : ["ns", 1e-3];
  const value = us / factor || 0; // no minus before a zero
  if (step) {
    const digits = Math.max(0, Math.min(6, Math.ceil(-Math.log10(step / factor) - 1e-9)));
    return `${value.toFixed(digits).replace(/^-(0(\.0*)?)$/, "$1")} ${unit}`;
  }
  return `${Number(value.toPrecision(4))} ${unit}`;
}

function bytesText(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let size = count, i = 0;
  while (Math.abs(size) >= 1024 && i + 1 < units.length) {
    size /= 1024;
    i += 1;
  }
  return i ? `${size.toFixed(1)} ${units[i]}` : `${count} B`;
}

function shareText(share) {
  return `${(100 * share).toFixed(1)} %`;
}

function countText(count) {
  return String(count).replace(/\B(?=(\d{3})+$)/g, "\u202f");
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
