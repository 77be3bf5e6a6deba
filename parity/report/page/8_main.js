// What is chosen, and the address that says so: `#LINE.COLUMN`.
const now = { line: null, column: 0 };

function select(line, column, { write = true } = {}) {
  now.line = line;
  now.column = column;
  const address = `#${line.index}.${column}`;
  if (write && location.hash !== address) history.replaceState(null, "", address);
  drawHeat();
  drawDepth();
  drawSite();
  const i = run.cell(line.index, column);
  byId("told").textContent = `${place(line)}, ${stepName(run.steps[column])} ${line.branch}: ` + (i < 0 ? "not observed" : `${VERDICTS[run.verdict(i)]}, ${times(run.ratio[i])} its floor`);
}

function followAddress(scroll) {
  const found = /^#(\d+)\.(\d+)$/.exec(location.hash);
  if (!found) return false;
  const [, l, c] = found.map(Number);
  if (!run.lines[l] || c >= run.width) return false;
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
  add(ratioColour(0.1), "0.1×"); add(ratioColour(1), "1×"); add(ratioColour(LIMIT), `${LIMIT}×: the limit`);
  add(ratioColour(10), "10×"); add(ratioColour(1000), "1000×"); add(ratioColour(1e6), "more");
  add(colours.harmless, "harmless (a declared setting explains it)"); add(colours.none, "no floor"); add(colours.apart, "padding, which never decides");
}

function begin() {
  byId("steps-what").addEventListener("change", drawSteps);
  const origin = /^(\d+)\.(\d+)$/.exec(page.origin || "");
  const [line, column] = origin ? [run.lines[+origin[1]], +origin[2]] : failures()[0] || [null, 0];
  Object.assign(now, { line, column });
  offerFilters();
  drawAll();
  addEventListener("hashchange", () => followAddress(true));
  // A link to the place that is chosen already changes no address.
  document.addEventListener("click", (event) => { const link = event.target.closest("a[href^='#']"); if (link && link.hash === location.hash) followAddress(true); });
  followAddress(true);
  document.documentElement.dataset.ready = "yes";
}
begin();
