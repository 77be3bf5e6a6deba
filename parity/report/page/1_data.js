// What `pack.py` packed, unpacked. Everything in it is data of somebody else's: it is shown as text only.
const page = JSON.parse(document.getElementById("data").textContent);
const LIMIT = page.limit;
const VERDICTS = page.verdicts, BIRTHS = page.births;
const SIGNS = { pass: "✓", harmless: "~", apart: "·", unjudged: "?", fail: "✗" };
const FAIL = VERDICTS.indexOf("fail"), APART = VERDICTS.indexOf("apart");

function bytesOf(text) {
  const letters = atob(text), bytes = new Uint8Array(letters.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = letters.charCodeAt(i);
  return bytes;
}

function floats(text, count) {
  const bytes = bytesOf(text), bits = new Uint32Array(count);
  for (let i = 0; i < count; i++) bits[i] = (bytes[3 * i] | (bytes[3 * i + 1] << 8) | (bytes[3 * i + 2] << 16)) << 7;
  return new Float32Array(bits.buffer);
}

// Places from the distances between them (LEB128).
function placesOf(text, count) {
  const distances = bytesOf(text), at = new Int32Array(count);
  for (let i = 0, n = 0, place = -1; i < count; i++) {
    let distance = 0, shift = 0;
    do { distance |= (distances[n] & 127) << shift; shift += 7; } while (distances[n++] & 128);
    at[i] = place += distance;
  }
  return at;
}

// The run's table: `cell(line, column)` is the index of a site in `rel_l2`, `floor`, `ratio`, `state`, or -1.
function unpack(packed) {
  const width = packed.steps.length;
  const state = bytesOf(packed.state), count = state.length;
  const table = new Int32Array(packed.lines.length * width).fill(-1);
  const at = placesOf(packed.at, count);
  at.forEach((place, i) => { table[place] = i; });
  const numbers = {};
  for (const [name, text] of Object.entries(packed.numbers)) numbers[name] = floats(text, count);
  const lines = packed.lines.map(([stage, branch, site, call, shapes, dtypes, closer], index) => {
    const [module, port] = [site.split(":")[0], site.slice(site.indexOf(":") + 1)];
    return { index, stage, branch, site, module, port, call, shapes, dtypes, closer, worst: 0, fails: 0, first: -1,
      path: [stage === "transformer" ? "" : stage, ...module.split(".")].filter((part) => part !== "") };
  });
  const binBytes = bytesOf(packed.bins.bytes);
  const bins = new Map(packed.bins.of.map(([cell, from, n]) => [cell, binBytes.subarray(from, from + n)]));
  const unpacked = { drift: page.drift, lines, steps: packed.steps, width, state, table, at, bins, binsLeft: packed.bins.left,
    notes: packed.notes, ...numbers,
    cell: (line, column) => table[line * width + column],
    verdict: (i) => state[i] & 7, birth: (i) => BIRTHS[state[i] >> 3],
    note: (i) => packed.notes.texts[packed.notes.of[at[i]]] || "" };
  for (let i = 0; i < count; i++) {
    const line = lines[Math.floor(at[i] / width)], column = at[i] % width;
    if ((state[i] & 7) === APART) continue;
    const far = heat(i, unpacked);
    if (far > line.worst) line.worst = far;
    if ((state[i] & 7) === FAIL) { line.fails++; if (line.first < 0) line.first = column; }
  }
  return unpacked;
}

// How far a site is beyond its floor, for its colour: the ratio; where only the module alone was measured, that one.
function heat(i, table = run) {
  let far = table.ratio[i];
  if (Number.isNaN(far) && table.local_ratio) far = table.local_ratio[i];
  if (Number.isNaN(far)) return (table.state[i] & 7) === FAIL ? Infinity : 0;
  return far;
}

const run = unpack(page.sites);

// Numbers as the terminal writes them.
const sci = (x) => Number.isNaN(x) ? "–" : x === Infinity ? "∞" : x === 0 ? "0" : x.toExponential(2).replace(/e([+-])(\d)$/, "e$10$2");
const times = (x) => Number.isNaN(x) ? "–" : x === Infinity ? "∞" : (x < 1000 ? x.toFixed(1) : x.toExponential(1)) + "×";
const stepName = (step) => step < 0 ? "outside the loop" : "step " + step;
const place = (line) => line.site + (line.call ? " call " + line.call : "");

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}
const byId = (id) => document.getElementById(id);
