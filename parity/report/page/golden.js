// A golden's map: sites down, steps across, coloured by magnitude; the chosen site and its course over the steps.
const golden = page.golden, width = golden.steps.length;
const HELD = 4, BAD = 8, KINDS = ["tensor", "none", "scalar"];
const state = bytesOf(golden.state), at = placesOf(golden.at, state.length);
const table = new Int32Array(golden.lines.length * width).fill(-1);
at.forEach((place, i) => { table[place] = i; });
const numbers = Object.fromEntries(Object.entries(golden.numbers).map(([name, text]) => [name, floats(text, state.length)]));
const lines = golden.lines.map(([stage, branch, site, call, shape, dtype], index) => ({ index, stage, branch, site, call, shape, dtype, bad: false }));
at.forEach((place, i) => { if (state[i] & BAD) lines[Math.floor(place / width)].bad = true; });
// The scale is that of the modules' tensors, a decade wide at least: a timestep of 1000 would flatten all of them.
const ofModules = Array.from(numbers.rms).filter((x, i) => x > 0 && Number.isFinite(x) && !lines[Math.floor(at[i] / width)].site.startsWith("loop:"));
const known = ofModules.map(Math.log10).sort((a, b) => a - b);
const ends = known.length ? [known[Math.floor(0.02 * (known.length - 1))], known[Math.ceil(0.98 * (known.length - 1))]] : [0, 1];
if (ends[1] - ends[0] < 1) { const middle = (ends[0] + ends[1]) / 2; ends.splice(0, 2, middle - 0.5, middle + 0.5); }
const now = { line: null, column: 0, rows: lines, rowHeight: 1, cellWidth: 1, gutter: 0 };
const TOP = 16, canvas = byId("map");
const cell = (line, column) => table[line.index * width + column];

const stops = () => dark.matches ? ["#16212b", "#2f6389", "#cfe6f7"] : ["#eef4f9", "#9cc3e0", "#123f66"];
const share = (x) => (Math.log10(x) - ends[0]) / Math.max(ends[1] - ends[0], 1e-6);

function colourOf(i, colours) {
  if (state[i] & BAD) return colours.beyond[1];
  if ((state[i] & 3) !== 0) return colours.apart;
  return numbers.rms[i] > 0 ? mix(stops(), share(numbers.rms[i])) : colours.none;
}

function shownRows() {
  const words = byId("search").value.toLowerCase().split(/\s+/).filter(Boolean), branch = byId("branch").value;
  return lines.filter((line) => (!branch || line.branch === branch) && (!byId("bad").checked || line.bad) &&
    words.every((word) => `${line.site} ${line.branch} ${line.stage}`.toLowerCase().includes(word)));
}

function drawMap() {
  const colours = ramp(), rows = now.rows = shownRows(), full = Math.max(200, canvas.parentElement.clientWidth);
  const rowHeight = now.rowHeight = Math.min(18, Math.max(560 / Math.max(rows.length, 1), 0.01));
  const plot = Math.max(40, Math.ceil(rowHeight * rows.length));
  const gutter = now.gutter = Math.round(Math.min(320, full * (full < 500 ? 0.42 : 0.36)));
  const cellWidth = now.cellWidth = Math.min((full - gutter) / Math.max(width, 1), 160), pen = sharp(canvas, full, plot + TOP + 4);
  pen.clearRect(0, 0, full, plot + TOP + 4);
  const bad = [];
  const paint = (i, row, column, least) => {
    pen.fillStyle = colourOf(i, colours);
    pen.fillRect(gutter + column * cellWidth, TOP + row * rowHeight, Math.max(cellWidth - (cellWidth > 6 ? 1 : 0), 0.6), Math.max(rowHeight - (rowHeight > 6 ? 1 : 0), least));
  };
  rows.forEach((line, row) => {
    for (let column = 0; column < width; column++) {
      const i = cell(line, column);
      if (i >= 0) state[i] & BAD ? bad.push([i, row, column]) : paint(i, row, column, 0.6);
    }
  });
  for (const [i, row, column] of bad) paint(i, row, column, 2);  // on top, so that one among thousands is seen
  labels(pen, rows, colours, full);
  mark(pen, colours);
  byId("map-note").textContent = rows.length ? `${rows.length} of ${lines.length} sites, ${width} ${width === 1 ? "step" : "steps"}` : "No site matches.";
}

function labels(pen, rows, colours, full) {
  const { gutter, rowHeight, cellWidth } = now, most = Math.max(4, Math.floor((gutter - 10) / 6.7));
  const fitted = (text) => text.length > most ? "…" + text.slice(1 - most) : text;
  pen.fillStyle = colours.dim;
  pen.font = "11px ui-monospace, monospace";
  let free = -Infinity, group = null;
  rows.forEach((line, row) => {
    const parts = line.site.split(":")[0].split("."), name = parts.slice(0, /^\d+$/.test(parts[1] || "") ? 2 : 1).join(".") || "(model)";
    const y = TOP + row * rowHeight, text = rowHeight >= 11 ? `${line.site} ${line.branch}`.trim() : name;
    if (y < free || (rowHeight < 11 && name === group)) return;
    group = name;
    pen.fillText(fitted(text), 0, y + Math.min(rowHeight, 14) - (rowHeight >= 11 ? 4 : -8));
    free = y + 12;
  });
  let clear = 0;
  golden.steps.forEach((step, column) => {
    const x = gutter + column * cellWidth, text = step < 0 ? "out" : String(step);
    if (x < clear || x + 7 * text.length > full) return;
    pen.fillText(text, x, 11);
    clear = x + 7 * text.length + 12;
  });
}

function mark(pen, colours) {
  const row = now.rows.indexOf(now.line);
  if (row < 0) return;
  const height = Math.max(now.rowHeight, 7), y = TOP + (row + 0.5) * now.rowHeight - height / 2;
  pen.strokeStyle = colours.mark;
  pen.lineWidth = 2;
  pen.strokeRect(now.gutter + now.column * now.cellWidth - 1, y - 1, Math.max(now.cellWidth, 4) + 1, height + 1);
}

function drawSite() {
  const { line, column } = now, box = byId("site");
  box.hidden = !line;
  if (!line) return;
  byId("site-name").textContent = place(line);
  byId("site-where").textContent = [line.stage, stepName(golden.steps[column]), line.branch].filter(Boolean).join(", ");
  const facts = byId("site-facts"), i = cell(line, column);
  facts.replaceChildren();
  const add = (name, text) => facts.append(make("dt", {}, name), make("dd", {}, text));
  if (i < 0) add("recorded", "not at this step");
  else if ((state[i] & 3) !== 0) add(KINDS[state[i] & 3], golden.texts[line.index * width + column] ?? "–");
  else {
    add("shape", "[" + line.shape.join(", ") + "]");
    add("dtype", line.dtype);
    add("root mean square", sci(numbers.rms[i]));
    add("largest magnitude", sci(numbers.largest[i]));
    add("floor", Number.isNaN(numbers.floor[i]) ? "not measured" : sci(numbers.floor[i]) + " relative L2");
    add("value", state[i] & HELD ? "held whole" : "not held (its sketch and moments are)");
    if (state[i] & BAD) add("not finite", "holds NaN or Inf");
  }
  const columns = golden.steps.map((_, c) => c).filter((c) => cell(line, c) >= 0), pick = (name) => positive(columns.map((c) => numbers[name][cell(line, c)]));
  byId("site-chart").hidden = columns.length < 2;
  if (columns.length > 1) chart(byId("site-chart"), columns.map((c) => golden.steps[c]), [{ label: "root mean square", values: pick("rms"), role: "good" }, { label: "largest magnitude", values: pick("largest"), role: "other", dash: [4, 4] }], { onpick: (n) => select(line, columns[n]) });
}

function drawLoop() {
  byId("loop-chart").hidden = byId("loop-bar").hidden = golden.loop.length < 2;
  if (golden.loop.length < 2) return;
  const what = byId("loop-what").value, steps = golden.loop.map((row) => row.step), of = (name) => golden.loop.map((row) => row[name] ?? null);
  if (what === "magnitudes") chart(byId("loop-chart"), steps, [{ label: "noise_pred", values: positive(of("noise_pred").map((x) => x ?? NaN)), role: "good" }, { label: "latents after", values: positive(of("latents.after").map((x) => x ?? NaN)), role: "other", dash: [4, 4] }]);
  else chart(byId("loop-chart"), steps, [{ label: what, values: of(what), role: "good" }], { log: false });
}

function drawLegend() {
  const colours = ramp(), box = byId("legend");
  box.replaceChildren();
  const add = (colour, text) => { const swatch = make("span", { class: "swatch" }); swatch.style.background = colour; box.append(make("span", {}, swatch, " " + text)); };
  for (const part of [0, 0.5, 1]) add(mix(stops(), part), "rms " + (10 ** (ends[0] + part * (ends[1] - ends[0]))).toExponential(1));
  add(colours.none, "zero"); add(colours.apart, "None or a scalar"); add(colours.beyond[1], "NaN or Inf");
}

function select(line, column) {
  Object.assign(now, { line, column });
  drawMap();
  drawSite();
}

function drawAll() { drawMap(); drawSite(); drawLoop(); drawLegend(); }

canvas.addEventListener("click", (event) => {
  const box = canvas.getBoundingClientRect(), row = Math.floor((event.clientY - box.top - TOP) / now.rowHeight);
  const column = Math.min(Math.max(Math.floor((event.clientX - box.left - now.gutter) / now.cellWidth), 0), width - 1);
  if (now.rows[row]) select(now.rows[row], column);
});
canvas.addEventListener("keydown", (event) => {
  const jump = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
  if (!jump || !now.rows.length) return;
  event.preventDefault();
  const row = Math.min(Math.max(now.rows.indexOf(now.line) + jump[0], 0), now.rows.length - 1);
  select(now.rows[row], Math.min(Math.max(now.column + jump[1], 0), width - 1));
});
for (const [name, what] of [["search", "input"], ["branch", "change"], ["bad", "change"]]) byId(name).addEventListener(what, drawMap);
byId("loop-what").addEventListener("change", drawLoop);
const branches = [...new Set(lines.map((line) => line.branch))].filter(Boolean);
byId("branch").replaceChildren(make("option", { value: "" }, "every branch"), ...branches.map((value) => make("option", { value }, value)));
byId("branch").hidden = branches.length < 2;
now.line = lines.find((line) => line.bad) || lines.find((line) => line.site === "loop:noise_pred" && !line.branch) || lines[0] || null;
drawAll();
document.documentElement.dataset.ready = "yes";
