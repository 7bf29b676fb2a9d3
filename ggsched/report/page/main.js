// Put the page together.

fillHead();
fillSummary();
fillAccount();
const timeView = new View(axis.place(D.begin), axis.place(D.end));
const runs = new Runs(timeView);
const timelinePart = new Timeline(timeView, runs);
const memoryPart = new MemoryMap(timeView, runs);
const splitPart = new SplitGraph(runs);
if (D.opening.run >= 0) runs.show(D.opening.run);
const stages = [timelinePart.stage, memoryPart.stage, splitPart.stage].filter(Boolean);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  palette = null;
  for (const stage of stages) stage.ask();
});
for (const stage of stages) stage.ask();
// For tests: what was drawn, and how long it took.
window.ggsched = { timeline: timelinePart, memory: memoryPart, splits: splitPart, stages, view: timeView, runs, axis };
