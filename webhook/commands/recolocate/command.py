"""`kubevirt-scheduler recolocate`: live-migrate running VMs to the node of their storage."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path

import click

from webhook.catalog.inventory import Inventory
from webhook.cluster.client import ClusterClient
from webhook.commands.completion import complete, not_found
from webhook.commands.fleet_source import Scope, assess_all, read_fleet, read_rates, show_reading, show_settings
from webhook.commands.interrupts import interrupts
from webhook.commands.label_selector import parse_selector
from webhook.commands.options import (
    SECONDS,
    all_namespaces_option,
    connect,
    live_options,
    namespace_option,
    output_option,
    prometheus_options,
    selector_option,
    snapshot_option,
)
from webhook.commands.recolocate.migrations import list_migrations, supports_added_node_selector, with_own_limits
from webhook.commands.recolocate.plan import describe, relocations, render, restart_lines, why
from webhook.commands.recolocate.run import MigrationRun, Reporter
from webhook.fleet.move import Move, Proposal, Surroundings, make_plan
from webhook.fleet.run import Limits, Run
from webhook.fleet.states import State
from webhook.fleet.traffic import Rates, Traffic, crossing, reaches
from webhook.fleet.webhook import Webhook
from webhook.placement.objects.facts import Key
from webhook.placement.objects.fields import printable
from webhook.placement.settings import Settings
from webhook.reading.api import answered
from webhook.reading.documents import BadInput
from webhook.reading.installation import find_webhook
from webhook.reading.live import read_inventory

EXIT_FAILED = 1
STORAGE_WARNING = (
    "According to Longhorn's documentation, its RWX volumes over NFS do not support live migration. KubeVirt does "
    "migrate VMs with such volumes. So the first VM of each StorageClass migrates alone, and the command watches it "
    "for {settle} seconds. The command stops at the first failure. Read more: docs/guides/recolocate.md"
)
TOO_OLD = (
    "KubeVirt is too old: VirtualMachineInstanceMigration has no field addedNodeSelector, so a migration cannot name "
    "its target node. Upgrade to KubeVirt 1.6 or newer, or restart the VMs that `kubevirt-scheduler report` names."
)
Read = Callable[[], tuple[Inventory, frozenset[Key]]]
NO_KUBEVIRT = "KubeVirt is not installed: CRD virtualmachineinstancemigrations.kubevirt.io not found"


@click.command(short_help="live-migrate VMs to the node of their storage")
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=complete("vm"))
@all_namespaces_option("Select the VMs of all namespaces.")
@namespace_option
@selector_option
@click.option(
    "--exclude",
    multiple=True,
    metavar="NAMESPACE[/NAME]",
    shell_complete=complete("namespace"),
    help="Leave out a namespace, or a VM. Can be repeated.",
)
@click.option("--yes", is_flag=True, help="Migrate the VMs. Without --yes, the command only prints the plan.")
@click.option("--max", "most", type=click.IntRange(1), metavar="N", help="Migrate at most N VMs.")
@click.option(
    "--parallel",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    metavar="N",
    help="Run at most N migrations at once, and at most KubeVirt's limit minus two, and two per source node.",
)
@click.option(
    "--settle",
    type=SECONDS,
    default=60,
    show_default=True,
    metavar="SECONDS",
    help="How long to watch the first VM of each StorageClass after its migration.",
)
@click.option("--min-iops", type=click.IntRange(1), metavar="N", help="Only VMs with N operations/s over the network.")
@click.option("--min-throughput", type=click.IntRange(1), metavar="MB", help="Or only those with so many megabytes/s.")
@snapshot_option
@click.option("--restart-list", is_flag=True, help="Print commands that restart the VMs that migration can't move.")
@output_option("table", "json", text="The output format. json prints one JSON object per line.")
@prometheus_options
@live_options
def recolocate(  # noqa: PLR0913, PLR0917 (one parameter per option)
    names: tuple[str, ...],
    all_namespaces: bool,
    namespace: str | None,
    selector: str,
    exclude: tuple[str, ...],
    yes: bool,
    most: int | None,
    parallel: int,
    settle: int,
    min_iops: int | None,
    min_throughput: int | None,
    snapshots: tuple[Path, ...],
    restart_list: bool,
    output: str,
    prometheus: str,
    prometheus_token: str,
    **live: str | None,
) -> None:
    """Live-migrate running VMs that are apart from their storage to the node of their share-manager.

    Without --yes, the command changes nothing and prints the plan: an action and a reason for each VM. With --snapshot,
    it plans for the cluster in a file. Ctrl-C stops the command after the running migrations have finished. A second
    Ctrl-C waits only for the current request.

    The exit status is 1 if a migration failed or the run was interrupted, and 2 if the cluster can't be read.

    \b
    Examples:
      kubevirt-scheduler recolocate -A
      kubevirt-scheduler recolocate -n shop -l app=db --max 5 --yes
      kubevirt-scheduler recolocate -n shop vm1 --yes
      kubevirt-scheduler recolocate -A --exclude lab --exclude shop/db --yes
      kubevirt-scheduler recolocate --snapshot cluster.json
      kubevirt-scheduler recolocate -A --restart-list
    """  # noqa: D301 (click's mark for a block whose line breaks are kept)
    if all_namespaces and (namespace or names):
        raise click.UsageError("-A cannot be combined with -n or names")
    if restart_list and (yes or most or output == "json"):
        raise click.UsageError("--restart-list cannot be combined with --yes, --max or -o json")
    if snapshots and yes:
        raise click.UsageError("--snapshot cannot be combined with --yes: a file has no VMs to migrate")
    least = Traffic((min_throughput or 0) * 1e6, min_iops or 0)
    rates = _read_rates(prometheus, prometheus_token, least)
    cluster, webhook, default, read = _source(snapshots, live)
    scope = Scope(
        None if all_namespaces else namespace or default or None, parse_selector(selector), frozenset(exclude)
    )
    plan = partial(_plan, read, scope, names, webhook.predicting, rates, least)
    proposals = plan(is_first=True)
    show_settings(webhook)
    if restart_list:
        lines = list(restart_lines(proposals))
        click.echo("\n".join(lines) or "No VM needs a restart.", err=not lines)
    elif cluster and yes:
        moves, reporter = relocations(proposals), Reporter(as_json=output == "json")
        _print_risks(proposals if names else (), settle if moves else None)
        with answered():
            limits = with_own_limits(Limits(parallel, settle=settle, most=most), cluster)
        with interrupts() as presses:
            run = MigrationRun(
                cluster, Run(moves), lambda: relocations(plan()), limits, webhook.predicting, reporter, presses
            )
            if not run.run():
                raise SystemExit(EXIT_FAILED)
    elif output == "json":
        for each in proposals:
            click.echo(json.dumps(describe(each)))
    else:
        click.echo(render(list(map(describe, proposals)), most), nl=False)


def _read_rates(prometheus: str, token: str, least: Traffic) -> Rates:
    """Return the disk traffic of all VMs. With a limit on it, raises UsageError or BadInput if it is not known."""
    rates, limited = read_rates(prometheus, token), least != Traffic()
    if limited and not prometheus:
        raise click.UsageError("--min-iops and --min-throughput require --prometheus: the disk traffic of the VMs")
    if limited and not rates:
        raise BadInput("--min-iops and --min-throughput: Prometheus has no disk traffic, so no VM can be selected")
    return rates


def _source(
    snapshots: Sequence[Path], live: Mapping[str, str | None]
) -> tuple[ClusterClient | None, Webhook, str, Read]:
    """Return the cluster, None for files, the webhook there, the default namespace, and what reads the cluster."""
    if snapshots:
        fleet = read_fleet(snapshots, live)
        return None, fleet.webhook, fleet.namespace, lambda: (fleet.inventory, frozenset())
    cluster = connect(**live)
    webhook = find_webhook(cluster)
    with answered():
        supported = supports_added_node_selector(cluster)
    if not supported:
        raise BadInput(NO_KUBEVIRT if supported is None else TOO_OLD)
    return cluster, webhook, cluster.namespace, partial(_read, cluster, webhook.predicting)


def _read(cluster: ClusterClient, settings: Settings) -> tuple[Inventory, frozenset[Key]]:
    """Return the cluster, and the VMs with an unfinished migration."""
    inventory = read_inventory(cluster, settings, show_reading)
    with answered():
        return inventory, frozenset((each.namespace, each.vmi) for each in list_migrations(cluster) if each.unfinished)


def _plan(  # noqa: PLR0913, PLR0917 (what the command knows)
    read: Read,
    scope: Scope,
    names: Sequence[str],
    settings: Settings,
    rates: Rates,
    least: Traffic,
    *,
    is_first: bool = False,
) -> list[Proposal]:
    """Read the cluster and plan. Raises BadInput; for an unknown name only the first time, because a VM may go."""
    inventory, unfinished = read()
    statuses = list(assess_all(inventory, scope, settings))
    known = {each.machine.name for each in statuses}
    if is_first and (missing := min(set(names) - known, default="")):
        raise BadInput(not_found("vm", missing, scope.namespace, known))
    found = chain.from_iterable(scope.excludes(*key) for key in (*inventory.vms, *inventory.vmis))
    for unknown in sorted(scope.excluded.difference(found)) if is_first else ():
        click.echo(printable(f"Warning: --exclude {unknown} excludes no VM"), err=True)
    if is_first and not statuses:
        click.echo(scope.not_found, err=True)
    chosen = [each for each in statuses if (each.machine.name in names if names else each.state is State.APART)]
    worth = [each for each in chosen if reaches(crossing(each, rates), least)]
    if is_first and len(worth) < len(chosen):
        click.echo(
            f"Left out, because they have less disk traffic over the network: {len(chosen) - len(worth)}", err=True
        )
    return make_plan(worth, inventory.store, Surroundings(settings, unfinished, rates))


def _print_risks(named: Sequence[Proposal], settle: int | None) -> None:
    for each in named:
        if not isinstance(each.result, Move):
            click.echo(printable(f"{'/'.join(each.status.machine.key)} stays: {why(describe(each))}"), err=True)
    if settle is not None:
        click.echo(STORAGE_WARNING.format(settle=settle), err=True)
