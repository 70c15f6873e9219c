"""Render the report on the fleet as text: a table of VMs with a summary, or a table of nodes."""

import textwrap
from collections.abc import Callable, Iterator
from typing import Any

from webhook.commands.report.document import LOCAL
from webhook.commands.tables import NO_VALUE, WRAPPING, render_table
from webhook.placement.objects.fields import JsonObject, mapping, printable

COLORS = {"Together": "green", "Apart": "red", "Unserved": "yellow", "Waiting": "yellow", "NotReady": "red"}
TO_DO, IF_STARTED = "WHAT TO DO", "IF STARTED"
HEADS = ("VM", "STATE", "NODE", "STORAGE", TO_DO)
WIDE_HEADS = ("VM", "STATE", TO_DO, "NODE", "STORAGE", "OPT-IN", "CLAIM", "REASON", "DATA", "NFS", IF_STARTED)
NODE_HEADS = ("NODE", "STATUS", "VMS", "APART", "SHARE-MANAGERS", "CPU", "MEMORY", "PODS")
TRAFFIC_HEADS = ("OPS/S", "MB/S")  # what crosses the network
RESOURCES = ("cpu", "memory", "pods")
_OPTED_IN = {None: "no", "annotation": "yes", "namespace": "by namespace", "storage-class": "by StorageClass"}
PENDING = "from next start"
# The keys of --sort-by. The largest number comes first.
SORTS: dict[str, dict[str, Callable[[JsonObject], Any]]] = {
    "vms": {
        "name": lambda vm: vm["name"],
        "state": lambda vm: vm["state"],
        "node": lambda vm: vm["node"] or "",
        "storage": lambda vm: vm["storageNode"] or "",
    },
    "nodes": {
        "name": lambda node: node["name"],
        "vms": lambda node: -node["vms"],
        "apart": lambda node: -node["states"]["apart"],
    }
    | {resource: lambda node, of=resource: -(node["requested"].get(of) or 0) for resource in RESOURCES},
}


def render_vms(report: JsonObject, *, wide: bool, everywhere: bool, columns: int, headers: bool) -> str:
    """Return the settings, a table of VMs and the summary, or without `headers` only the rows of the table.

    `everywhere` adds the namespaces. Text wraps after these `columns`. `wide` prints one line per VM, and cuts
    sentences; without `headers` it cuts none, for scripts.
    """
    marks = {node["name"]: _problems(node) for node in report["nodes"]}
    rows = [[*([vm["namespace"]] * everywhere), *_vm_cells(vm, marks, wide=wide)] for vm in report["vms"]]
    heads = ["NAMESPACE"] * everywhere + [*(WIDE_HEADS if wide else HEADS)]
    if report["summary"]["traffic"]:
        at = heads.index(TO_DO)
        heads[at:at] = TRAFFIC_HEADS
        for row, vm in zip(rows, report["vms"], strict=True):
            row[at:at] = traffic_cells(vm["traffic"])
    sentences = (TO_DO, IF_STARTED) if wide else ()
    limit = columns if headers or not wide else 0
    table = render_table(heads, rows, colors=COLORS, columns=limit, headers=headers, sentences=sentences)
    if not headers:
        return table
    summary = report["summary"]
    nfs = summary["nfs"]["text"]
    nfs += " (to list them: -o wide)" if nfs and not wide else ""
    outages = f"{summary['outages']['text']}." if summary["outages"]["text"] else ""
    lines = [outages, mapping(report, "webhook").get("text"), summary["text"], nfs]
    lines += [summary["data"]["text"] * wide, mapping(summary, "workloads").get("text")]
    filled = (textwrap.fill(printable(each or ""), columns, **WRAPPING) for each in lines)
    outages, head, *below = (f"{each}\n" if each else "" for each in filled)
    return "\n".join(filter(None, (outages, head, table, "".join(below))))


def render_nodes(report: JsonObject, *, columns: int, headers: bool) -> str:
    """Return the table of nodes, empty without nodes."""
    rows = [list(_node_cells(node)) for node in report["nodes"]]
    return render_table(NODE_HEADS, rows, colors=COLORS, columns=columns, headers=headers)


def render_names(report: JsonObject, what: str) -> str:
    """Return the VMs or the nodes as `kubectl get -o name` does."""
    kinds = ("node" if what == "nodes" else f"{each['kind'].lower()}.kubevirt.io" for each in report[what])
    return "".join(f"{kind}/{printable(each['name'])}\n" for kind, each in zip(kinds, report[what], strict=True))


def _vm_cells(vm: JsonObject, marks: JsonObject, *, wide: bool) -> Iterator[str]:
    nodes = [f"{node}{marks.get(node, '')}" if node else NO_VALUE for node in (vm["node"], vm["storageNode"])]
    step = vm["nextStep"] or NO_VALUE
    yield vm["name"]
    if not wide:
        yield from (vm["state"], *nodes, step)
        return
    out = vm.get("excludedBy") or ("opted out" if vm.get("optedOut") else "")
    opted_in = PENDING if vm["optInPending"] else _OPTED_IN[vm["optedInBy"]]
    yield from (state_words(vm), step, *nodes, out or opted_in)
    yield from (vm["claim"] or NO_VALUE, vm["reason"] or NO_VALUE)
    yield from (LOCAL[vm["data"]["local"]] or NO_VALUE, vm["nfs"]["text"] or NO_VALUE)
    yield mapping(vm, "ifStarted").get("text") or NO_VALUE


def state_words(vm: JsonObject) -> str:
    """Return the state of a VM, such as "Together (paused, migrating)"."""
    changes = [mark for mark in ("paused", "migrating") if vm[mark]]
    return f"{vm['state']} ({', '.join(changes)})" if changes else vm["state"]


def traffic_cells(traffic: JsonObject) -> Iterator[str]:
    """Yield operations and megabytes per second."""
    yield from (f"{traffic['operations']:,.0f}", f"{traffic['bytes'] / 1e6:,.1f}")


def _problems(node: JsonObject) -> str:
    found = ["NotReady"] * (node["ready"] is False) + ["cordoned"] * node["cordoned"]
    return f" ({', '.join(found)})" if found else ""


def _node_cells(node: JsonObject) -> Iterator[str]:
    status = {True: "Ready", False: "NotReady", None: "Unknown"}[node["ready"]]  # the words of kubectl
    yield from (node["name"], status + ", cordoned" * node["cordoned"])
    yield from (str(node["vms"]), str(node["states"]["apart"]), str(node["shareManagers"]))
    for resource in RESOURCES:
        share = node["requested"].get(resource)
        yield NO_VALUE if share is None else f"{share:.0%}"
