"use strict";
// Many nodes as a matrix: a row for each node where VMs run, a column for each node that serves them, and the diagonal
// for the VMs that are together with their storage. The nodes with the most VMs that are apart come first.

const MANY_NODES = 12; // up to this number, the nodes are boxes
const LISTED_NODES = 34; // rows and columns, which fit in 1,280 pixels; "Show all" adds the others
const ANYWHERE = ""; // the column of the VMs that a restart may place on any node: their share-managers follow them
const DEPTHS = 5; // shades of a cell
const BAR = 90; // pixels of the longest bar at the right
const WHEN = { now: "Now", restarted: "After a restart", recolocated: "After recolocate" };
const MATRIX = { all: false, when: "now", cell: null, focus: "" }; // `focus` is the cell that the Tab key reaches

function servedNodes() {
  return new Set(shown.filter(isServed).flatMap((vm) => [vm.node, vm.storageNode]));
}

function isServed(vm) {
  return (vm.state === "Together" || vm.state === "Apart") && vm.node && vm.storageNode;
}

function place(vm) {
  const start = vm.ifStarted || {};
  if (MATRIX.when === "recolocated" && (vm.plan || {}).action === "migrate") return [vm.storageNode, vm.storageNode];
  if (MATRIX.when !== "restarted" || !start.together) return [vm.node, vm.storageNode];
  return start.cold ? [vm.node, ANYWHERE] : [start.node, start.node];
}

function isTogether(row, column) {
  return row === column || column === ANYWHERE;
}

function showMatrix() {
  const cells = new Map(); // row → column → VMs
  const totals = new Map(); // node → its VMs that are together, apart, and served for other nodes
  const total = (name) => totals.get(name) || totals.set(name, { together: 0, apart: 0, elsewhere: 0 }).get(name);
  for (const vm of shown.filter(isServed)) {
    const [row, column] = place(vm);
    if (!cells.has(row)) cells.set(row, new Map());
    cells.get(row).set(column, [...(cells.get(row).get(column) || []), vm]);
    if (isTogether(row, column)) total(row).together += 1;
    else {
      total(row).apart += 1;
      total(column).elsewhere += 1;
    }
  }
  const names = sortedNodes(totals);
  const chosenNodes = MATRIX.all ? totals : worstNodes(cells, totals);
  const listed = names.filter((name) => chosenNodes.has(name));
  const left = byId("matrix").querySelector(".scroll")?.scrollLeft || 0;
  byId("matrix").replaceChildren(
    matrixHead(cells),
    grid(listed, cells, totals),
    ...remainder(names.length, listed.length),
  );
  byId("matrix").querySelector(".scroll").scrollLeft = left;
  showCell();
}

function sortedNodes(totals) {
  const rank = (name) => totals.get(name).apart + totals.get(name).elsewhere;
  const order = (one, other) => rank(other) - rank(one) || one.localeCompare(other, "en", { numeric: true });
  return [...totals.keys()].sort(order);
}

// The nodes of the cells with the most VMs that are apart, or the most traffic, so that the matrix shows these cells.
function worstNodes(cells, totals) {
  const rank = (name) => totals.get(name).apart + totals.get(name).elsewhere;
  const apart = [...cells].flatMap(([row, of]) =>
    [...of].filter(([column]) => !isTogether(row, column)).map(([column, vms]) => ({
      row,
      column,
      load: weight(vms, false),
      rank: rank(row) + rank(column),
    }))
  );
  apart.sort((one, other) => other.load - one.load || other.rank - one.rank);
  const found = new Set();
  for (const name of [...apart.flatMap(({ row, column }) => [row, column]), ...sortedNodes(totals)]) {
    if (found.size < LISTED_NODES) found.add(name);
  }
  return found;
}

function matrixHead(cells) {
  const vmsIn = (same) =>
    [...cells].flatMap(([row, found]) =>
      [...found].filter(([column]) => isTogether(row, column) === same).flatMap(([, of]) => of)
    );
  const together = vmsIn(true);
  const first = MATRIX.when === "restarted"
    ? together.filter((vm) => vm.state === "Apart" && vm.ifStarted.stoppedBy).length
    : 0;
  const parts = [
    `On the diagonal${cellsAnywhere(cells) ? ' and in the column "any node"' : ""}: together, ${
      together.length.toLocaleString("en")
    }`,
    first ? ` (${first.toLocaleString("en")} of them need an opt-in first)` : "",
    `. Beside it: apart, ${vmsIn(false).length.toLocaleString("en")}; their traffic crosses the network.`,
    TRAFFIC ? " A deeper color means more traffic." : "",
    DOMAIN ? ` Nodes without their domain ${DOMAIN}.` : "",
  ];
  const choice = ([when, title]) => {
    const pressed = String(MATRIX.when === when);
    return element("button", { type: "button", "aria-pressed": pressed, click: () => setWhen(when) }, title);
  };
  const choices = element(
    "div",
    { class: "switch", role: "group", "aria-label": "Time" },
    ...Object.entries(WHEN).map(choice),
  );
  return element("div", { class: "matrix-head" }, choices, element("p", { class: "hint" }, parts.join("")));
}

function cellsAnywhere(cells) {
  return [...cells.values()].some((of) => of.has(ANYWHERE));
}

function setWhen(when) {
  Object.assign(MATRIX, { when, cell: null });
  showMatrix();
  byId("matrix").querySelector('.switch [aria-pressed="true"]').focus();
  link();
}

function grid(names, cells, totals) {
  const columns = [...(cellsAnywhere(cells) ? [ANYWHERE] : []), ...names];
  const [at, across] = [names, columns].map((of) => new Map(of.map((name, index) => [name, index])));
  const most = deepest(cells);
  const longest = Math.max(1, ...names.map((name) => totals.get(name).together + totals.get(name).apart));
  const parts = names.flatMap((name, index) => [label("row", name, index), rowBars(totals.get(name), index, longest)]);
  parts.push(...columns.map((name, index) => label("column", name, index)));
  for (const [row, found] of cells) {
    for (const [column, of] of found) {
      if (at.has(row) && across.has(column)) parts.push(cell(row, column, of, at.get(row), across.get(column), most));
    }
  }
  const corner = element(
    "div",
    { class: "corner", "aria-hidden": "true" },
    "storage on →",
    element("br", {}),
    "VM on ↓",
  );
  const made = element(
    "div",
    {
      class: "grid",
      role: "group",
      "aria-label": "Rows: where VMs run. Columns: where their storage is served.",
      keydown: moveInMatrix,
    },
    corner,
    ...parts,
  );
  const letters = Math.max(...columns.map((name) => nodeName(name).length), 8);
  for (
    const [name, value] of [
      ["--count", columns.length],
      ["--rows", names.length],
      ["--heads", `${28 + 6 * letters}px`],
      ["--labels", `${40 + 7.5 * letters}px`],
    ]
  ) {
    made.style.setProperty(name, value);
  }
  const reached = made.querySelector(`.cell[data-key="${CSS.escape(MATRIX.focus)}"]`) ||
    made.querySelector(".cell.Apart") || made.querySelector(".cell");
  reached?.setAttribute("tabindex", "0");
  return element("div", { class: "scroll" }, made);
}

// The arrow keys go to the next cell of the row, and to the nearest cell of the next row that has one.
function moveInMatrix(event) {
  const of = (cell) => [Number(cell.style.getPropertyValue("--x")), Number(cell.style.getPropertyValue("--y"))];
  const [x, y] = event.target.matches(".cell") ? of(event.target) : [];
  const isNext = {
    ArrowRight: (cell) => of(cell)[1] === y && of(cell)[0] > x,
    ArrowLeft: (cell) => of(cell)[1] === y && of(cell)[0] < x,
    ArrowDown: (cell) => of(cell)[1] > y,
    ArrowUp: (cell) => of(cell)[1] < y,
  }[event.key];
  if (!isNext || x === undefined) return;
  const far = (cell) => Math.abs(of(cell)[1] - y) * 1000 + Math.abs(of(cell)[0] - x);
  const [next] = [...event.currentTarget.querySelectorAll(".cell")].filter(isNext).sort((one, other) =>
    far(one) - far(other)
  );
  event.preventDefault();
  if (!next) return;
  event.target.setAttribute("tabindex", "-1");
  next.setAttribute("tabindex", "0");
  MATRIX.focus = next.dataset.key;
  next.focus();
}

function deepest(cells) {
  const most = { together: DEPTHS, apart: TRAFFIC ? 1 : DEPTHS }; // a single VM is never drawn in the deepest shade
  for (const [row, found] of cells) {
    for (const [column, of] of found) {
      const kind = isTogether(row, column) ? "together" : "apart";
      most[kind] = Math.max(most[kind], weight(of, isTogether(row, column)));
    }
  }
  return most;
}

// The VMs of a cell, or the traffic of those that are apart, if it is known.
function weight(of, together) {
  return TRAFFIC && !together ? of.reduce((sum, vm) => sum + vm.traffic.bytes, 0) : of.length;
}

function cell(row, column, of, y, x, most) {
  const together = isTogether(row, column);
  const share = weight(of, together) / most[together ? "together" : "apart"];
  // Few VMs make most of the traffic.
  const depth = Math.max(1, Math.ceil(DEPTHS * (TRAFFIC && !together ? Math.sqrt(share) : share)));
  const title = cellTitle(row, column, of);
  const chosenCell = MATRIX.cell && MATRIX.cell.row === row && MATRIX.cell.column === column;
  const attributes = {
    type: "button",
    class: `cell ${together ? "Together" : "Apart"}`,
    "data-depth": depth,
    title,
    "aria-label": title,
    tabindex: "-1",
  };
  const open = () => openCell({ row, column });
  const made = element(
    "button",
    { ...attributes, "aria-pressed": String(Boolean(chosenCell)), click: open },
    of.length,
  );
  Object.assign(made.dataset, { row, column, key: `${row}/${column}` });
  made.style.setProperty("--x", x);
  made.style.setProperty("--y", y);
  return made;
}

function cellTitle(row, column, of) {
  if (column === ANYWHERE) return `${plural(of.length, "VM")} of ${row} on any node, the share-manager follows`;
  if (row === column) return `${plural(of.length, "VM")} together on ${row}`;
  const traffic = TRAFFIC ? `, ${megabytes(weight(of, false))} MB/s` : "";
  return `${plural(of.length, "VM")} on ${row}, storage on ${column}${traffic}`;
}

function nodeName(name) {
  return name === ANYWHERE ? "any node" : shortNode(name);
}

function label(kind, name, index) {
  const problem = nodeProblem(name);
  const mark = problem ? element("span", { class: "problem", title: problem }, "!") : "";
  const made = element("div", {
    class: `label ${kind}`,
    title: [name || nodeName(name), problem].filter(Boolean).join(", "),
  }, element("span", {}, mark, nodeName(name)));
  made.style.setProperty("--at", index);
  return made;
}

function rowBars({ together, apart }, index, longest) {
  const bar = (state, count) => {
    const made = element("i", { class: state });
    made.style.width = `${Math.round((BAR * count) / longest)}px`;
    return made;
  };
  const made = element(
    "div",
    { class: "total" },
    bar("Together", together),
    bar("Apart", apart),
    element("span", {}, `${apart} of ${together + apart} apart`),
  );
  made.style.setProperty("--at", index);
  return made;
}

function remainder(all, listed) {
  if (listed === all) return [];
  const show = () => {
    MATRIX.all = true;
    showMatrix();
  };
  const text = `${listed} of ${all.toLocaleString("en")} nodes: those between which the most VMs are apart. `;
  return [element("p", { class: "hint" }, text, element("button", { type: "button", click: show }, "Show all"))];
}

// The VMs of the chosen cell

function openCell(of) {
  const same = of && MATRIX.cell && MATRIX.cell.row === of.row && MATRIX.cell.column === of.column;
  MATRIX.cell = same ? null : of;
  for (const button of byId("matrix").querySelectorAll(".cell")) {
    button.setAttribute(
      "aria-pressed",
      Boolean(MATRIX.cell) && button.dataset.row === of.row && button.dataset.column === of.column,
    );
  }
  showCell();
  link();
}

function showCell() {
  const { row, column } = MATRIX.cell || {};
  const found = MATRIX.cell ? shown.filter((vm) => isServed(vm) && String(place(vm)) === String([row, column])) : [];
  const parts = found.length
    ? [element("h2", {}, cellTitle(row, column, found)), element("ul", {}, ...found.map(vmItem))]
    : [];
  byId("members").hidden = !found.length;
  byId("members").replaceChildren(...parts);
  byId("members").querySelector("li button")?.setAttribute("tabindex", "0");
}
