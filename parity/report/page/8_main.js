// What is chosen, and the address that says so: `#RUN.LINE.COLUMN`.
const now = { run: runs[0], against: null, line: null, column: 0 };

function select(line, column, { write = true } = {}) {
  now.line = line;
  now.column = column;
  const address = `#${runs.indexOf(now.run)}.${line.index}.${column}`;
  if (write && location.hash !== address) history.replaceState(null, "", address);
  drawHeat();
  drawDepth();
  drawSite();
  const i = now.run.cell(line.index, column);
  byId("told").textContent = `${place(line)}, ${stepName(now.run.steps[column])} ${line.branch}: ` + (i < 0 ? "not observed" : `${VERDICTS[now.run.verdict(i)]}, ${times(now.run.ratio[i])} its floor`);
}

function followAddress(scroll) {
  const found = /^#(\d+)\.(\d+)\.(\d+)$/.exec(location.hash);
  if (!found) return false;
  const [, r, l, c] = found.map(Number), run = runs[r];
  if (!run || !run.lines[l] || c >= run.width) return false;
  if (run !== now.run) show(run);
  if (!heatMap.rows.includes(run.lines[l])) clearFilters();
  select(run.lines[l], c, { write: false });
  if (scroll) byId("site").scrollIntoView({ block: "nearest", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
  return true;
}

function clearFilters() {
  Object.assign(filter, { text: "", branch: "", stage: "", failing: false, under: "" });
  byId("search").value = byId("filter-branch").value = byId("filter-stage").value = "";
  byId("failing").checked = false;
  byId("whole").hidden = true;
  drawTree();
  drawHeat();
}

function show(run, against = null) {
  const line = now.line, step = now.run.steps[now.column];
  Object.assign(now, { run, against, line: null, column: 0 });
  if (line) {
    const i = twin(run, line, step);
    if (i >= 0) Object.assign(now, { line: run.lines[Math.floor(run.at[i] / run.width)], column: run.at[i] % run.width });
  }
  for (const button of document.querySelectorAll("#runs button")) button.setAttribute("aria-pressed", String(button.run === run && button.against === against));
  offerFilters();
  drawAll();
}

function drawAll() {
  drawTree();
  drawHeat();
  drawSteps();
  drawDepth();
  drawSite();
  drawLegend();
}

function drawLegend() {
  const box = byId("legend");
  box.replaceChildren();
  const colours = ramp(), add = (colour, text) => { const mark = make("span", { class: "swatch" }); mark.style.background = colour; box.append(make("span", {}, mark, " " + text)); };
  if (now.against) { add(mix(colours.beyond, 0.6), `farther from its floor in ${now.against.name}`); add(mix(colours.within, 1), "nearer"); add(colours.apart, "alike"); add(colours.none, "only on one side"); return; }
  add(ratioColour(0.1), "0.1×"); add(ratioColour(1), "1×"); add(ratioColour(LIMIT), `${LIMIT}×: the limit`);
  add(ratioColour(10), "10×"); add(ratioColour(1000), "1000×"); add(ratioColour(1e6), "more");
  add(colours.harmless, "harmless (a declared setting explains it)"); add(colours.none, "no floor"); add(colours.apart, "padding, which never decides");
}

function begin() {
  if (runs.length > 1) {
    const [a, b] = runs, bar = byId("runs");
    bar.hidden = false;
    for (const [text, run, against] of [[a.name, a, null], [b.name, b, null], [`${b.name} against ${a.name}`, a, b]]) {
      const button = make("button", { type: "button", onclick: () => show(run, against) }, text);
      Object.assign(button, { run, against });
      bar.append(button);
    }
  }
  byId("steps-what").addEventListener("change", drawSteps);
  const origin = /^(\d+)\.(\d+)$/.exec(runs[0].origin || "");
  const [line, column] = origin ? [runs[0].lines[+origin[1]], +origin[2]] : failures(runs[0])[0] || [null, 0];
  Object.assign(now, { line, column });
  show(runs[0]);
  addEventListener("hashchange", () => followAddress(true));
  // A link to the place that is chosen already changes no address.
  document.addEventListener("click", (event) => { const link = event.target.closest("a[href^='#']"); if (link && link.hash === location.hash) followAddress(true); });
  followAddress(true);
  document.documentElement.dataset.ready = "yes";
}
begin();
