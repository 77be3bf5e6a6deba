(async () => {
  "use strict";
  const find = (id) => document.getElementById(id);
  const given = JSON.parse(find("data").textContent);

  const bytes = Uint8Array.from(atob(given.packed), (char) => char.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const table = JSON.parse(await new Response(stream).text());
  const ready = () => { document.documentElement.dataset.ready = "yes"; };
  if (!table.rows.length) return ready();

  const columns = table.steps.length;
  const real = (x) => (x === null ? NaN : x < 0 ? Infinity : x);
  const sites = new Map(table.at.map((at, i) => [at, {
    at, row: Math.floor(at / columns), column: at % columns,
    rel: real(table.rel_l2[i]), floor: real(table.floor[i]), ratio: real(table.ratio[i]),
    verdict: given.verdicts[table.state[i] % 8], born: table.state[i] >> 3,
  }]));
  const sci = (x) => (Number.isNaN(x) ? "–" : x === 0 ? "0" : x.toExponential(2).replace(/e([+-])(\d)$/, "e$10$2"));
  const times = (x) => (Number.isNaN(x) ? "–" : x === Infinity ? "inf" : x < 1000 ? `${x.toFixed(1)}x`
    : `${x.toExponential(1).replace(/e([+-])(\d)$/, "e$10$2")}x`);
  const where = (column) => (table.steps[column] < 0 ? "outside the loop" : `step ${table.steps[column]}`);
  const make = (tag, text = "", kind = "") => {
    const element = document.createElement(tag);
    element.textContent = text;
    element.className = kind;
    return element;
  };

  // --- the tree of modules: each knows its tensors, and of each step the gravest below it

  const stages = new Set(table.rows.map(([stage]) => stage));
  const root = { name: "", path: "", below: new Map(), rows: [], worst: [], open: true, up: null };
  const nodeOf = table.rows.map(([stage, , name], row) => {
    const parts = name.split(":")[0].split(".");
    let node = root;
    for (const part of stages.size > 1 ? [stage, ...parts] : parts) {
      if (!node.below.has(part)) {
        const path = node.path ? `${node.path}.${part}` : part;
        node.below.set(part, { name: part, path, below: new Map(), rows: [], worst: [], open: false, up: node });
      }
      node = node.below.get(part);
    }
    node.rows.push(row);
    return node;
  });
  const grave = (site) => (site.verdict === "fail" && Number.isNaN(site.ratio) ? Infinity : site.ratio);
  for (const site of sites.values()) {
    if (site.verdict === "ignored" || site.verdict === "not compared") continue;
    for (let node = nodeOf[site.row]; node; node = node.up) {
      const worst = node.worst[site.column] ??= { ratio: NaN, fail: false, inconclusive: false, born: false };
      worst.ratio = Number.isNaN(worst.ratio) ? grave(site) : Math.max(worst.ratio, grave(site) || 0);
      worst.fail ||= site.verdict === "fail";
      worst.inconclusive ||= site.verdict === "inconclusive";
      worst.born ||= site.born > 0;
    }
  }
  const nodes = (node) => [...node.below.values()].flatMap((below) => [below, ...nodes(below)]);
  for (const node of nodes(root)) node.open = !node.rows.length;  // lists of blocks are open, blocks are closed

  // --- the table

  const body = find("modules");
  let chosen = [null, 0];  // a node and a column
  const level = (worst) => (!worst ? "none" : worst.inconclusive && !worst.fail ? "inconclusive"
    : !(worst.ratio > 1) ? "l0" : worst.ratio <= given.limit ? "l1" : worst.ratio < 30 ? "l2" : worst.ratio < 1e4 ? "l3" : "l4");

  const draw = () => {
    const words = find("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const failing = find("failing").checked;
    const fits = (node) => words.every((word) => node.path.toLowerCase().includes(word))
      && (!failing || node.worst.some((worst) => worst?.fail));
    const shown = (node) => fits(node) || [...node.below.values()].some(shown);
    const rows = [];
    const add = (node, depth) => {
      for (const below of node.below.values()) {
        if ((words.length || failing) && !shown(below)) continue;
        rows.push(line(below, depth));
        if (below.open || words.length) add(below, depth + 1);
      }
    };
    add(root, 1);
    body.replaceChildren(...rows);
    find("count").textContent = `${rows.length} modules, ${columns} ${columns === 1 ? "step" : "steps"}`;
    focusable()?.setAttribute("tabindex", "0");
  };

  const line = (node, depth) => {
    const row = make("tr");
    row.node = node;
    row.setAttribute("aria-level", depth);
    const head = make("th", "", node.worst.some((worst) => worst?.fail) ? "name fail" : "name");
    head.style.paddingLeft = `${depth * 0.9}rem`;
    if (node.below.size) {
      row.setAttribute("aria-expanded", node.open);
      const toggle = make("button", node.open ? "▾" : "▸", "toggle");
      toggle.setAttribute("aria-label", `${node.open ? "close" : "open"} ${node.path}`);
      toggle.addEventListener("click", () => { node.open = !node.open; draw(); });
      head.append(toggle);
    }
    head.append(make("span", node.name || "(model)"));
    row.append(head);
    for (let column = 0; column < columns; column++) {
      const worst = node.worst[column];
      const cell = make("td", worst && columns <= 4 ? times(worst.ratio) : "", level(worst));
      if (worst?.fail) cell.classList.add("bad");
      if (worst?.born) cell.classList.add("born");
      const said = !worst ? "nothing compared" : `${times(worst.ratio)}${worst.fail ? ", fails" : ""}`;
      cell.title = `${node.path}, ${where(column)}: ${said}`;
      cell.setAttribute("aria-label", cell.title);
      cell.setAttribute("tabindex", "-1");
      if (chosen[0] === node && chosen[1] === column) cell.classList.add("chosen");
      row.append(cell);
    }
    return row;
  };
  const focusable = () => body.querySelector("td.chosen") ?? body.querySelector("td");

  const choose = (node, column) => {
    for (let up = node.up; up; up = up.up) up.open = true;
    chosen = [node, column];
    draw();
    tell();
    const cell = body.querySelector("td.chosen"), tree = body.closest(".tree");
    if (cell) {
      tree.scrollTop = cell.offsetTop - tree.clientHeight / 2;
      tree.scrollLeft = cell.offsetLeft - tree.clientWidth * 0.8;
    }
    return cell;
  };

  // --- the tensors of the chosen module at the chosen step

  const tell = () => {
    const [node, column] = chosen;
    const under = [node, ...nodes(node)].flatMap((each) => each.rows);
    const found = under.map((row) => sites.get(row * columns + column)).filter(Boolean);
    const own = node.rows.length ? found.filter((site) => nodeOf[site.row] === node) : found.filter((site) => site.verdict === "fail");
    find("site").hidden = false;
    find("site-name").textContent = node.path || "(model)";
    find("site-where").textContent = where(column);
    find("tensors").replaceChildren(...own.slice(0, 200).flatMap((site) => {
      const [, branch, name, call] = table.rows[site.row];
      const row = make("tr", "", site.verdict === "fail" ? "bad" : "");
      const said = [site.verdict === "fail" ? given.places[site.born] : "", table.notes[site.at] ?? ""].filter(Boolean).join("; ");
      const link = make("a", (node.rows.length ? name.split(":").slice(1).join(":") : name) + (call ? ` (call ${call})` : ""));
      link.href = `#${site.row}.${site.column}`;
      const head = make("th");
      head.append(link);
      row.append(head, ...[branch, site.verdict, sci(site.rel), sci(site.floor), times(site.ratio), table.kinds[site.row], said]
        .map((text, i) => make("td", text, i > 1 && i < 5 ? "n" : i === 1 ? site.verdict : "")));
      return [row, ...bins(site)];
    }));
  };

  const bins = (site) => {
    const ratios = table.bins[site.at]?.map(real);
    if (!ratios) return [];
    const row = make("tr"), cell = make("td", "", "bins"), beyond = ratios.filter((x) => x > given.limit).length;
    cell.colSpan = 8;
    const strip = make("div", "", "strip");
    strip.append(...ratios.map((ratio, i) => {
      const part = make("span", "", level({ ratio }));
      part.title = `rows ${i + 1} of ${ratios.length}: ${times(ratio)}`;
      return part;
    }));
    const worst = ratios.indexOf(Math.max(...ratios.map((x) => (Number.isNaN(x) ? -1 : x))));
    cell.append(strip, make("p", `rows in ${ratios.length} parts, in their order: ${beyond} beyond the limit; the worst is part ${worst + 1}, ${times(ratios[worst])}`, "dim"));
    row.append(cell);
    return [row];
  };

  // --- mouse, keys, address

  body.addEventListener("click", ({ target }) => {
    const cell = target.closest("td");
    if (cell) choose(cell.parentElement.node, cell.cellIndex - 1)?.focus({ preventScroll: true });
  });
  body.addEventListener("keydown", (event) => {
    const cell = event.target.closest("td");
    if (!cell) return;
    const row = cell.parentElement, node = row.node, column = cell.cellIndex - 1;
    const to = { ArrowUp: [row.previousElementSibling, column], ArrowDown: [row.nextElementSibling, column],
      ArrowLeft: [row, column - 1], ArrowRight: [row, column + 1] }[event.key];
    if (event.key === "Enter") choose(node, column)?.focus();
    else if (event.key === " " && node.below.size) { node.open = !node.open; choose(node, column)?.focus(); }
    else if (to) { const next = to[0]?.cells[to[1] + 1]; if (next?.tagName === "TD") next.focus(); }
    else return;
    event.preventDefault();
  });
  const follow = () => {
    const [row, column] = (/^#(\d+)\.(\d+)$/.exec(location.hash) ?? []).slice(1).map(Number);
    if (!sites.has(row * columns + column)) return;
    choose(nodeOf[row], column)?.closest(".tree").scrollIntoView({ block: "center" });
  };
  find("search").addEventListener("input", draw);
  find("failing").addEventListener("change", draw);
  addEventListener("hashchange", follow);
  find("head").append(make("th", "module"), ...table.steps.map((step) => make("th", step < 0 ? "–" : step, "n")));
  const at = given.origin?.split(".").map(Number);
  if (at) choose(nodeOf[at[0]], at[1]);
  else draw();
  follow();
  ready();
})();
