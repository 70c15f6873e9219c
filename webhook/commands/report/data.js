"use strict";
// The report, and how its values become text. Every text reaches the page as a text node or an attribute, not as HTML.
// The scripts share their top-level names, in this order: data.js, header.js, nodes.js, matrix.js, page.js.

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

// The worst first. A VM whose I/O hangs comes before all of them.
const WORST = ["Apart", "Waiting", "Unserved", "Stopped", "Together", "NotConcerned"];

let report, vms, NODES, TRAFFIC, NFS, DATA, COLUMNS, CARD, DOMAIN;

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
  const known = { data: DATA.local || DATA.remote, nfs: NFS };
  COLUMNS = [
    ["Namespace", (vm) => vm.namespace],
    ["VM", (vm) => vm.name],
    ["State", (vm) => [words(vm.state), vm.migrating && "migrating", vm.paused && "paused"].filter(Boolean).join(", ")],
    ...(TRAFFIC
      ? [
        ["MB/s", (vm) => vm.traffic.bytes / 1e6, (vm) => megabytes(vm.traffic.bytes)],
        ["Ops/s", (vm) => vm.traffic.operations, (vm) => Math.round(vm.traffic.operations).toLocaleString("en")],
      ]
      : []),
    ["What to do", (vm) => vm.nextStep ?? vm.advice, (vm) => vm.advice], // the details have more words
    ["Node", (vm) => vm.node],
    ["Storage", (vm) => vm.storageNode],
    ["Reason", (vm) => vm.reason],
    ["Opted in", optIn],
    ...(known.data ? [["Data", (vm) => vm.data.text]] : []),
    ...(known.nfs ? [["NFS", (vm) => vm.nfs.text]] : []),
    ["If started", (vm) => vm.ifStarted.text || ""],
  ];
  CARD = COLUMNS.slice(2); // the facts beside the VM's name
  CARD.splice(CARD.findIndex(([title]) => title === "Reason"), 0, ["Claim", (vm) => vm.claim]);
}

take(parsed(byId("report").textContent));
const chosen = { namespace: "", search: "", states: new Set(), selected: null, sort: 2, ascending: true };
let shown = vms;

function optIn(vm) {
  if (vm.optedOut) return "opted out";
  return vm.optInPending ? "from next start" : OPTED_IN[vm.optedInBy] || "no";
}

// One number and one action: the commands, between backticks, are drawn as code.
function headline({ vms = 0, apart = 0, togetherAfterRecolocate = 0, togetherAfterRestart = 0, ...summary }) {
  if (!apart) return vms ? `None of ${plural(vms, "VM")} is apart.` : "No VMs.";
  const first = `${apart.toLocaleString("en")} of ${plural(vms, "VM")} ${apart === 1 ? "is" : "are"} apart.`;
  const count = (togetherAfterRecolocate || togetherAfterRestart).toLocaleString("en");
  if (togetherAfterRecolocate) return `${first} \`recolocate\` brings ${count} together.`;
  if (!togetherAfterRestart) return `${first} Neither \`recolocate\` nor a restart brings one together.`;
  const toOptIn = summary.togetherAfterRestartNotOptedIn;
  return `${first} ${toOptIn ? "Opt-in and a restart bring" : "A restart brings"} ${count} together.`;
}

// The order of the states, then the most traffic.
function badness(vm) {
  const rank = vm.outage ? -1 : WORST.indexOf(known(vm.state));
  return [rank, -((vm.traffic || {}).bytes || 0), vm.nextStep ? 0 : 1];
}

const COLLATOR = new Intl.Collator("en", { numeric: true });

function compared(one, other) {
  return typeof one === "number" ? one - other : COLLATOR.compare(one, other);
}

// The order of the VMs by a column; equal ones are sorted by name.
function ordered(vms, title, read, ascending) {
  const keys = new Map(vms.map((vm) => [vm, title === "State" ? badness(vm) : [read(vm)]]));
  const order = (one, other) => keys.get(one).map((part, at) => compared(part, keys.get(other)[at])).find(Boolean) || 0;
  const byName = (one, other) => compared(one.namespace, other.namespace) || compared(one.name, other.name);
  return [...vms].sort((one, other) => (ascending ? order(one, other) : order(other, one)) || byName(one, other));
}

// Whether each word of a search is a part of a name of the VM, of its claim or of a node.
function isFound(vm, search) {
  const text = [vm.name, vm.claim, vm.node, vm.storageNode].join("\n").toLowerCase();
  return search.split(/\s+/).every((word) => text.includes(word));
}

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
