"""`kubevirt-scheduler recolocate`: live-migrate running VMs to the node of their storage."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from webhook.commands.fleet_source import Scope
from webhook.commands.label_selector import parse_selector
from webhook.commands.options import (
    all_namespaces_option,
    connect,
    live_options,
    live_webhook,
    namespace_option,
    output_option,
    prometheus_options,
    read_rates,
    selector_option,
    show_settings,
    wants_color,
)
from webhook.commands.progress import Progress, no_progress, progress_bar
from webhook.commands.recolocate.plan_output import (
    describe,
    not_migrated,
    propose,
    propose_again,
    relocations,
    render,
    restart_list,
)
from webhook.commands.suggestions import complete_vms
from webhook.fleet.move import Proposal
from webhook.fleet.run import Limits, Relocation
from webhook.placement.settings import Settings
from webhook.reading.documents import BadInput

if TYPE_CHECKING:
    from webhook.cluster.client import ClusterClient
    from webhook.cluster.machines import Inventory
    from webhook.commands.recolocate.run import Plan
    from webhook.fleet.move import Surroundings

EXIT_FAILED = 1
STORAGE_WARNING = (
    "According to Longhorn's documentation, its RWX volumes over NFS do not support live migration. KubeVirt does "
    "migrate VMs with such volumes. So the first VM of each StorageClass migrates alone, and the command watches it "
    "for {settle:g} seconds. The command stops at the first failure. Read more: docs/guides/recolocate.md"
)
TOO_OLD = (
    "KubeVirt is too old: VirtualMachineInstanceMigration has no field addedNodeSelector, so a migration cannot name "
    "its target node. Upgrade to KubeVirt 1.6 or newer, or restart VMs: kubevirt-scheduler recolocate --restart-list"
)
NO_KUBEVIRT = "KubeVirt is not installed: CRD virtualmachineinstancemigrations.kubevirt.io not found"


@click.command(short_help="live-migrate VMs to the node of their storage")
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=complete_vms)
@all_namespaces_option("Select the VMs of all namespaces.")
@namespace_option
@selector_option
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
    type=click.FloatRange(0),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to watch the first VM of each StorageClass after its migration.",
)
@click.option("--restart-list", is_flag=True, help="Print commands that restart the VMs that migration can't move.")
@output_option("table", "json", text="The output format. json prints one JSON object per line.")
@prometheus_options
@live_options
def recolocate(  # noqa: PLR0913, PLR0917 (one parameter per option)
    names: tuple[str, ...],
    all_namespaces: bool,
    namespace: str | None,
    selector: str,
    yes: bool,
    most: int | None,
    parallel: int,
    settle: float,
    restart_list: bool,
    output: str,
    prometheus: str,
    prometheus_token: str,
    **live: str | None,
) -> None:
    """Live-migrate running VMs that are apart from their storage to the node of their share-manager.

    Without --yes, the command changes nothing and prints the plan: an action and a reason for each VM. Ctrl-C stops the
    command after the running migrations have finished. A second Ctrl-C stops it immediately and leaves them running.

    The exit status is 1 if a migration failed or the run was interrupted, and 2 if the cluster can't be read.

    \b
    Examples:
      kubevirt-scheduler recolocate -A
      kubevirt-scheduler recolocate -n shop -l app=db --max 5 --yes
      kubevirt-scheduler recolocate -n shop vm1 --yes
      kubevirt-scheduler recolocate -A --restart-list
    """  # noqa: D301 (click's mark for a block whose line breaks are kept)
    if all_namespaces and (namespace or names):
        raise click.UsageError("-A cannot be combined with -n or names")
    if restart_list and (yes or most or output == "json"):
        raise click.UsageError("--restart-list cannot be combined with --yes, --max or -o json")
    cluster = connect(live["kubeconfig"], live["context"])
    webhook = live_webhook(cluster)
    settings = webhook.predicting
    supported = _is_supported(cluster)
    if not (supported or restart_list):
        raise BadInput(TOO_OLD)
    scope = Scope(None if all_namespaces else namespace or cluster.namespace, parse_selector(selector))
    rates = read_rates(prometheus, prometheus_token)
    with progress_bar() as progress:
        inventory, around = _read(cluster, settings, progress, supported=supported)
        around = replace(around, rates=rates)
        proposals = propose(inventory, scope, names, around, progress)
    show_settings(webhook)
    if restart_list:
        _print_restarts(proposals)
    elif yes:
        for line in not_migrated(proposals) if names else ():
            click.echo(line, err=True)

        def plan() -> tuple[Relocation, ...]:
            inventory, around = _read(cluster, settings, no_progress, supported=True)
            return relocations(propose_again(inventory, scope, names, replace(around, rates=rates)))

        limits = Limits(parallel, settle=settle, most=most)
        _migrate(cluster, relocations(proposals), plan, limits, settings, as_json=output == "json")
    elif output == "json":
        for each in proposals:
            click.echo(json.dumps(describe(each)))
    else:
        click.echo(render(proposals, most, color=wants_color()), nl=False)


def _is_supported(cluster: ClusterClient) -> bool:
    # These modules import the Kubernetes client, which takes a second.
    from webhook.commands.recolocate.migrations import supports_added_node_selector  # noqa: PLC0415
    from webhook.reading.api import answered  # noqa: PLC0415

    with answered():
        supported = supports_added_node_selector(cluster)
    if supported is None:
        raise BadInput(NO_KUBEVIRT)
    return supported


def _read(
    cluster: ClusterClient, settings: Settings, progress: Progress, *, supported: bool
) -> tuple[Inventory, Surroundings]:
    from webhook.commands.recolocate.migrations import list_migrations  # noqa: PLC0415
    from webhook.reading.api import answered  # noqa: PLC0415
    from webhook.reading.listing import read_inventory  # noqa: PLC0415

    inventory = read_inventory(cluster, settings, lambda kind, count: progress(f"reading {kind}", count, None))
    with answered():
        migrations = list_migrations(cluster)
    unfinished = frozenset((each.namespace, each.vmi) for each in migrations if each.unfinished)
    return inventory, inventory.surroundings(settings, unfinished, supported=supported)


def _print_restarts(proposals: Sequence[Proposal]) -> None:
    lines = list(restart_list(proposals))
    for line in lines:
        click.echo(line)
    if not lines:
        click.echo("No VM needs a restart.", err=True)


def _migrate(  # noqa: PLR0913 (what the command knows)
    cluster: ClusterClient,
    moves: Sequence[Relocation],
    plan: Plan,
    limits: Limits,
    settings: Settings,
    *,
    as_json: bool,
) -> None:
    from webhook.commands.recolocate.run import migrate  # noqa: PLC0415

    if moves:
        click.echo(STORAGE_WARNING.format(settle=limits.settle), err=True)
    if not migrate(cluster, moves, plan, limits, settings, as_json=as_json):
        raise SystemExit(EXIT_FAILED)
