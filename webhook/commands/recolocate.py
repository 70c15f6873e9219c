"""`kubevirt-scheduler recolocate`: move running VMs to the node of their storage by live migration."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from webhook.cluster.documents import BadInput
from webhook.commands.fleet_source import Scope
from webhook.commands.label_selector import parse_selector
from webhook.commands.options import color_option, connect, live_options, wants_color
from webhook.commands.progress import Progress, progress_bar
from webhook.commands.recolocate_plan import (
    Proposal,
    Surroundings,
    describe,
    propose,
    relocations,
    render,
    restart_list,
)
from webhook.placement.relocation import Limits
from webhook.placement.settings import Settings, read_settings

if TYPE_CHECKING:
    from webhook.cluster.client import ClusterClient

EXIT_FAILED = 1
STORAGE_WARNING = (
    "Longhorn's documentation calls its RWX volumes over NFS not capable of live migration; KubeVirt migrates VMs on "
    "them. So the first VM of each StorageClass migrates alone and is then watched for {settle:g} seconds, and the run "
    "stops at the first failure. Read more: docs/guides/recolocate.md"
)
TOO_OLD = (
    "this KubeVirt can't migrate a VM to a chosen node: its VirtualMachineInstanceMigration has no addedNodeSelector. "
    "Upgrade KubeVirt to 1.6 or newer, or restart the VMs: kubevirt-scheduler recolocate --restart-list"
)
NO_KUBEVIRT = "the cluster has no KubeVirt: the CRD virtualmachineinstancemigrations.kubevirt.io is missing"


@dataclass(frozen=True, slots=True)
class Selection:
    """The VMs that the user selected."""

    all_namespaces: bool
    namespace: str | None
    selector: str
    names: tuple[str, ...]

    def scope(self, default: str) -> Scope:
        """Return the scope; `default` is the namespace of the context."""
        return Scope(None if self.all_namespaces else self.namespace or default, parse_selector(self.selector))


@click.command(short_help="live-migrate VMs to the node of their storage")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("-A", "--all-namespaces", is_flag=True, help="All VMs of the cluster.")
@click.option("-n", "--namespace", metavar="NAME", help="Default: the namespace of the context.")
@click.option("-l", "--selector", metavar="SELECTOR", default="", help="Only VMs with these labels: app=db,!old")
@click.option("--yes", is_flag=True, help="Migrate. Without it, only print what would be done.")
@click.option("--max", "most", type=click.IntRange(1), metavar="N", help="Migrate at most N VMs.")
@click.option(
    "--parallel",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    metavar="N",
    help="At most N migrations at once; at most KubeVirt's limit minus two, and two per source node.",
)
@click.option(
    "--settle",
    type=click.FloatRange(0),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to watch the first VM of each StorageClass after its migration.",
)
@click.option("--restart-list", is_flag=True, help="Print the commands that restart what migration can't move.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="A table and lines of text, or one JSON object per line.",
)
@color_option
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
    color: bool | None,
    **live: str | None,
) -> None:
    """Move running VMs that are apart from their storage to the node of their share-manager, by live migration.

    Without --yes, nothing changes: a table shows what would be done to each VM, and why not. Ctrl-C creates no further
    migration and waits for those that run; a second Ctrl-C leaves them running.

    The exit status is 1 if a migration failed or the run was interrupted, and 2 if the cluster can't be read.

    \b
    Examples:
      kubevirt-scheduler recolocate -A
      kubevirt-scheduler recolocate -n shop -l app=db --max 5 --yes
      kubevirt-scheduler recolocate -n shop vm1 --yes
      kubevirt-scheduler recolocate -A --restart-list
    """  # noqa: D301 (click's mark for a block whose line breaks are kept)
    if all_namespaces and (namespace or names):
        raise click.UsageError("-A excludes -n and names")
    settings, cluster = read_settings(os.environ), connect(live["kubeconfig"], live["context"])
    selection = Selection(all_namespaces, namespace, selector, names)
    supported = _is_supported(cluster)
    if not (supported or restart_list):
        raise BadInput(TOO_OLD)
    with progress_bar() as progress:
        proposals = _propose(cluster, selection, settings, progress, supported=supported)
    if restart_list:
        _print_restarts(proposals)
    elif yes:
        _migrate(cluster, proposals, Limits(parallel, settle=settle, most=most), settings, as_json=output == "json")
    elif output == "json":
        for each in proposals:
            click.echo(json.dumps(describe(each)))
    else:
        click.echo(render(proposals, most, color=wants_color(color)), nl=False)


def _is_supported(cluster: ClusterClient) -> bool:
    # These modules import the Kubernetes client, which takes a second.
    from webhook.cluster.migrations import supports_added_node_selector  # noqa: PLC0415
    from webhook.cluster.reading import answered  # noqa: PLC0415

    with answered():
        supported = supports_added_node_selector(cluster)
    if supported is None:
        raise BadInput(NO_KUBEVIRT)
    return supported


def _propose(
    cluster: ClusterClient, selection: Selection, settings: Settings, progress: Progress, *, supported: bool
) -> list[Proposal]:
    from webhook.cluster.listing import read_inventory  # noqa: PLC0415
    from webhook.cluster.migrations import list_migrations, read_disks  # noqa: PLC0415
    from webhook.cluster.reading import answered  # noqa: PLC0415

    inventory = read_inventory(cluster, settings, lambda kind, count: progress(f"reading {kind}", count, None))
    with answered():
        disks, migrations = read_disks(cluster), list_migrations(cluster)
    unfinished = frozenset((each.namespace, each.vmi) for each in migrations if each.unfinished)
    found = Surroundings(inventory, disks, unfinished, supported)
    scope = selection.scope(cluster.namespace)
    return propose(found, scope, selection.names, settings, progress)


def _print_restarts(proposals: Sequence[Proposal]) -> None:
    lines = list(restart_list(proposals))
    for line in lines:
        click.echo(line)
    if not lines:
        click.echo("No VM needs a restart.", err=True)


def _migrate(
    cluster: ClusterClient, proposals: Sequence[Proposal], limits: Limits, settings: Settings, *, as_json: bool
) -> None:
    from webhook.commands.recolocate_run import migrate  # noqa: PLC0415

    moves = relocations(proposals)
    if moves:
        click.echo(STORAGE_WARNING.format(settle=limits.settle), err=True)
    if not migrate(cluster, moves, limits, settings, as_json=as_json):
        raise SystemExit(EXIT_FAILED)
