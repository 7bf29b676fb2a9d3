// The head of the page: what runs where, bytes over each link, what limits, what would help.

function fillHead() {
  document.getElementById("title").textContent = D.title;
  const what = D.isExpected
    ? "What the cost model expects of one run. Nothing has run."
    : D.clock === "simulated" ? "Runs on simulated devices, in simulated time." : "Runs, as they were measured.";
  const rates = D.expected.map((e) => e.rates).find(Boolean);
  document.getElementById("subtitle").textContent = [
    what, D.account.estimated && "Times that nobody measured are estimated.", rates && `Rates: ${rates}.`,
  ].filter(Boolean).join(" ");
}

function fillSummary() {
  const { account: a, run, limit, places, advice } = D.opening;
  const one = run < 0 ? "" : D.isExpected ? "one run, expected" : D.runs.length > 1
    ? `run ${run}, the fastest of ${D.plans[D.runs[run][0]] ? D.plans[D.runs[run][0]].name : "its plan"}` : "one run";
  const moved = [...a.paths, ...a.reads].reduce((sum, p) => sum + p.bytes, 0);
  const tiles = [
    [timeText(1e6 * a.window_s), one || "in all"],
    [shareText(a.bubble), a.stages < 2 ? "idle"
      : `idle; ${shareText(a.ideal_bubble)} with ${a.stages} equal stages and ${a.in_flight}`],
    [bytesText(moved), "moved"],
    [countText(a.host_syncs), `host syncs, ${timeText(1e6 * a.host_sync_s)}`],
  ];
  if (D.runs.length > 1) tiles.push([countText(D.runs.length), `runs of plans, ${timeText(1e6 * D.account.window_s)} in all`]);
  document.getElementById("summary").append(
    el("p", { id: "limit" }, ...withLinks(limit)),
    el("div", { id: "tiles" }, ...tiles.map(([value, name]) => el("div", { class: "tile" }, el("b", {}, value), el("span", {}, name)))),
    el("div", { class: "columns" },
      el("div", {}, ...placeTable(places, a.devices), ...pathTable(a, "links")),
      el("div", {}, ...adviceList(advice, a.window_s))),
  );
}

function placeTable(places, devices) {
  const accounts = new Map(devices.map((d) => [d.device, d]));
  const known = places.length ? places : devices.map((d) => ({ device: d.device, nodes: 0, layers: "", resident: 0 }));
  if (!known.length) return [];
  const rows = known.map((p) => {
    const what = [p.layers, p.nodes && countOf(p.nodes, "node"), p.resident && `${bytesText(p.resident)} of weights and states`];
    const d = accounts.get(p.device);
    return row("td", [p.device, el("td", { class: "words" }, what.filter(Boolean).join(", ")), d ? shareText(d.shares.busy) : "",
      el("td", { class: "shares" }, d ? shareBar(d) : "")]);
  });
  return [el("h3", {}, "What runs where"), el("table", { id: "places" },
    el("thead", {}, row("th", ["device", el("th", { class: "words" }, "runs and holds"), "busy", ""])), el("tbody", {}, ...rows)), shareLegend()];
}

function adviceList(advice, windowS) {
  if (!advice.length) return [el("h3", {}, "No change that the rules know would help much")];
  const items = advice.map(([what, why, saves]) =>
    el("li", {}, el("b", {}, `up to ${timeText(saves)} (${shareText(saves / (1e6 * windowS))}): `), `${what}. `, el("span", { class: "soft" }, ...withLinks(why))));
  return [el("h3", {}, "What would help most"), el("ol", {}, ...items)];
}
