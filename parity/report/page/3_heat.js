// The heat map: modules down, steps across. More lines than pixels share a row, which shows the worst of them.
const heatMap = { canvas: byId("heat"), rows: [], gutter: 0, rowHeight: 0, cellWidth: 0, top: 16 };

function drawHeat() {
  const { canvas } = heatMap, colours = ramp();
  const width = Math.max(200, canvas.parentElement.clientWidth), lines = heatMap.rows = shownLines();
  const rowHeight = heatMap.rowHeight = Math.min(18, Math.max(520 / Math.max(lines.length, 1), 0.01));
  const plot = Math.max(60, Math.ceil(rowHeight * lines.length)), top = heatMap.top;
  const gutter = heatMap.gutter = Math.round(Math.min(260, width * (width < 500 ? 0.3 : 0.32)));
  const cellWidth = heatMap.cellWidth = Math.min((width - gutter) / Math.max(run.width, 1), 120);
  const pen = sharp(canvas, width, plot + top + 4);
  pen.clearRect(0, 0, width, plot + top + 4);
  const bad = [];
  lines.forEach((line, row) => {
    const y = top + row * rowHeight;
    for (let column = 0; column < run.width; column++) {
      const i = run.cell(line.index, column);
      if (i < 0) continue;
      if (run.verdict(i) === FAIL) { bad.push([heat(i), column, y, i]); continue; }
      pen.fillStyle = siteColour(i, colours);
      pen.fillRect(gutter + column * cellWidth, y, Math.max(cellWidth - (cellWidth > 6 ? 1 : 0), 0.6), Math.max(rowHeight - (rowHeight > 6 ? 1 : 0), 0.6));
    }
  });
  bad.sort((a, b) => a[0] - b[0]);  // the worst on top; two pixels high, so that one among thousands is seen
  for (const [, column, y, i] of bad) {
    pen.fillStyle = siteColour(i, colours);
    pen.fillRect(gutter + column * cellWidth, y, Math.max(cellWidth - (cellWidth > 6 ? 1 : 0), 1), Math.max(rowHeight - (rowHeight > 6 ? 1 : 0), 2));
  }
  drawLabels(pen, lines, colours, plot, width);
  drawMark(pen, colours);
  byId("heat-note").textContent = lines.length
    ? `${lines.length} of ${run.lines.length} sites, ${run.width} ${run.width === 1 ? "column" : "steps"}` : "No site matches the filter.";
}

function drawLabels(pen, lines, colours, plot, width) {
  const { gutter, rowHeight, cellWidth, top } = heatMap;
  pen.fillStyle = colours.dim;
  pen.font = "11px ui-monospace, monospace";
  pen.textBaseline = "middle";
  const fitted = (text) => { const most = Math.max(4, Math.floor((gutter - 10) / 6.7)); return text.length > most ? "…" + text.slice(1 - most) : text; };
  if (rowHeight >= 11) lines.forEach((line, row) => pen.fillText(fitted(line.site + (line.branch ? " " + line.branch : "")), 0, top + (row + 0.5) * rowHeight));
  else {
    let free = -Infinity, group = "";
    lines.forEach((line, row) => {
      const name = line.path.slice(0, /^\d+$/.test(line.path[1] || "") ? 2 : 1).join("."), y = top + row * rowHeight;
      if (name === group) return;
      group = name;
      if (y < free) return;
      pen.fillText(fitted(name), 0, y + 6);
      free = y + 13;
    });
  }
  pen.textBaseline = "alphabetic";
  let free = 0;
  run.steps.forEach((step, column) => {
    const x = gutter + column * cellWidth, text = step < 0 ? "out" : String(step);
    if (x >= free) { pen.fillText(text, x, 11); free = x + 7 * text.length + 12; }
  });
}

function drawMark(pen, colours) {
  if (!now.line) return;
  const row = heatMap.rows.indexOf(now.line);
  if (row < 0) return;
  const { gutter, rowHeight, cellWidth, top } = heatMap;
  pen.strokeStyle = colours.mark;
  pen.lineWidth = 2;
  const height = Math.max(rowHeight, 7), y = top + (row + 0.5) * rowHeight - height / 2;
  pen.strokeRect(gutter + now.column * cellWidth - 1, y - 1, Math.max(cellWidth, 4) + 1, height + 1);
  pen.fillStyle = colours.mark;
  pen.beginPath();
  pen.moveTo(gutter - 2, y + height / 2); pen.lineTo(gutter - 9, y + height / 2 - 4); pen.lineTo(gutter - 9, y + height / 2 + 4);
  pen.fill();
}

// The site under the pointer; where lines share a pixel, the worst of them.
function siteAt(event) {
  const box = heatMap.canvas.getBoundingClientRect();
  const y = event.clientY - box.top - heatMap.top;
  const column = Math.min(Math.max(Math.floor((event.clientX - box.left - heatMap.gutter) / heatMap.cellWidth), 0), run.width - 1);
  const reach = heatMap.rowHeight >= 4 ? 0 : 2;
  const from = Math.max(0, Math.floor((y - reach) / heatMap.rowHeight)), to = Math.min(heatMap.rows.length - 1, Math.floor((y + reach) / heatMap.rowHeight));
  let best = null;
  for (let row = from; row <= to; row++) {
    const i = run.cell(heatMap.rows[row].index, column);
    const far = i < 0 ? -1 : heat(i) + (run.verdict(i) === FAIL ? 1e6 : 0);
    if (!best || far > best.far) best = { line: heatMap.rows[row], column, far, i };
  }
  return best && best.i >= 0 ? best : null;
}

function heatKey(event) {
  const rows = heatMap.rows, row = rows.indexOf(now.line);
  const jump = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
  if (event.key === "n" || event.key === "p") { nextFailure(event.key === "n" ? 1 : -1); event.preventDefault(); return; }
  if (!jump || !rows.length) return;
  event.preventDefault();
  const line = rows[Math.min(Math.max(row + jump[0], 0), rows.length - 1)];
  select(line, Math.min(Math.max(now.column + jump[1], 0), run.width - 1));
}

heatMap.canvas.addEventListener("click", (event) => { const found = siteAt(event); if (found) select(found.line, found.column); });
heatMap.canvas.addEventListener("keydown", heatKey);
heatMap.canvas.addEventListener("mousemove", (event) => {
  const found = siteAt(event);
  heatMap.canvas.title = found ? `${place(found.line)} ${found.line.branch} ${stepName(run.steps[found.column])}: ${times(run.ratio[found.i])} its floor, ${VERDICTS[run.verdict(found.i)]}` : "";
});
