// The head of the page and the accounts.

const PARTS = [
  ["busy", "busy", "--launch"], ["copy", "waiting for copies", "--copy"],
  ["peer", "waiting for devices", "--wait"], ["host", "waiting for the host", "--sync"],
  ["done", "nothing to do", "--done"],
];

function fillHead() {
  const a = D.account;
  document.getElementById("title").textContent = D.title;
  const what = D.isExpected
    ? "What the cost model expects of one run. Nothing has run."
    : D.clock === "simulated" ? "A run on simulated devices, in simulated time." : "A run, as it was measured.";
  const rates = D.expected.map((e) => e.rates).find(Boolean);
  document.getElementById("subtitle").textContent = [
    what, a.estimated && "Times that nobody measured are estimated.", rates && `Rates: ${rates}.`,
  ].filter(Boolean).join(" ");
  const moved = [...a.paths, ...a.reads].reduce((sum, p) => sum + p.bytes, 0);
  const tiles = [
    [timeText(1e6 * a.window_s), D.isExpected ? "expected" : "in all"],
    [countText(a.runs), a.runs === 1 ? "run of a plan" : "runs of plans"],
    [countText(a.commands), "commands"],
    [shareText(a.bubble), a.stages < 2 ? "idle"
      : `idle; ${shareText(a.ideal_bubble)} with ${a.stages} equal stages and ${a.in_flight}`],
    [bytesText(moved), "moved"],
    [countText(a.host_syncs), `host syncs, ${timeText(1e6 * a.host_sync_s)}`],
  ];
  document.getElementById("tiles").append(
    ...tiles.map(([value, name]) => el("div", { class: "tile" }, el("b", {}, value), el("span", {}, name))),
  );
}

function fillAccount() {
  const legend = PARTS.map(([, text, name]) => el("span", {}, el("i", { style: `background:var(${name})` }), text));
  const box = document.getElementById("account");
  box.append(
    el("div", { class: "legend" }, ...legend),
    el("div", { class: "scroll" }, deviceTable()),
    el("div", { class: "columns" }, el("div", {}, ...advice(), ...expectedTable()), el("div", {}, ...planTable(), ...pathTable(), ...opTable())),
  );
}

function row(tag, cells) {
  return el("tr", {}, ...cells.map((cell) => (cell instanceof Node ? cell : el(tag, {}, cell))));
}

function deviceTable() {
  const head = row("th", ["device", "busy", "copies", "devices", "host", "done", el("th", {}, "")]);
  const rows = D.account.devices.map((d) => {
    const bars = PARTS.map(([name, text, tone]) =>
      el("i", { title: `${text}: ${shareText(d.shares[name])}`, style: `width:${100 * d.shares[name]}%;background:var(${tone})` }));
    return row("td", [
      d.device, ...PARTS.map(([name]) => `${timeText(1e6 * d[`${name}_s`])} (${shareText(d.shares[name])})`),
      el("td", { class: "shares" }, el("div", { class: "stack" }, ...bars)),
    ]);
  });
  return el("table", { id: "devices" }, el("thead", {}, head), el("tbody", {}, ...rows));
}

function pathTable() {
  const { paths, reads } = D.account;
  if (!paths.length && !reads.length) return [el("h3", {}, "No bytes were moved")];
  const rows = paths.map((p) => row("td", [
    p.path, bytesText(p.bytes), countText(p.copies), timeText(1e6 * p.seconds),
    p.seconds > 0 ? `${bytesText(Math.round(p.bytes / p.seconds))}/s` : "",
  ]));
  // What launches read of other devices, as sums over devices do; their time includes computing.
  const inPlace = reads.map((p) => row("td", [
    `${p.path}, by launches`, bytesText(p.bytes), countText(p.launches), timeText(1e6 * p.seconds), "",
  ]));
  return [el("h3", {}, "Bytes by path"), el("table", { id: "paths" },
    el("thead", {}, row("th", ["path", "bytes", "copies", "time", "rate"])), el("tbody", {}, ...rows, ...inPlace))];
}

function planTable() {
  const { plans } = D.account;
  if (!plans.length) return [];
  const rows = plans.map((p) => row("td", [
    p.name, countText(p.runs), timeText(1e6 * p.best_s), p.expected_s ? timeText(1e6 * p.expected_s) : "",
    shareText(p.idle), p.expected_s ? shareText(p.expected_idle) : "",
  ]));
  return [el("h3", {}, "Runs of plans"), el("table", { id: "plans" },
    el("thead", {}, row("th", ["plan", "runs", "best", "predicted", "idle", "predicted"])), el("tbody", {}, ...rows))];
}

function opTable() {
  const ops = D.account.ops;
  if (!ops.length) return [];
  const total = ops.reduce((sum, o) => sum + o.seconds, 0);
  const rows = ops.map((o) => row("td", [
    o.op, o.device, countText(o.nodes), timeText(1e6 * o.seconds), shareText(o.seconds / total),
  ]));
  return [el("h3", {}, "Time by op"), el("table", { id: "ops" },
    el("thead", {}, row("th", ["op", "device", "nodes", "time", "share"])), el("tbody", {}, ...rows))];
}

function advice() {
  if (!D.advice.length) return [el("h3", {}, "No change that the rules know would help much")];
  const items = D.advice.map(([what, why, saves]) =>
    el("li", {}, el("b", {}, `up to ${timeText(saves)}: `), `${what}. `, el("span", { class: "soft" }, why)));
  return [el("h3", {}, "What would help most"), el("ol", { id: "advice" }, ...items)];
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
      rows.push(row("td", [`plan ${plan}, ${device}, ${runs.length} runs`, timeText(guess), timeText(time), guess > 0 ? `${(time / guess).toFixed(2)}×` : ""]));
    }
  });
  if (!rows.length) return [];
  return [el("h3", {}, "Expected and measured launches"),
    el("table", { id: "expected" }, el("thead", {}, row("th", ["", "expected", "measured", "ratio"])), el("tbody", {}, ...rows))];
}
