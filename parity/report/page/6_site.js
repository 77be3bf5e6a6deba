// One site: its numbers, its steps, and where in its rows it differs.
function drawSite() {
  const box = byId("site"), line = now.line;
  box.hidden = !line;
  if (!line) return;
  const column = now.column, i = run.cell(line.index, column), step = run.steps[column];
  byId("site-name").textContent = place(line);
  byId("site-where").textContent = [line.stage === "transformer" ? "" : line.stage, stepName(step), line.branch].filter(Boolean).join(", ");
  const facts = byId("site-facts");
  facts.replaceChildren();
  const add = (name, ...text) => facts.append(make("dt", {}, name), make("dd", {}, ...text));
  if (i < 0) add("observed", "not at this step");
  else {
    const verdict = VERDICTS[run.verdict(i)];
    add("verdict", make("span", { class: verdict }, SIGNS[verdict] + " " + verdict));
    add("difference", sci(run.rel_l2[i]) + " relative L2");
    add("floor", sci(run.floor[i]));
    add("ratio", times(run.ratio[i]) + ` (fails above ${LIMIT}×)`);
    if (run.local_ratio && !Number.isNaN(run.local_rel_l2[i])) add("module alone", `${sci(run.local_rel_l2[i])}, ${times(run.local_ratio[i])} its floor, on the reference's inputs`);
    if (run.birth(i)) add("introduced at", page.words[run.birth(i)]);
    if (run.note(i)) add("remark", run.note(i));
  }
  const shape = (s) => "[" + s.join(", ") + "]";
  add("shape", line.shapes.map(shape).join(" against "));
  add("dtype", line.dtypes[0] === line.dtypes[1] ? line.dtypes[0] : line.dtypes.join(" against "));
  drawBins(line, column, i);
  const columns = run.steps.map((_, c) => c).filter((c) => run.cell(line.index, c) >= 0);
  const pick = (name) => columns.map((c) => run[name][run.cell(line.index, c)]);
  byId("site-steps").hidden = columns.length < 2;
  if (columns.length > 1) {
    const lines = measured(pick("rel_l2"), pick("floor"));
    if (run.local_rel_l2) lines.push({ label: "module alone", values: positive(pick("local_rel_l2")), role: "other", dash: [2, 3] });
    chart(byId("site-chart"), columns.map((c) => run.steps[c]), lines, { onpick: (index) => select(line, columns[index]) });
  }
}

const ratioOfBin = (code) => code === 255 ? NaN : code === 0 ? 0 : code === 254 ? Infinity : 10 ** ((code - 1) / 20 - 4);

function drawBins(line, column, i) {
  const bins = run.bins.get(line.index * run.width + column), box = byId("bins"), text = byId("bins-text");
  box.hidden = !bins;
  byId("bins-head").hidden = i < 0 || run.verdict(i) !== FAIL;
  if (!bins) { text.textContent = i >= 0 && run.verdict(i) === FAIL ? "Row bins are not on this page (result.json has them where they were measured)." : ""; return; }
  const width = Math.max(120, box.parentElement.clientWidth), pen = sharp(box, width, 34), each = width / bins.length, colours = ramp();
  let worst = 0, beyond = 0;
  bins.forEach((code, n) => {
    pen.fillStyle = ratioColour(ratioOfBin(code), colours);
    pen.fillRect(n * each, 0, Math.max(each - (each > 5 ? 1 : 0), 0.5), 34);
    if (ratioOfBin(code) > LIMIT || code === 255) beyond++;
    if (code > bins[worst]) worst = n;
  });
  const rows = line.shapes[0].slice(0, -1).reduce((a, b) => a * b, 1);
  const share = (n) => Math.round((100 * n) / bins.length);
  text.textContent = `${beyond} of ${bins.length} bins beyond the limit; the worst is bin ${worst + 1}, about ${times(ratioOfBin(bins[worst]))}, ` +
    `${share(worst)} to ${share(worst + 1)} % of the way through the rows. Rows run in the tensor's order: batch, then frames, then tokens` + (rows > 1 ? `; ${rows} in the tensor.` : ".");
}

// Failures in execution order: by step, then by line; `p` and `n` walk those where something was introduced.
function failures() {
  if (run.failing) return run.failing;
  const found = [], introduced = [];
  for (let column = 0; column < run.width; column++) for (const line of run.lines) {
    const i = run.cell(line.index, column);
    if (i < 0 || run.verdict(i) !== FAIL) continue;
    found.push([line, column]);
    if (run.birth(i) !== "amplified") introduced.push([line, column]);
  }
  return run.failing = introduced.length ? introduced : found;
}

function nextFailure(way) {
  const list = failures();
  if (!list.length) return;
  const at = now.line ? now.column * run.lines.length + now.line.index : -1, order = ([line, column]) => column * run.lines.length + line.index;
  const next = way > 0 ? list.find((f) => order(f) > at) || list[0] : [...list].reverse().find((f) => order(f) < at) || list[list.length - 1];
  select(...next);
}
byId("next-failure").addEventListener("click", () => nextFailure(1));
byId("previous-failure").addEventListener("click", () => nextFailure(-1));
