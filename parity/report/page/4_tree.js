// The module tree, and what is shown of it: search, branch, stage, failures only, one module.
const filter = { text: "", branch: "", stage: "", failing: false, under: "" };

function shownLines() {
  const words = filter.text.toLowerCase().split(/\s+/).filter(Boolean);
  return run.lines.filter((line) =>
    (!filter.branch || line.branch === filter.branch) && (!filter.stage || line.stage === filter.stage) &&
    (!filter.failing || line.fails) && (!filter.under || within(line, filter.under)) &&
    words.every((word) => (line.site + " " + line.branch + " " + line.stage).toLowerCase().includes(word)));
}

const within = (line, path) => { const name = line.path.join("\0"); return name === path || name.startsWith(path + "\0"); };

function branchOf(lines) {
  const root = { name: "", path: "", children: new Map(), lines: [], worst: 0, fails: 0 };
  for (const line of lines) {
    let node = root;
    line.path.forEach((part, depth) => {
      if (!node.children.has(part)) node.children.set(part, { name: part, path: line.path.slice(0, depth + 1).join("\0"), children: new Map(), lines: [], worst: 0, fails: 0 });
      node = node.children.get(part);
      node.worst = Math.max(node.worst, line.worst);
      node.fails += line.fails;
    });
    node.lines.push(line);
  }
  return root;
}

const MOST_FOUND = 300;

function drawTree() {
  const tree = byId("tree"), without = filter.under;
  filter.under = "";
  const lines = shownLines();
  filter.under = without;
  tree.replaceChildren();
  if (filter.text) {
    for (const line of lines.slice(0, MOST_FOUND)) tree.append(leaf(line, 1));
    if (lines.length > MOST_FOUND) tree.append(make("li", { role: "none", class: "dim" }, `${lines.length - MOST_FOUND} more`));
  } else fill(tree, branchOf(lines), 1);
  const first = tree.querySelector("[role=treeitem]");
  if (first) first.tabIndex = 0;
}

function fill(list, node, level) {
  for (const child of node.children.values()) list.append(twig(child, level));
  for (const line of node.lines) list.append(leaf(line, level));
}

const badge = (worst, fails) => make("span", { class: "badge" + (fails ? " fail" : "") }, (fails ? SIGNS.fail + " " : "") + times(worst));

function swatch(worst) {
  const mark = make("span", { class: "swatch", "aria-hidden": "true" });
  mark.style.background = ratioColour(worst);
  return mark;
}

function twig(node, level) {
  const label = make("span", { class: "row" }, make("span", { class: "arrow", "aria-hidden": "true" }), swatch(node.worst), make("span", { class: "name" }, node.name), badge(node.worst, node.fails));
  const item = make("li", { role: "treeitem", "aria-expanded": "false", "aria-level": level, tabindex: -1 }, label);
  const list = make("ul", { role: "group" });
  item.open = (open) => {
    if (open && !list.firstChild) { fill(list, node, level + 1); item.append(list); }
    item.setAttribute("aria-expanded", String(open));
    list.hidden = !open;
  };
  item.act = () => {
    item.open(item.getAttribute("aria-expanded") !== "true");
    filter.under = filter.under === node.path ? "" : node.path;
    for (const old of byId("tree").querySelectorAll(".chosen")) old.classList.remove("chosen");
    label.classList.toggle("chosen", filter.under === node.path);
    byId("whole").hidden = !filter.under;
    drawHeat();
  };
  label.addEventListener("click", () => { focusItem(item); item.act(); });
  return item;
}

function leaf(line, level) {
  const name = filter.text ? place(line) : (line.port || line.module) + (line.call ? " call " + line.call : "");
  const label = make("span", { class: "row" }, make("span", { class: "arrow" }), swatch(line.worst), make("span", { class: "name" }, name + (line.branch ? " " + line.branch : "") + (line.closer ? " (second look)" : "")), badge(line.worst, line.fails));
  const item = make("li", { role: "treeitem", "aria-level": level, tabindex: -1 }, label);
  item.act = () => select(line, line.first >= 0 ? line.first : worstColumn(line));
  label.addEventListener("click", () => { focusItem(item); item.act(); });
  return item;
}

function worstColumn(line) {
  let best = 0, far = -1;
  for (let column = 0; column < run.width; column++) {
    const i = run.cell(line.index, column);
    if (i >= 0 && heat(i) > far) [best, far] = [column, heat(i)];
  }
  return best;
}

function focusItem(item) {
  for (const old of byId("tree").querySelectorAll("[tabindex='0']")) old.tabIndex = -1;
  item.tabIndex = 0;
  item.focus();
}

byId("tree").addEventListener("keydown", (event) => {
  const item = event.target.closest("[role=treeitem]");
  if (!item) return;
  const items = [...byId("tree").querySelectorAll("[role=treeitem]")].filter((other) => other.offsetParent !== null), at = items.indexOf(item);
  const open = item.getAttribute("aria-expanded");
  if (event.key === "ArrowDown" && items[at + 1]) focusItem(items[at + 1]);
  else if (event.key === "ArrowUp" && items[at - 1]) focusItem(items[at - 1]);
  else if (event.key === "Home") focusItem(items[0]);
  else if (event.key === "End") focusItem(items[items.length - 1]);
  else if (event.key === "ArrowRight" && open === "false") item.open(true);
  else if (event.key === "ArrowLeft" && open === "true") item.open(false);
  else if (event.key === "ArrowLeft" && item.parentElement.closest("[role=treeitem]")) focusItem(item.parentElement.closest("[role=treeitem]"));
  else if (event.key === "Enter" || event.key === " ") item.act();
  else return;
  event.preventDefault();
});

function offerFilters() {
  for (const name of ["branch", "stage"]) {
    const values = [...new Set(run.lines.map((line) => line[name]))].filter(Boolean), box = byId("filter-" + name);
    box.replaceChildren(make("option", { value: "" }, `every ${name}`), ...values.map((value) => make("option", { value }, value)));
    box.value = values.includes(filter[name]) ? filter[name] : filter[name] = "";
    box.hidden = values.length < 2;
  }
}

let waiting = 0;
const filtered = () => { clearTimeout(waiting); waiting = setTimeout(() => { drawTree(); drawHeat(); }, 60); };
byId("search").addEventListener("input", (event) => { filter.text = event.target.value; filtered(); });
for (const name of ["branch", "stage"]) byId("filter-" + name).addEventListener("change", (event) => { filter[name] = event.target.value; filtered(); });
byId("failing").addEventListener("change", (event) => { filter.failing = event.target.checked; filtered(); });
byId("whole").addEventListener("click", () => { filter.under = ""; byId("whole").hidden = true; filtered(); });
