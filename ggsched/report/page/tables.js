// The accounts of all runs.

const MOST_OPS = 12;
const PARTS = [
  ["busy", "busy", "--launch"], ["copy", "waiting for copies", "--copy"],
  ["peer", "waiting for devices", "--wait"], ["host", "waiting for the host", "--sync"],
  ["done", "nothing to do", "--done"],
];

function fillAccount() {
  document.getElementById("account").append(
    deviceTable(),
    shareLegend(),
    el("div", { class: "columns" },
      el("div", {}, ...planTable(), ...expectedTable(), ...(D.runs.length > 1 ? [...pathTable(D.account, "paths"), allAdvice()] : [])),
      el("div", {}, ...opTable())),
  );
}

function allAdvice() {
  return el("div", { id: "advice" }, ...adviceList(D.advice, D.account.window_s));
}

function shareLegend() {
  return el("div", { class: "legend" }, ...PARTS.map(([, text, name]) => el("span", {}, el("i", { style: `background:var(${name})` }), text)));
}

/** How a device spent its time, as a bar. */
function shareBar(d) {
  return el("div", { class: "stack" }, ...PARTS.map(([name, text, tone]) =>
    el("i", { title: `${text}: ${shareText(d.shares[name])}`, style: `width:${100 * d.shares[name]}%;background:var(${tone})` })));
}

/** A time with its share; two lines where one has no room. */
function withShare(seconds, share) {
  return el("td", {}, el("span", {}, timeText(1e6 * seconds)), " ", el("span", { class: "soft" }, `(${shareText(share)})`));
}

function row(tag, cells) {
  return el("tr", {}, ...cells.map((cell) => (cell instanceof Node ? cell : el(tag, {}, cell))));
}

function deviceTable() {
  const head = row("th", ["device", "busy", "copies", "devices", "host", "done", el("th", { class: "shares" }, "")]);
  const rows = D.account.devices.map((d) => row("td", [
    d.device, ...PARTS.map(([name]) => withShare(d[`${name}_s`], d.shares[name])), el("td", { class: "shares" }, shareBar(d)),
  ]));
  return el("table", { id: "devices" }, el("thead", {}, head), el("tbody", {}, ...rows));
}

function pathTable({ paths, reads }, id) {
  if (!paths.length && !reads.length) return [el("h3", {}, "No bytes were moved")];
  const rows = paths.map((p) => row("td", [
    p.path, bytesText(p.bytes), countText(p.copies), timeText(1e6 * p.seconds), p.seconds > 0 ? rateText(p.bytes / p.seconds) : "",
  ]));
  // What launches read of other devices, as sums over devices do; their time includes computing.
  const inPlace = reads.map((p) => row("td", [
    `${p.path}, by launches`, bytesText(p.bytes), countText(p.launches), timeText(1e6 * p.seconds), "",
  ]));
  return [el("h3", {}, "Bytes over each link"), el("table", { id },
    el("thead", {}, row("th", ["link", "bytes", "copies", "time", "rate"])), el("tbody", {}, ...rows, ...inPlace))];
}

function planTable() {
  const { plans } = D.account;
  if (!plans.length) return [];
  const isPredicted = plans.some((p) => p.expected_s);
  const predicted = (p, text) => (isPredicted ? [p.expected_s ? text : "–"] : []);
  const rows = plans.map((p) => row("td", [
    p.name, countText(p.runs), timeText(1e6 * p.best_s), ...predicted(p, timeText(1e6 * p.expected_s)),
    shareText(p.idle), ...predicted(p, shareText(p.expected_idle)),
  ]));
  const head = isPredicted ? ["best", "predicted best", "idle", "predicted idle"] : ["best", "idle"];
  return [el("h3", {}, "Runs of plans"), el("table", { id: "plans" },
    el("thead", {}, row("th", ["plan", "runs", ...head])), el("tbody", {}, ...rows))];
}

function opTable() {
  const ops = D.account.ops;
  if (!ops.length) return [];
  const total = ops.reduce((sum, o) => sum + o.seconds, 0);
  const isPredicted = ops.some((o) => o.expected_s !== null);
  const predicted = (o) => (o.expected_s === null ? "" : timeText(1e6 * o.expected_s));
  const rows = ops.map((o) => row("td", [
    o.op, o.device, countText(o.nodes), timeText(1e6 * o.seconds), ...(isPredicted ? [predicted(o)] : []),
    shareText(o.seconds / total),
  ]));
  const table = (id, some) => el("table", { id },
    el("thead", {}, row("th", ["op", "device", "nodes", "time", ...(isPredicted ? ["predicted"] : []), "share"])), el("tbody", {}, ...some));
  const rest = rows.slice(MOST_OPS);
  return [el("h3", {}, "Time by op"), table("ops", rows.slice(0, MOST_OPS)),
    ...(rest.length ? [el("details", {}, el("summary", {}, `and ${rest.length} more`), table("more-ops", rest))] : [])];
}

/** Expected beside measured: all runs of a plan, device by device. */
function expectedTable() {
  const rows = [];
  D.expected.forEach((e, plan) => {
    if (!e.command.length) return;
    const runs = D.runs.map((r, i) => [r, i]).filter(([r]) => r[0] === plan);
    const numbers = new Set(runs.map(([, i]) => i));
    const measured = new Map(), expected = new Map();
    D.spans.run.forEach((run, i) => {
      if (!numbers.has(run) || D.spans.kind[i] !== "launch") return;
      const device = D.tracks[D.spans.track[i]].device;
      measured.set(device, (measured.get(device) || 0) + D.spans.end[i] - D.spans.start[i]);
    });
    const kindOf = new Map(D.spans.command.map((command, i) => [command, i]).filter(([, i]) => numbers.has(D.spans.run[i]) && D.spans.kind[i] === "launch"));
    e.command.forEach((command, i) => {
      if (!kindOf.has(command)) return;
      const device = D.tracks[e.track[i]].device;
      expected.set(device, (expected.get(device) || 0) + (e.end[i] - e.start[i]) * runs.length);
    });
    for (const [device, time] of measured) {
      const guess = expected.get(device) || 0;
      rows.push(row("td", [
        `${D.plans[plan].name}, ${device}, ${countOf(runs.length, "run")}`, timeText(guess),
        ...(time > 0 ? [timeText(time), guess > 0 ? `${(time / guess).toFixed(2)}×` : "–"] : ["–", "–"]),
      ]));
    }
  });
  if (!rows.length) return [];
  return [el("h3", {}, "Expected and measured launches"),
    el("table", { id: "expected" }, el("thead", {}, row("th", ["", "expected", "measured", "ratio"])), el("tbody", {}, ...rows))];
}
