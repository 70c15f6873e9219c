"use strict";
// The filters, the table, the selected VM, the URL, and what a dashboard reads again and again.

function addFilters() {
  for (const [state, count] of counted(vms)) {
    const toggle = () => {
      chosen.states.has(state) ? chosen.states.delete(state) : chosen.states.add(state);
      showOthers();
    };
    const attributes = {
      type: "button",
      "data-state": state,
      title: STATES[state][2],
      "aria-pressed": "false",
      click: toggle,
    };
    byId("states").append(element("button", attributes, mark(state), ` ${words(state)} `, element("b", {}, count)));
  }
  byId("namespace").addEventListener("change", (event) => choose("namespace", event.target.value));
  byId("search").addEventListener("input", (event) => choose("search", event.target.value.trim().toLowerCase()));
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
  byId("filters").addEventListener("reset", () => {
    Object.assign(chosen, { namespace: "", search: "" });
    chosen.states.clear();
    showOthers();
  });
}

function listNamespaces() {
  const all = [...new Set([...vms.map((vm) => vm.namespace), chosen.namespace])].filter(Boolean).sort();
  const options = all.map((namespace) => element("option", { value: namespace }, namespace));
  byId("namespace").replaceChildren(element("option", { value: "" }, "all"), ...options);
  byId("namespace").value = chosen.namespace;
}

function choose(what, value) {
  chosen[what] = value;
  showOthers();
}

function showOthers() {
  MATRIX.cell = null;
  show();
}

function passes(vm) {
  return (!chosen.namespace || vm.namespace === chosen.namespace) && isFound(vm, chosen.search);
}

function show() {
  const passing = vms.filter(passes);
  shown = chosen.states.size ? passing.filter((vm) => chosen.states.has(known(vm.state))) : passing;
  const counts = new Map(counted(passing));
  for (const button of byId("states").querySelectorAll("button")) {
    button.setAttribute("aria-pressed", chosen.states.has(button.dataset.state));
    button.querySelector("b").textContent = counts.get(button.dataset.state).toLocaleString("en");
  }
  byId("count").textContent = `${shown.length.toLocaleString("en")} of ${plural(vms.length, "VM")} shown`;
  if (chosen.selected && !shown.includes(chosen.selected)) select(null);
  byId("map").hidden ? showTable() : showNodes();
  link();
}

// The table

let rowLimit = 500; // rows; each thousand more takes about a second, and "Show all" adds them
const LONG = new Set(["If started", "What to do", "NFS"]); // columns of one line: the details have the rest
const WIDE = { "Data": "wider", "NFS": "wider", "If started": "wider" }; // only in wide windows: the details have all
for (const title of ["Ops/s", "Reason", "Opted in"]) WIDE[title] = "wide";

const NUMBERS = {
  "MB/s": { minimumFractionDigits: 1, maximumFractionDigits: 1 },
  "Ops/s": { maximumFractionDigits: 0 },
};

function showTable(limit = rowLimit) {
  const [title, read] = COLUMNS[chosen.sort];
  const sorted = ordered(shown, title, read, chosen.ascending);
  const table = element(
    "table",
    { role: "table" },
    element(
      "caption",
      {},
      `VMs, the nodes on which they run, and the nodes of their share-managers${
        DOMAIN ? `, without their domain ${DOMAIN}` : ""
      }`,
    ),
    element("thead", { role: "rowgroup" }, element("tr", { role: "row" }, ...COLUMNS.map(columnHeader))),
    element("tbody", { role: "rowgroup" }, ...sorted.slice(0, limit).map(tableRow)),
  );
  const rest = element(
    "p",
    { class: "hint" },
    `${limit} of ${plural(sorted.length, "VM")}. `,
    element("button", { type: "button", click: () => showTable(rowLimit = Infinity) }, "Show all"),
  );
  buttons.clear();
  for (const button of table.querySelectorAll("tbody button")) buttons.set(button.vm, button);
  byId("table").replaceChildren(sortChoice(), table, ...(sorted.length <= limit ? [] : [rest]));
  fitTable();
  link();
}

// Names take what they need, and break only if the table would be wider than the window.
function fitTable() {
  const table = byId("table").querySelector("table");
  table?.classList.remove("tight");
  table?.classList.toggle("tight", table.offsetWidth > byId("table").clientWidth);
}

// A phone shows the rows as cards, without the column headers.
function sortChoice() {
  const options = COLUMNS.map(([title], index) =>
    element("option", { value: index, selected: index === chosen.sort ? "" : null }, title)
  );
  const change = (event) => {
    Object.assign(chosen, { sort: Number(event.target.value), ascending: true });
    showTable();
    byId("table").querySelector("select").focus();
  };
  return element("label", { class: "sort" }, "Sort by ", element("select", { change }, ...options));
}

function columnHeader([title], index) {
  const isSorted = index === chosen.sort;
  const sort = () => {
    Object.assign(chosen, { sort: index, ascending: !isSorted || !chosen.ascending });
    showTable();
    byId("table").querySelectorAll("th button")[index].focus();
  };
  const direction = isSorted ? (chosen.ascending ? "ascending" : "descending") : null;
  const button = element("button", { type: "button", click: sort }, title);
  const attributes = { scope: "col", role: "columnheader", "aria-sort": direction, "data-label": title };
  return element("th", { ...attributes, class: WIDE[title] ?? null }, button);
}

function tableRow(vm) {
  const cells = COLUMNS.map(([title, read], index) => {
    const attributes = index === 1 ? { scope: "row", role: "rowheader" } : { role: "cell" };
    return element(index === 1 ? "th" : "td", {
      ...attributes,
      "data-label": title,
      class: WIDE[title] ?? null,
      title: LONG.has(title) ? read(vm) : null,
    }, ...tableCell(title, read(vm), vm));
  });
  return element("tr", { role: "row" }, ...cells);
}

function tableCell(title, value, vm) {
  if (title === "State") return [element("span", {}, mark(vm.state), ` ${value}`)];
  if (title === "Node" || title === "Storage") return [shortNode(value)];
  if (title in NUMBERS) return [value.toLocaleString("en", NUMBERS[title])];
  if (title !== "VM") return [value];
  const button = element("button", {
    type: "button",
    "aria-pressed": String(vm === chosen.selected),
    click: () => select(vm),
  }, value);
  return [Object.assign(button, { vm })];
}

// The selected VM and the tabs

function select(vm) {
  chosen.selected = vm === chosen.selected ? null : vm;
  for (const [of, button] of buttons) button.setAttribute("aria-pressed", of === chosen.selected);
  const panel = byId("details");
  panel.hidden = !chosen.selected;
  if (chosen.selected) {
    const facts = CARD.map(([title, read, detail = read]) => [title, detail(vm)]);
    const rows = facts.filter(([, value]) => value !== "").flatMap((
      [title, value],
    ) => [element("dt", {}, title), element("dd", {}, value)]);
    const close = element(
      "button",
      { type: "button", class: "close", "aria-label": "Close", click: closeDetails },
      "×",
    );
    const title = element("h2", {}, mark(vm.state), ` ${vm.namespace}/${vm.name}`);
    panel.replaceChildren(close, title, element("dl", {}, ...rows), ...commandsFor(vm).map(copyable));
  }
  drawLines();
  link();
}

function commandsFor(vm) {
  const explain = `kubevirt-scheduler explain vm ${quoted(vm.name)} -n ${quoted(vm.namespace)}`;
  return [...(vm.commands || []), explain]; // the commands of the advice
}

// As a shell reads it. Kubernetes' names need no quotes, but a report may come from a file.
function quoted(name) {
  return /^[\w.-]+$/.test(name) ? name : `'${name.replaceAll("'", "'\\''")}'`;
}

function copyable(command) {
  const code = element("code", {}, command);
  const copy = () =>
    navigator.clipboard.writeText(command).then(
      () => (button.textContent = "Copied"),
      () => getSelection().selectAllChildren(code), // without the right to write, the user copies the selection
    );
  const button = element("button", { type: "button", click: copy }, "Copy");
  return element("p", { class: "command" }, code, button);
}

function closeDetails() {
  const button = buttons.get(chosen.selected);
  select(null);
  button?.focus();
}

function openTab(name) {
  for (const each of ["map", "table"]) {
    byId(each).hidden = each !== name;
    byId(`tab-${each}`).setAttribute("aria-selected", each === name);
    byId(`tab-${each}`).setAttribute("tabindex", each === name ? "0" : "-1");
  }
  show();
}

function addTabs() {
  const other = { map: "table", table: "map" };
  for (const name of ["map", "table"]) {
    byId(`tab-${name}`).addEventListener("click", () => openTab(name));
    byId(`tab-${name}`).addEventListener("keydown", (event) => {
      if (!["ArrowLeft", "ArrowRight"].includes(event.key)) return;
      openTab(other[name]);
      byId(`tab-${other[name]}`).focus();
    });
  }
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    if (chosen.selected) closeDetails();
    else if (MATRIX.cell) closeCell();
  });
}

function closeCell() {
  const { row, column } = MATRIX.cell;
  openCell(null);
  byId("matrix").querySelector(`.cell[data-key="${CSS.escape(`${row}/${column}`)}"]`)?.focus();
}

// The URL: a link shows the same filters, view, cell and VM

let linked = "";

function link() {
  const { row, column } = MATRIX.cell || {};
  const [sort] = COLUMNS[chosen.sort];
  const values = {
    state: [...chosen.states].join(","),
    namespace: chosen.namespace,
    search: chosen.search,
    view: byId("map").hidden ? "table" : "",
    sort: sort === START.sort && chosen.ascending === START.ascending ? "" : `${chosen.ascending ? "" : "-"}${sort}`,
    when: MATRIX.when === "now" ? "" : MATRIX.when,
    cell: MATRIX.cell ? `${row}/${column}` : "",
    vm: chosen.selected ? keyOf(chosen.selected) : "",
  };
  const of = String(new URLSearchParams(Object.entries(values).filter(([, value]) => value)));
  if (of === linked) return;
  linked = of;
  history.replaceState(null, "", `#${of}`);
}

function follow() {
  if (location.hash.slice(1) === linked || (location.hash && !location.hash.includes("="))) return; // #results
  const of = new URLSearchParams(location.hash.slice(1));
  byId("search").value = chosen.search = (of.get("search") || "").toLowerCase();
  chosen.namespace = of.get("namespace") || "";
  chosen.states = new Set((of.get("state") || "").split(",").filter((state) => Object.hasOwn(STATES, state)));
  const sort = (of.get("sort") || "").replace("-", "");
  const index = COLUMNS.findIndex(([title]) => title === (sort || START.sort));
  Object.assign(chosen, {
    sort: Math.max(0, index),
    ascending: sort ? !of.get("sort").startsWith("-") : START.ascending,
  });
  const [row, column] = (of.get("cell") || "").split("/");
  Object.assign(MATRIX, {
    when: Object.hasOwn(WHEN, of.get("when")) ? of.get("when") : "now",
    cell: column === undefined ? null : { row, column },
  });
  listNamespaces();
  const selected = vms.find((vm) => keyOf(vm) === of.get("vm")) || null;
  chosen.selected = null;
  openTab(of.get("view") === "table" ? "table" : "map");
  select(shown.includes(selected) ? selected : null);
}

// A dashboard reads the cluster again and again

async function refresh() {
  let problem = "";
  try {
    const answer = await fetch("report.json");
    const body = await answer.text();
    if (answer.ok) update(body);
    else problem = JSON.parse(body).error;
  } catch {
    problem = "the dashboard does not answer";
  }
  showSource(printable(problem));
  setTimeout(refresh, INTERVAL);
}

function update(json) {
  const content = ({ vms, nodes, summary, history, warnings }) =>
    JSON.stringify([vms, nodes, summary, history, warnings]);
  const next = parsed(json);
  if (content(next) === content(report)) {
    report.time = next.time;
    return;
  }
  const [sort] = COLUMNS[chosen.sort];
  take(next);
  chosen.sort = Math.max(0, COLUMNS.findIndex(([title]) => title === sort));
  const focused = document.activeElement;
  const [vm, key] = [[...buttons].find(([, button]) => button === focused)?.[0], focused?.dataset?.key];
  const again = (of) => (of && vms.find((each) => keyOf(each) === keyOf(of))) || null;
  const selected = again(chosen.selected);
  chosen.selected = null;
  showHeader();
  listNamespaces();
  show();
  select(selected);
  if (vm) buttons.get(again(vm))?.focus();
  else if (key !== undefined) byId("matrix").querySelector(`.cell[data-key="${CSS.escape(key)}"]`)?.focus();
}

const INTERVAL = 1000 * Number(byId("report").dataset.interval); // milliseconds; 0 in a file
const START = { sort: COLUMNS[chosen.sort][0], ascending: chosen.ascending };
addEventListener("beforeprint", () => showTable(Infinity)); // paper gets the table: scrolled cells would mislead
addEventListener("hashchange", follow);
byId("members").addEventListener("keydown", moveFocus);
showSource();
showHeader();
addFilters();
addTabs();
listNamespaces();
location.hash.includes("=") ? follow() : show();
new ResizeObserver(drawLines).observe(byId("chart"));
addEventListener("resize", fitTable);
if (INTERVAL) setTimeout(refresh, INTERVAL);
