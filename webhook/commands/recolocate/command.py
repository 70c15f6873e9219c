"""`kubevirt-scheduler recolocate`: live-migrate running VMs to the node of their storage."""

import json
import re
from collections.abc import Sequence
from functools import partial
from itertools import chain

import click

from webhook.cluster.client import ClusterClient
from webhook.commands.completion import complete
from webhook.commands.fleet_source import Fleet, Scope, assess_all, read_fleet, read_rates, selected, show_settings
from webhook.commands.interrupts import interrupts
from webhook.commands.options import SECONDS, checked, connect, fleet_options, given, output_option, vm_names
from webhook.commands.recolocate.migrations import list_migrations, supports_added_node_selector, with_own_limits
from webhook.commands.recolocate.plan import describe, relocations, render, restart_lines, why
from webhook.commands.recolocate.run import MigrationRun, Reporter
from webhook.fleet.machine import State
from webhook.fleet.relocation.rules import Move, Surroundings
from webhook.fleet.relocation.run import Limits, Relocation, Run
from webhook.fleet.simulation.plan import Proposal, make_plan
from webhook.fleet.traffic import Rates, Traffic, crossing, reaches
from webhook.placement.objects.fields import printable
from webhook.reading.api import answered
from webhook.reading.documents import BadInput

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
NO_KUBEVIRT = "KubeVirt is not installed: CRD virtualmachineinstancemigrations.kubevirt.io not found"


@click.command(short_help="live-migrate VMs to the node of their storage")
@vm_names
@click.option(
    "--exclude",
    type=checked(re.compile(r"[^/]+(/[^/]+)?").fullmatch, "NAMESPACE or NAMESPACE/NAME"),
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
@click.option("--restart-list", is_flag=True, help="Print commands that restart the VMs that migration can't move.")
@output_option("table", "json", text="The output format. json prints one JSON object per line.")
@fleet_options
def recolocate(  # noqa: PLR0913, PLR0917 (one parameter per option)
    exclude: tuple[str, ...],
    yes: bool,
    most: int | None,
    parallel: int,
    settle: int,
    min_iops: int | None,
    min_throughput: int | None,
    restart_list: bool,
    output: str,
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
    if restart_list and (yes or most or output == "json"):
        raise click.UsageError("--restart-list cannot be combined with --yes, --max or -o json")
    if given("snapshots") and yes:
        raise click.UsageError("--snapshot cannot be combined with --yes: a file has no VMs to migrate")
    least = Traffic((min_throughput or 0) * 1e6, min_iops or 0)
    rates = _read_rates(least)
    client = None if given("snapshots") else connect()
    if client:
        _require_target_nodes(client)
    fleet = read_fleet(client)
    plan = partial(_plan, selected(fleet.namespace, exclude), rates, least)
    proposals = plan(fleet, is_first=True)
    show_settings(fleet.webhook)
    if restart_list:
        lines = list(restart_lines(proposals))
        click.echo("\n".join(lines) or "No VM needs a restart.", err=not lines)
    elif client and yes:
        moves = relocations(proposals)
        reporter = Reporter(as_json=output == "json")
        _print_risks(proposals if given("names") else (), settle if moves else None)
        with answered():
            limits = with_own_limits(Limits(parallel, settle=settle, most=most), client)
        with interrupts() as presses:
            settings = fleet.webhook.predicting

            def replan() -> tuple[Relocation, ...]:
                return relocations(plan(read_fleet(client)))

            run = MigrationRun(client, Run(moves), replan, limits, settings, reporter, presses)
            if not run.run():
                raise SystemExit(EXIT_FAILED)
    elif output == "json":
        for each in proposals:
            click.echo(json.dumps(describe(each)))
    else:
        click.echo(render(list(map(describe, proposals)), most), nl=False)


def _read_rates(least: Traffic) -> Rates:
    """Return the disk traffic of all VMs. With a limit on it, raises UsageError or BadInput if it is not known."""
    rates = read_rates()
    limited = least != Traffic()
    if limited and not given("prometheus"):
        raise click.UsageError("--min-iops and --min-throughput require --prometheus: the disk traffic of the VMs")
    if limited and not rates:
        raise BadInput("--min-iops and --min-throughput: Prometheus has no disk traffic, so no VM can be selected")
    return rates


def _require_target_nodes(client: ClusterClient) -> None:
    """Raise BadInput if KubeVirt is missing, or too old for a migration that names its target node."""
    with answered():
        supported = supports_added_node_selector(client)
    if not supported:
        raise BadInput(NO_KUBEVIRT if supported is None else TOO_OLD)


def _plan(scope: Scope, rates: Rates, least: Traffic, fleet: Fleet, *, is_first: bool = False) -> list[Proposal]:
    """Plan for a fleet. Raises BadInput; for an unknown name only the first time, because a VM may go."""
    inventory, settings = fleet.inventory, fleet.webhook.predicting
    with answered():
        migrations = list_migrations(fleet.client) if fleet.client else []
    unfinished = frozenset((each.namespace, each.vmi) for each in migrations if each.unfinished)
    statuses = list(assess_all(inventory, scope, settings))
    if is_first:
        scope.require({each.machine.name for each in statuses})
    found = chain.from_iterable(scope.excludes(*key) for key in (*inventory.vms, *inventory.vmis))
    for unknown in sorted(scope.excluded.difference(found)) if is_first else ():
        click.echo(printable(f"Warning: --exclude {unknown} excludes no VM"), err=True)
    if is_first and not statuses:
        scope.report_none(fleet.inventory.namespaces())
    chosen = [
        each for each in statuses if (each.machine.name in scope.names if scope.names else each.state is State.APART)
    ]
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
