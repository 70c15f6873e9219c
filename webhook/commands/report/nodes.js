"use strict";
// The nodes as boxes with their VMs, and the lines between them.

const SVG = "http://www.w3.org/2000/svg";
const DENSE = 16; // VMs in a box; more are drawn as squares without their names
const CROWDED = 14; // lines; more are faint and without their counts until a node is chosen
const THICK = 6; // VMs; fewer are drawn as thinner lines
const WAITING_ROOM = ""; // the box of the VMs without a node
const HARM = [["Blocks", "blocked"], ["IOHangs", "hangs"], ["Stops", "stops"], ["Restarts", "restarts"]]; // worst first

const boxes = new Map(); // node → its box
const buttons = new Map(); // VM → its button
const drains = new Set(); // the nodes whose drain is open: a dashboard draws the boxes again

function drawn(tag, attributes, text = "") {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.textContent = text;
  return made;
}

function showNodes() {
  const matrix = servedNodes().size > MANY_NODES;
  byId("matrix").hidden = !matrix;
  byId("boxes").hidden = matrix;
  boxes.clear();
  buttons.clear();
  matrix ? showMatrix() : showBoxes();
}

function showBoxes() {
  byId("members").hidden = true;
  const served = new Map(); // node → the VMs elsewhere that it serves
  for (const vm of shown.filter(isApart)) served.set(vm.storageNode, (served.get(vm.storageNode) || 0) + 1);
  const filtered = Boolean(chosen.namespace || chosen.search || chosen.states.size);
  const all = filtered ? [] : report.nodes || [];
  const byNode = new Map();
  for (const vm of shown) byNode.set(vm.node, [...(byNode.get(vm.node) || []), vm]);
  const busy = all.filter((node) => node.vms || node.shareManagers).map((node) => node.name);
  const names = [...new Set([...byNode.keys(), ...served.keys(), ...busy])].filter((name) => name !== WAITING_ROOM);
  names.sort((one, other) => one.localeCompare(other, "en", { numeric: true }));
  const parts = names.map((name) => box(name, byNode.get(name) || [], served.get(name) || 0, filtered));
  if (byNode.has(WAITING_ROOM)) parts.push(box(WAITING_ROOM, byNode.get(WAITING_ROOM), 0, filtered));
  const idle = all.length - busy.length;
  if (idle > 0) parts.push(element("p", { class: "idle" }, `${plural(idle, "node")} without VMs and share-managers`));
  byId("nodes").replaceChildren(...parts);
  drawLines();
}

function nodeProblem(name) {
  const node = NODES.get(name);
  return [node?.ready === false && "NotReady", node?.cordoned && "cordoned"].filter(Boolean).join(", ");
}

function isApart(vm) {
  return vm.state === "Apart" && vm.node && vm.storageNode && vm.node !== vm.storageNode;
}

function box(name, members, served, filtered) {
  const node = NODES.get(name);
  const title = name || "Not on a node";
  const managers = filtered ? 0 : node?.shareManagers;
  const facts = [
    members.length && plural(members.length, "VM"),
    filtered && served && `serves ${plural(served, "VM")} elsewhere`,
    managers && plural(managers, "share-manager"),
    nodeProblem(name),
  ];
  const line = facts.filter(Boolean).join(", ");
  const made = element(
    "article",
    { class: name ? "node" : "node nowhere", "data-node": name, "aria-label": `${title}: ${line}` },
    element("h2", { title }, name ? shortNode(name) : title),
    element("p", { class: "facts" }, line),
    ...bars(node?.requested),
    ...drain(name, node?.drain),
    element("ul", { class: members.length > DENSE ? "dense" : null }, ...members.map(vmItem)),
  );
  for (const event of ["mouseenter", "focusin"]) made.addEventListener(event, () => highlight(name));
  for (const event of ["mouseleave", "focusout"]) made.addEventListener(event, () => highlight(null));
  made.addEventListener("keydown", moveFocus);
  made.querySelector("li button")?.setAttribute("tabindex", "0");
  boxes.set(name, made);
  return made;
}

function bars(requested) {
  const parts = Object.entries(requested || {}).map(([resource, share]) => {
    const percent = Math.round(100 * Number(share));
    const label = `${resource}: ${percent} % requested`;
    const attributes = {
      role: "meter",
      "aria-valuemin": 0,
      "aria-valuemax": 100,
      "aria-valuenow": percent,
      "aria-label": label,
      title: label,
    };
    const bar = element("span", { class: percent >= 90 ? "bar full" : "bar", ...attributes }, element("i", {}));
    bar.firstChild.style.width = `${Math.min(percent, 100)}%`;
    return element("div", {}, element("span", {}, resource), bar, element("span", {}, `${percent} %`));
  });
  return parts.length ? [element("div", { class: "bars" }, ...parts)] : [];
}

function drain(name, found) {
  if (!found?.vms.length && !found?.obstacles.length) return [];
  const rows = [
    ...found.vms.map((vm) => `${vm.namespace}/${vm.name} (${vm.node}): ${vm.text}. ${vm.why}`),
    ...found.obstacles.map((each) => `${each.kind} ${each.name}: ${each.detail}`),
  ];
  const title = `If drained: ${plural(found.interrupted, "VM")} interrupted${found.safe ? "" : `, ${unsafe(found)}`}`;
  const toggle = ({ target }) => (target.open ? drains.add(name) : drains.delete(name), drawLines());
  return [
    element(
      "details",
      { class: "drain", open: drains.has(name) ? "" : null, toggle },
      element("summary", {}, title),
      ...rows.map((row) => element("p", {}, row)),
    ),
  ];
}

// Why a drain is not safe, in one word: what blocks it, or else the worst that it does to a VM.
function unsafe({ vms, obstacles }) {
  const lasting = obstacles.find((each) => !each.ends);
  const effects = vms.flatMap((vm) => vm.effects || []);
  const worst = lasting ? lasting.kind.toLowerCase() : HARM.find(([effect]) => effects.includes(effect))?.[1];
  return ["not safe", worst].filter(Boolean).join(": ");
}

function vmItem(vm) {
  const elsewhere = isApart(vm) ? `, storage on ${vm.storageNode}` : "";
  const traffic = isApart(vm) && TRAFFIC ? `${megabytes(vm.traffic.bytes)} MB/s` : "";
  const title = [`${vm.namespace}/${vm.name}: ${words(vm.state)}${elsewhere}`, traffic].filter(Boolean).join(", ");
  const attributes = { type: "button", class: `vm ${known(vm.state)}`, title, "aria-label": title, tabindex: "-1" };
  const pressed = String(vm === chosen.selected);
  const text = element("span", { class: "text" }, vm.name);
  const button = element(
    "button",
    { ...attributes, "aria-pressed": pressed, click: () => select(vm) },
    mark(vm.state),
    text,
    ...(traffic ? [element("span", { class: "rate" }, traffic)] : []),
  );
  buttons.set(vm, button);
  return element("li", {}, button);
}

function moveFocus(event) {
  const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
  const all = [...event.currentTarget.querySelectorAll("li button")];
  const next = all[all.indexOf(event.target) + steps[event.key]];
  if (!next) return;
  event.target.setAttribute("tabindex", "-1");
  next.setAttribute("tabindex", "0");
  next.focus();
  event.preventDefault();
}

// The lines between them

function drawLines() {
  if (byId("boxes").hidden) return;
  const canvas = byId("lines");
  const origin = byId("chart").getBoundingClientRect();
  const pairs = new Map();
  for (const vm of shown.filter(isApart)) {
    const key = JSON.stringify([vm.node, vm.storageNode]);
    pairs.set(key, (pairs.get(key) || 0) + 1);
  }
  const most = Math.max(THICK, ...pairs.values());
  const groups = [...pairs].map(([key, count]) => line(...JSON.parse(key), count, most, origin));
  const own = chosen.selected && isApart(chosen.selected) ? buttons.get(chosen.selected) : null;
  if (own) groups.push(ownLine(own, boxes.get(chosen.selected.storageNode), origin));
  const arrow = drawn("marker", {
    id: "arrow",
    viewBox: "0 0 8 8",
    refX: 7,
    refY: 4,
    markerWidth: 9,
    markerHeight: 9,
    markerUnits: "userSpaceOnUse",
    orient: "auto",
  });
  arrow.append(drawn("path", { d: "M0 0 8 4 0 8Z" }));
  canvas.replaceChildren(arrow, ...groups.filter(Boolean));
  canvas.classList.toggle("crowded", pairs.size > CROWDED);
  canvas.classList.toggle("some", Boolean(own));
}

function rectangle(of, origin) {
  const { left, top, width, height } = of.getBoundingClientRect();
  return { x: left - origin.left, y: top - origin.top, width, height };
}

function line(from, to, count, most, origin) {
  if (!boxes.has(from) || !boxes.has(to)) return null;
  const { path, x, y } = route(rectangle(boxes.get(from), origin), rectangle(boxes.get(to), origin));
  const group = drawn("g", { "data-from": from, "data-to": to });
  const width = 1.5 + (3.5 * count) / most;
  group.append(drawn("path", { d: path, "stroke-width": width.toFixed(1), "marker-end": "url(#arrow)" }));
  group.append(drawn("circle", { cx: x, cy: y, r: 7 + 2.5 * String(count).length }), drawn("text", { x, y }, count));
  return group;
}

function ownLine(button, target, origin) {
  if (!target) return null;
  const group = drawn("g", { class: "own" });
  const { path } = route(rectangle(button, origin), rectangle(target, origin));
  group.append(drawn("path", { d: path, "stroke-width": 3, "marker-end": "url(#arrow)" }));
  return group;
}

// Leaves one box at the side that faces the other. Boxes of one column, and boxes of one row that aren't neighbors,
// are connected by a curve through the gap beside or above them.
function route(from, to) {
  const middle = (box) => [box.x + box.width / 2, box.y + box.height / 2];
  const [[fromX, fromY], [toX, toY]] = [middle(from), middle(to)];
  const right = toX > fromX;
  if (Math.abs(toX - fromX) < Math.max(from.width, to.width) / 2) {
    const [start, end] = [from.x + from.width, to.x + to.width];
    const out = Math.max(start, end) + 26 + Math.min(14, Math.abs(toY - fromY) / 60);
    const down = toY > fromY ? 12 : -12; // the two directions are two curves
    return curve([start, fromY + down], [out, fromY + down], [out, toY - down], [end, toY - down]);
  }
  const gap = right ? to.x - from.x - from.width : from.x - to.x - to.width;
  if (Math.abs(toY - fromY) < 40 && gap > from.width / 2) {
    const shift = right ? 14 : -14;
    const up = Math.min(from.y, to.y) - (right ? 30 : 16); // two curves again
    return curve([fromX + shift, from.y], [fromX + shift, up], [toX + shift, up], [toX + shift, to.y]);
  }
  const [start, end] = right ? [from.x + from.width, to.x] : [from.x, to.x + to.width];
  const reach = Math.max(24, Math.abs(end - start) / 2) * (right ? 1 : -1);
  const shift = right ? -14 : 14;
  return curve([start, fromY + shift], [start + reach, fromY + shift], [end - reach, toY + shift], [end, toY + shift]);
}

function curve(...points) {
  const [[x0, y0], [x1, y1], [x2, y2], [x3, y3]] = points.map((point) =>
    point.map((part) => Math.round(part * 10) / 10)
  );
  const label = (a, b, c, d) => 0.274 * a + 0.444 * b + 0.239 * c + 0.043 * d; // nearer to the start: at 0.35
  return {
    path: `M${x0} ${y0}C${x1} ${y1} ${x2} ${y2} ${x3} ${y3}`,
    x: label(x0, x1, x2, x3),
    y: label(y0, y1, y2, y3),
  };
}

function highlight(name) {
  byId("lines").classList.toggle("some", name !== null || Boolean(byId("lines").querySelector(".own")));
  for (const group of byId("lines").querySelectorAll("g")) {
    group.classList.toggle("lit", name === group.dataset.from || name === group.dataset.to);
  }
}
