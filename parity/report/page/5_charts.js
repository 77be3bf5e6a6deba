// Charts over steps and over depth, drawn by uPlot. What a logarithm has no place for (0, NaN) is a gap.
const charts = new Map();

const positive = (values) => Array.from(values, (x) => (x > 0 && Number.isFinite(x) ? x : null));
const limitOf = (floors) => Array.from(floors, (x) => (x > 0 && Number.isFinite(x) ? LIMIT * x : null));

// A chart in `where`; `lines` are {label, values, dash, width, role}; says so where there is nothing to draw.
function chart(where, xs, lines, { log = true, label = "step", onpick = null } = {}) {
  charts.get(where)?.destroy();
  charts.delete(where);
  where.replaceChildren();
  const drawn = lines.filter((line) => line.values.some((x) => x !== null && !Number.isNaN(x)));
  if (!drawn.length || !xs.length) { where.append(make("p", { class: "dim" }, "Nothing to draw: every value is zero or unknown.")); return; }
  const colours = ramp(), inks = { bad: colours.beyond[1], good: dark.matches ? "#6db3e0" : "#0b62a0", dim: colours.dim, other: colours.harmless };
  const axis = { stroke: colours.dim, grid: { stroke: colours.line, width: 1 }, ticks: { stroke: colours.line }, font: "11px system-ui, sans-serif" };
  const options = {
    width: Math.max(200, where.clientWidth), height: 220, cursor: { drag: { x: true, y: false } },
    scales: { x: { time: false, ...(xs.length === 1 ? { range: [xs[0] - 1, xs[0] + 1] } : {}) }, y: { distr: log ? 3 : 1 } },
    axes: [{ ...axis, values: (_, ticks) => ticks.map((t) => (Number.isInteger(t) ? t : "")) },
           { ...axis, size: 64, values: (_, ticks) => ticks.map((t) => (t === null ? "" : log ? t.toExponential(0) : +t.toPrecision(4))) }],
    series: [{ label }, ...drawn.map((line) => ({
      label: line.label, stroke: inks[line.role], width: line.width ?? 2, dash: line.dash, spanGaps: false,
      points: { show: xs.length === 1 || (xs.length < 40 && !line.dash), size: 6 }, value: (_, x) => (x === null || x === undefined ? "–" : log ? sci(x) : +x.toPrecision(5)),
    }))],
    hooks: onpick ? { ready: [(plot) => plot.over.addEventListener("click", () => plot.cursor.idx !== null && onpick(plot.cursor.idx))] } : {},
  };
  charts.set(where, new uPlot(options, [Array.from(xs), ...drawn.map((line) => Array.from(line.values, (x) => (x === undefined || Number.isNaN(x) ? null : x)))], where));
}

function measured(values, floors, labels = "") {
  return [
    { label: "difference" + labels, values: positive(values), role: "bad" },
    { label: "floor" + labels, values: positive(floors), role: "good", dash: [4, 4] },
    { label: `limit (${LIMIT}× floor)` + labels, values: limitOf(floors), role: "dim", dash: [10, 4], width: 1 },
  ];
}

function drawSteps() {
  const box = byId("steps-chart"), steps = run.drift.steps;
  byId("steps-section").hidden = !steps.length;
  if (!steps.length) return;
  const what = byId("steps-what").value, found = run.drift[what];
  const lines = measured(found.rel_l2, found.floor);
  if (what === "sigma" || what === "timestep") chart(box, steps, [{ label: "reference", values: run.drift[what].reference, role: "good" }, { label: "candidate", values: run.drift[what].candidate, role: "bad", dash: [6, 4] }], { log: false });
  else chart(box, steps, lines, { onpick: (index) => { const column = run.steps.indexOf(steps[index]); if (now.line && column >= 0) select(now.line, column); } });
}

// Error along depth: every site of the chosen step in execution order, of the filter's lines.
function drawDepth() {
  const column = now.column, lines = heatMap.rows.filter((line) => run.cell(line.index, column) >= 0 && run.verdict(run.cell(line.index, column)) !== APART);
  const pick = (name) => lines.map((line) => run[name][run.cell(line.index, column)]);
  byId("depth-what").textContent = run.width ? stepName(run.steps[column]) : "";
  chart(byId("depth-chart"), lines.map((_, i) => i), measured(pick("rel_l2"), pick("floor")), { label: "site", onpick: (index) => select(lines[index], column) });
}

dark.addEventListener("change", () => drawAll());
let resizing = 0;
let lastWidth = innerWidth;
addEventListener("resize", () => { clearTimeout(resizing); if (innerWidth !== lastWidth) resizing = setTimeout(() => { lastWidth = innerWidth; drawAll(); }, 120); });
