"use strict";
// The header, the filters, the table, and the selected VM.

function showSummary() {
  const summary = report.summary || {}; // counts all VMs; with --apart, the report lists fewer
  byId("summary").textContent = [summary.text, NFS, DATA.text, (summary.workloads || {}).text].filter(Boolean).join(". ");
  for (const [state, listed] of counted(vms)) {
    const count = summary[state[0].toLowerCase() + state.slice(1)] ?? listed;
    const share = element("span", { class: state, title: `${count} ${words(state)}` });
    share.style.flexGrow = count;
    if (count) byId("shares").append(share);
  }
}

function showSource() {
  const { cluster, time } = report;
  byId("source").textContent = [cluster, time && new Date(time).toLocaleString("en", { dateStyle: "medium", timeStyle: "short" })].filter(Boolean).join(", ");
}

function addFilters() {
  for (const [state, count] of counted(vms)) {
    const toggle = () => {
      chosen.states.has(state) ? chosen.states.delete(state) : chosen.states.add(state);
      show();
    };
    const attributes = { type: "button", "data-state": state, title: STATES[state][2], "aria-pressed": "false", click: toggle };
    byId("states").append(element("button", attributes, mark(state), ` ${words(state)} `, element("b", {}, count)));
  }
  for (const namespace of [...new Set(vms.map((vm) => vm.namespace))].sort())
    byId("namespace").append(element("option", { value: namespace }, namespace));
  byId("namespace").addEventListener("change", (event) => choose("namespace", event.target.value));
  for (const field of ["name", "node"])
    byId(field).addEventListener("input", (event) => choose(field, event.target.value.trim().toLowerCase()));
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
  byId("filters").addEventListener("reset", () => {
    Object.assign(chosen, { namespace: "", name: "", node: "" });
    chosen.states.clear();
    show();
  });
}

function choose(what, value) {
  chosen[what] = value;
  show();
}

function passes(vm) {
  return (
    (!chosen.namespace || vm.namespace === chosen.namespace) &&
    vm.name.toLowerCase().includes(chosen.name) &&
    (!chosen.node || `${vm.node}\n${vm.storageNode}`.toLowerCase().includes(chosen.node))
  );
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
  MATRIX.cell = null;
  if (chosen.selected && !shown.includes(chosen.selected)) select(null);
  byId("map").hidden ? showTable() : showNodes();
}

// The table

const LISTED_VMS = 500; // rows; each thousand more takes about a second

function showTable(all = false) {
  const read = COLUMNS[chosen.sort][1];
  const order = (one, other) => String(read(one)).localeCompare(String(read(other)), "en", { numeric: true });
  const sorted = [...shown].sort((one, other) => (chosen.ascending ? order(one, other) : order(other, one)));
  const table = element(
    "table",
    { role: "table" },
    element("caption", {}, "VMs, the nodes on which they run, and the nodes of their share-managers"),
    element("thead", { role: "rowgroup" }, element("tr", { role: "row" }, ...COLUMNS.map(columnHeader))),
    element("tbody", { role: "rowgroup" }, ...sorted.slice(0, all ? Infinity : LISTED_VMS).map(tableRow)),
  );
  const rest = element("p", { class: "hint" }, `${LISTED_VMS} of ${plural(sorted.length, "VM")}. `, element("button", { type: "button", click: () => showTable(true) }, "Show all"));
  byId("table").replaceChildren(sortChoice(), table, ...(all || sorted.length <= LISTED_VMS ? [] : [rest]));
}

// A phone shows the rows as cards, without the column headers.
function sortChoice() {
  const options = COLUMNS.map(([title], index) => element("option", { value: index, selected: index === chosen.sort ? "" : null }, title));
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
  return element("th", { scope: "col", role: "columnheader", "aria-sort": direction }, button);
}

function tableRow(vm) {
  const cells = COLUMNS.map(([title, read], index) => {
    const content = title === "State" ? [element("span", {}, mark(vm.state), ` ${read(vm)}`)] : [read(vm)];
    const attributes = index === 1 ? { scope: "row", role: "rowheader" } : { role: "cell" };
    return element(index === 1 ? "th" : "td", { ...attributes, "data-label": title }, ...content);
  });
  return element("tr", { role: "row" }, ...cells);
}

// The selected VM and the tabs

function select(vm) {
  chosen.selected = vm === chosen.selected ? null : vm;
  for (const [of, button] of buttons) button.setAttribute("aria-pressed", of === chosen.selected);
  const panel = byId("details");
  panel.hidden = !chosen.selected;
  if (chosen.selected) {
    const facts = COLUMNS.slice(2).map(([title, read, detail = read]) => [title, detail(vm)]);
    const rows = facts.filter(([, value]) => value !== "").flatMap(([title, value]) => [element("dt", {}, title), element("dd", {}, value)]);
    const close = element("button", { type: "button", class: "close", "aria-label": "Close", click: closeDetails }, "×");
    const title = element("h2", {}, mark(vm.state), ` ${vm.namespace}/${vm.name}`);
    panel.replaceChildren(close, title, element("dl", {}, ...rows), ...commandsFor(vm).map(copyable));
  }
  drawLines();
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
  document.addEventListener("keydown", (event) => event.key === "Escape" && chosen.selected && closeDetails());
}

addEventListener("beforeprint", () => showTable(true)); // paper gets the table: lines and scrolled cells would mislead
showSource();
showSummary();
addFilters();
addTabs();
show();
new ResizeObserver(drawLines).observe(byId("chart"));
