// Put the page together.

fillHead();
fillAccount();
const timeView = new View(D.begin, D.end);
if (D.runs.length) timeView.begin(ORIGIN, Math.max(...D.runs.map(([, , end]) => end)));
const timelinePart = new Timeline(timeView);
const memoryPart = new MemoryMap(timeView);
const splitPart = new SplitGraph();
const stages = [timelinePart.stage, memoryPart.stage, splitPart.stage].filter(Boolean);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  palette = null;
  for (const stage of stages) stage.ask();
});
for (const stage of stages) stage.ask();
// For tests: what was drawn, and how long it took.
window.ggsched = { timeline: timelinePart, memory: memoryPart, splits: splitPart, stages, view: timeView };
