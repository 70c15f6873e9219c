"use strict";
// The report, and how its values become text. Every text reaches the page as a text node or an attribute, not as HTML.
// The scripts share their top-level names, in this order: data.js, nodes.js, matrix.js, page.js.

const STATES = {
  Together: ["●", "together", "runs on the node of its share-manager"],
  Apart: ["⇄", "apart", "runs on a different node than its share-manager"],
  Unserved: ["○", "unserved", "runs, but no share-manager serves its claims"],
  Waiting: ["◔", "waiting", "its pod is Pending"],
  Stopped: ["■", "stopped", "has no pod"],
  NotConcerned: ["–", "not concerned", "mounts no claim that a share-manager serves"],
};
const OPTED_IN = { annotation: "yes", namespace: "by namespace", "storage-class": "by StorageClass" };

// Control characters, and those that reverse the direction of the text around them.
const UNPRINTABLE = /[\p{C}\p{Zl}\p{Zp}]/gu;

let report, vms, NODES, TRAFFIC, NFS, DATA, COLUMNS, DOMAIN;

function parsed(json) {
  return JSON.parse(json, (_, value) => (typeof value === "string" ? printable(value) : value));
}

function take(next) {
  report = next;
  vms = (report.vms || []).map((vm) =>
    Object.fromEntries(Object.entries(vm).map(([key, value]) => [key, value ?? ""]))
  );
  NODES = new Map((report.nodes || []).map((node) => [node.name, node]));
  TRAFFIC = (report.summary || {}).traffic; // what crosses the network, if it is known
  NFS = ((report.summary || {}).nfs || {}).text; // which VMs loopback NFS exposes, and which can leave NFS
  DATA = (report.summary || {}).data || {}; // whether the share-managers run beside a replica
  DOMAIN = sharedDomain(
    [...new Set([...NODES.keys(), ...vms.flatMap((vm) => [vm.node, vm.storageNode])])].filter(Boolean),
  );
  COLUMNS = [
    ["Namespace", (vm) => vm.namespace],
    ["VM", (vm) => vm.name],
    ["State", (vm) => [words(vm.state), vm.migrating && "migrating", vm.paused && "paused"].filter(Boolean).join(", ")],
    ["Opted in", (vm) => (vm.optedOut ? "opted out" : OPTED_IN[vm.optedInBy] || "no")],
    ["Node", (vm) => vm.node],
    ["Storage", (vm) => vm.storageNode],
    ["Claim", (vm) => vm.claim],
    ["Reason", (vm) => vm.reason],
    ...(DATA.local || DATA.remote ? [["Data", (vm) => vm.data.text]] : []),
    ...(NFS ? [["NFS", (vm) => vm.nfs.text]] : []),
    ["If started", (vm) => vm.ifStarted.text || ""],
    ...(TRAFFIC
      ? [["Operations/s", (vm) => Math.round(vm.traffic.operations)], ["MB/s", (vm) => megabytes(vm.traffic.bytes)]]
      : []),
    ["What to do", (vm) => vm.nextStep ?? vm.advice, (vm) => vm.advice], // the details have more words
  ];
}

take(parsed(byId("report").textContent));
const chosen = { namespace: "", name: "", node: "", states: new Set(), selected: null, sort: 0, ascending: true };
if (TRAFFIC) Object.assign(chosen, { sort: COLUMNS.findIndex(([title]) => title === "MB/s"), ascending: false });
let shown = vms;

// The domain in which all names end, with its dot. The page omits it where a name is only shown.
function sharedDomain(names) {
  const [first = "", ...others] = names.map((name) => name.split(".").slice(1).reverse());
  const differs = [...first].findIndex((label, at) => others.some((other) => other[at] !== label));
  const labels = [...first].slice(0, differs < 0 ? undefined : differs).reverse();
  return /[a-z]/.test(labels.join()) ? `.${labels.join(".")}` : ""; // not a part of an IP address
}

function shortNode(name) {
  return DOMAIN && name.endsWith(DOMAIN) ? name.slice(0, -DOMAIN.length) : name;
}

function keyOf(vm) {
  return `${vm.namespace}/${vm.name}`;
}

function printable(text) {
  return text.replace(UNPRINTABLE, "\ufffd");
}

function byId(id) {
  return document.getElementById(id);
}

function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(name, value);
    else if (value !== null) made.setAttribute(name, value);
  }
  made.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return made;
}

function known(state) {
  return Object.hasOwn(STATES, state) ? state : "NotConcerned";
}

function words(state) {
  return Object.hasOwn(STATES, state) ? STATES[state][1] : state;
}

function mark(state) {
  return element("span", { class: `mark ${known(state)}`, "aria-hidden": "true" }, STATES[known(state)][0]);
}

function megabytes(bytes) {
  return (bytes / 1e6).toFixed(1);
}

function plural(count, noun) {
  return `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
}

function counted(of) {
  return Object.keys(STATES).map((state) => [state, of.filter((vm) => known(vm.state) === state).length]);
}
