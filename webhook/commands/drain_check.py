"""`kubevirt-scheduler drain-check`: what a drain of nodes does to VMs, and in which order to prepare it."""

import textwrap
from collections.abc import Iterable, Sequence

import click

from webhook.catalog.inventory import Inventory
from webhook.commands.completion import complete
from webhook.commands.fleet_source import Scope, assess_all, read_fleet, show_settings
from webhook.commands.options import as_data, live_options, output_option, snapshot_option
from webhook.commands.tables import NO_VALUE, render_table, terminal_columns
from webhook.fleet.drain import Affected, AffectedPod, Drain, check_drain, commands, order_drain
from webhook.fleet.machine import Status
from webhook.fleet.relocation.rules import Surroundings
from webhook.fleet.simulation.events import Effect, Event, reasons_of, words_of
from webhook.fleet.simulation.state import Site
from webhook.placement.objects.fields import JsonObject, has_condition, printable, text
from webhook.placement.objects.longhorn import FAST_FAILOVER, VERSION_SETTING
from webhook.placement.settings import Settings
from webhook.reading.documents import BadInput

COLUMNS = 100  # without a terminal
LISTED_TARGETS = 3  # of a VM in a report, which checks a drain of each node
EXIT_UNSAFE = 1
HEADS = ("VM", "NODE", "STORAGE", "EFFECT", "WHY")
PAUSE = (
    "I/O pauses until the new share-manager runs, and then for at most {} s, until all NFS clients are back. Before "
    "1.9, KubeVirt may restart a VM whose I/O pauses for 30 s"
)
COLORS = {"Migrates": "green", "Restarts": "red", "Stops": "red", "Blocks": "red"}


@click.command(short_help="say what a drain of nodes would do to VMs")
@click.argument("nodes", nargs=-1, required=True, metavar="NODE...", shell_complete=complete("node"))
@snapshot_option
@output_option("table", "json", "yaml")
@click.option("--rolling", is_flag=True, help="Drain one node after the other, and bring each back before the next.")
@live_options
def drain_check(nodes: tuple[str, ...], output: str, *, rolling: bool) -> None:
    """Say what happens to VMs if these nodes are drained at once, and print the order of a drain. Nothing is changed.

    The exit status is 1 if the drain would interrupt a VM or not end, and 2 if the cluster can't be read.

    \b
    Examples:
      kubevirt-scheduler drain-check node-a
      kubevirt-scheduler drain-check node-a node-b -o json
      kubevirt-scheduler drain-check node-a node-b --rolling
      kubevirt-scheduler drain-check node-a --snapshot cluster.json
    """  # noqa: D301 (click's mark for a block whose line breaks are kept)
    fleet = read_fleet()
    if unknown := [node for node in nodes if fleet.inventory.store.node(node) is None]:
        raise BadInput(f'Node "{unknown[0]}" not found; to list all: kubectl get nodes')
    settings = fleet.webhook.predicting
    site = site_of(list(assess_all(fleet.inventory, Scope(None, {}), settings)), fleet.inventory, settings)
    drain = check_drain(site, nodes, rolling=rolling)
    ordered = order_drain(site, nodes, rolling=rolling)
    found = describe(drain) | {"order": [{"command": command, "comment": why} for command, why in commands(ordered)]}
    found |= {"inOrder": _in_order(ordered), "notes": _notes(drain, fleet.inventory)}
    if output == "table":
        show_settings(fleet.webhook)
        click.echo(_render(found), nl=False)
    else:
        click.echo(as_data(fleet.origin() | found, output), nl=False)
    if not drain.is_safe:
        raise SystemExit(EXIT_UNSAFE)


def site_of(statuses: Sequence[Status], inventory: Inventory, settings: Settings) -> Site:
    """Return what the check reads of a cluster. `statuses` are all VMs'."""
    return Site(
        statuses,
        inventory.store,
        Surroundings(settings),
        lambda name: inventory.longhorn_setting(name, settings) or "",
        inventory.store.pods.values(),
        inventory.budgets.values(),
        inventory.volume_data(),
        text(inventory.kubevirt, "spec", "configuration", "evictionStrategy"),
        inventory.pods,
    )


def describe_drains(
    nodes: Iterable[JsonObject], statuses: Sequence[Status], inventory: Inventory, settings: Settings
) -> None:
    """Add to each node of a report what its drain does. `statuses` are all VMs'."""
    site = site_of(statuses, inventory, settings)
    for node in nodes:
        node["drain"] = describe(check_drain(site, [node["name"]], LISTED_TARGETS))


def describe(drain: Drain) -> JsonObject:
    """Return what a drain does, for programs and for the page of `report`."""
    interrupted = sum(each.interrupted for each in drain.vms)
    surely = sum(each.surely_interrupted for each in drain.vms)
    plural = "VM" if len(drain.vms) == 1 else "VMs"
    words = f"A drain of {', '.join(drain.nodes)} concerns {len(drain.vms)} {plural} and interrupts {surely}"
    words += f", perhaps {interrupted}" if interrupted > surely else ""
    return {
        "nodes": list(drain.nodes),
        "safe": drain.is_safe,
        "interrupted": interrupted,
        "text": words if drain.vms else f"A drain of {', '.join(drain.nodes)} concerns no VM",
        "vms": [_vm(each) for each in drain.vms],
        "pods": [_pod(each) for each in drain.pods],
        "obstacles": [
            {"kind": each.kind, "name": each.name, "detail": each.detail, "ends": each.ends} for each in drain.obstacles
        ],
    }


def _in_order(drain: Drain) -> JsonObject:
    """Return what the printed order does."""
    found = describe(drain)
    apart = sum(each.place in ("Apart", "MayBeApart") for each in drain.vms)
    words = found["text"].replace("A drain", "In this order, a drain", 1)
    words += f"; afterwards, {apart} may be apart from their storage" if apart else ""
    return found | {"text": words}


def _pod(affected: AffectedPod) -> JsonObject:
    return {
        "namespace": affected.pod.namespace,
        "name": affected.pod.name,
        "node": affected.pod.node,
        "claim": affected.claim,
        "text": words_of(affected.events),
        "events": [_event(each) for each in affected.events],
        "why": reasons_of(affected.events),
    }


def _vm(vm: Affected) -> JsonObject:
    machine = vm.status.machine
    return {
        "namespace": machine.namespace,
        "name": machine.name,
        "node": vm.status.node,
        "storageNode": vm.status.storage_node,
        "effects": list(vm.effects),
        "text": words_of(vm.events),
        "why": vm.why,
        "interrupted": vm.interrupted,
        "claims": [each.claim for each in vm.lost],
        "targets": list(vm.targets),
        "events": [_event(each) for each in vm.events],
        "after": vm.place,
    }


def _event(event: Event) -> JsonObject:
    somebody = "somebody acts" if event.lasts else ""
    return {
        "effect": event.effect.value,
        "step": event.step,
        "may": event.may,
        "until": event.until.value if event.until else somebody,
        "untilStep": event.until_step,
        "why": event.why,
    }


def _notes(drain: Drain, inventory: Inventory) -> list[str]:
    """Return what the effects mean, and what the check could not read."""
    setting = drain.site.longhorn
    notes = list[str]()
    if any(Effect.IO_PAUSES in each.effects for each in drain.vms):
        # `nfsConfig` in https://github.com/longhorn/longhorn-manager/blob/5ddaa369/controller/share_manager_controller.go
        seconds = 30 if setting(FAST_FAILOVER) == "true" else 90
        notes = [PAUSE.format(seconds)]
    if stay := ["/".join(each.status.machine.key) for each in drain.vms if _lacks_strategy(each, drain)]:
        notes.append(f"With evictionStrategy: LiveMigrate, KubeVirt would migrate {', '.join(stay)}")
    known = {
        "poddisruptionbudgets": inventory.budgets,
        "replicas.longhorn.io": inventory.store.replicas,
        "volumes.longhorn.io": inventory.store.longhorn_volumes,
        "settings.longhorn.io": setting(VERSION_SETTING),
    }
    missing = ", ".join(name for name, found in known.items() if not found)
    return notes + [f"Nothing is known of these, maybe because you may not list them: {missing}"] * bool(missing)


def _lacks_strategy(affected: Affected, drain: Drain) -> bool:
    """Return whether a VM is interrupted only because no eviction strategy asks KubeVirt to migrate it."""
    vmi, node = affected.status.machine.vmi, affected.status.node
    strategy = text(vmi, "spec", "evictionStrategy") or drain.site.strategy or "None"
    goes = affected.interrupted and node in drain.nodes and has_condition(vmi, "LiveMigratable")
    return goes and strategy == "None"


def _render(described: JsonObject) -> str:
    columns = terminal_columns(COLUMNS)
    rows = [
        (f"{vm['namespace']}/{vm['name']}", *(vm[key] or NO_VALUE for key in ("node", "storageNode", "text", "why")))
        for vm in described["vms"]
    ]
    pods = [(f"{pod['namespace']}/{pod['name']}", pod["node"], pod["text"], pod["why"]) for pod in described["pods"]]
    waits = [(each["kind"], each["name"], each["detail"]) for each in described["obstacles"]]
    order = "".join(
        f"  {each['command']}{'  # ' * bool(each['comment'])}{each['comment']}\n" for each in described["order"]
    )
    parts = (
        f"{printable(described['text'])}.\n",
        render_table(HEADS, rows, colors=COLORS, columns=columns),
        render_table(("POD", "NODE", "EFFECT", "WHY"), pods, columns=columns),
        render_table(("THE DRAIN WAITS FOR", "NAME", "WHY"), waits, columns=columns),
        "".join(f"{textwrap.fill(f'{note}.', columns)}\n" for note in described["notes"]),
        f"Order:\n{order}",
        f"{textwrap.fill(printable(described['inOrder']['text']), columns)}.\n",
    )
    return "\n".join(filter(None, parts))
