"""`kubevirt-scheduler report`: list the VMs that are apart from their storage, and the effect of a restart."""

import itertools

import click
from msgspec.structs import replace

from webhook.commands.completion import not_found
from webhook.commands.drain_check import describe_drains
from webhook.commands.fleet_source import (
    Fleet,
    Scope,
    assess_all,
    assess_pods,
    read_fleet,
    read_history,
    read_rates,
    selected,
    warn,
)
from webhook.commands.options import as_data, fleet_options, given, output_option
from webhook.commands.report import page
from webhook.commands.report.document import build_report, describe_workloads
from webhook.commands.report.table import SORTS, render_names, render_nodes, render_vms
from webhook.commands.tables import terminal_columns
from webhook.fleet.machine import State
from webhook.fleet.relocation.rules import Surroundings
from webhook.fleet.traffic import Rates
from webhook.placement.objects.fields import JsonObject
from webhook.placement.opt_in import opt_in_mistake
from webhook.reading.documents import BadInput

COLUMNS, WIDE = 100, 200  # without a terminal; the least of -o wide
EXIT_APART = 1
MAX_DRAINS = 12  # nodes; of more, the page shows a matrix without drains (matrix.js), which take 70 ms each


@click.command(short_help="list VMs, their nodes, and the nodes of their storage")
@click.argument("words", nargs=-1, metavar="[vms|nodes] [NAME]...")
@fleet_options
@click.option("--apart", "only_apart", is_flag=True, help="List only the VMs that are apart from their storage.")
@click.option("--workloads", is_flag=True, help="Also count the opted-in pods that are no VMs.")
@output_option(
    "table",
    "wide",
    "name",
    "json",
    "yaml",
    "html",
    text="The output format. wide prints one line per VM, with claims, reasons and predictions, and cuts what exceeds "
    "200 columns. html prints a page for a browser.",
)
@click.option(
    "--sort-by",
    type=click.Choice(list(dict.fromkeys(itertools.chain(*SORTS.values())))),
    help=f"Sort by this. VMs: {', '.join(SORTS['vms'])}. Nodes: {', '.join(SORTS['nodes'])}.",
)
@click.option("--no-headers", is_flag=True, help="Print only the rows of the table.")
@click.option("--fail-on", type=click.Choice(["apart"]), help="Exit with status 1 if a VM is apart from its storage.")
def report(  # noqa: PLR0913, PLR0917 (one parameter per option)
    words: tuple[str, ...],
    only_apart: bool,
    workloads: bool,
    output: str,
    sort_by: str | None,
    no_headers: bool,
    fail_on: str | None,
) -> None:
    """List the node of each VM, or of the VMs with these names, the node of its storage, and what to do.

    `report nodes` lists the nodes.

    Text wraps in the width of the terminal, or in 100 columns.

    The exit status is 1 if a VM is apart and --fail-on apart is given, and 2 if the cluster can't be read.

    \b
    Examples:
      kubevirt-scheduler report -A
      kubevirt-scheduler report -n shop -l app=db --apart
      kubevirt-scheduler report -n shop vm1
      kubevirt-scheduler report nodes --sort-by apart
      kubevirt-scheduler report --snapshot cluster.json -o wide
      kubevirt-scheduler report -A -o html > fleet.html
      kubevirt-scheduler report -A --fail-on apart -o json
    """  # noqa: D301 (click's mark for a block whose line breaks are kept)
    what, names = _chosen(words, sort_by, only_apart=only_apart)
    rates = read_rates()
    fleet = read_fleet()
    scope = replace(selected(fleet.namespace), names=names if what == "vms" else frozenset())
    found = report_on(fleet, scope, rates, planned=output != "name", of_page=output == "html")
    if not found["vms"] and scope.namespace:
        scope.report_none(fleet.inventory.namespaces())
    if workloads:
        pods = assess_pods(fleet.inventory, scope, fleet.webhook.predicting)
        found["workloads"], found["summary"]["workloads"] = describe_workloads(pods)
    if only_apart:
        found["vms"] = [vm for vm in found["vms"] if vm["state"] == State.APART]
    if what == "nodes" and names:
        found["nodes"] = _named(found["nodes"], names)
    if sort_by:
        found[what].sort(key=SORTS[what][sort_by])
    click.echo(_rendered(found, what, output, everywhere=scope.namespace is None, headers=not no_headers), nl=False)
    if fail_on and found["summary"]["apart"]:
        raise SystemExit(EXIT_APART)


def _chosen(words: tuple[str, ...], sort_by: str | None, *, only_apart: bool) -> tuple[str, frozenset[str]]:
    """Return what to list, and the names. Raises UsageError for options that do not fit."""
    what, *names = words if words[:1] in (("vms",), ("nodes",)) else ("vms", *words)
    if names and what == "vms" and given("all_namespaces"):
        raise click.UsageError("-A cannot be combined with -n or names")
    if sort_by not in (None, *SORTS[what]):
        raise click.UsageError(f"--sort-by of {what} is one of: {', '.join(SORTS[what])}")
    if what == "nodes" and only_apart:
        raise click.UsageError("--apart selects VMs, but `report nodes` lists nodes; see --sort-by apart")
    return what, frozenset(names)


def _named(nodes: list[JsonObject], names: frozenset[str]) -> list[JsonObject]:
    known = {node["name"] for node in nodes}
    if missing := names - known:
        raise BadInput(not_found("node", min(missing), None, known))
    return [node for node in nodes if node["name"] in names]


def report_on(fleet: Fleet, scope: Scope, rates: Rates, *, planned: bool = True, of_page: bool = True) -> JsonObject:
    """Return the report on the VMs in the scope, with a plan.

    For the page of all VMs, add the last day, and what a drain of each node does.
    """
    settings = fleet.webhook.predicting
    statuses = list(assess_all(fleet.inventory, scope, settings))
    if scope.names:
        scope.require({each.machine.name for each in statuses})
        statuses = [each for each in statuses if each.machine.name in scope.names]
    found = fleet.origin() | build_report(
        statuses, fleet.inventory, Surroundings(settings, rates=rates), planned=planned
    )
    mistakes = [(each.machine, opt_in_mistake(each.machine.vm, settings.opt_in_annotations)) for each in statuses]
    named = [f"VM {'/'.join(machine.key)}: {mistake}" for machine, mistake in mistakes if mistake]
    if named:
        more = f", and {len(named) - 1} more" if named[1:] else ""
        warn(f"{named[0]}{more}; to correct it: kubevirt-scheduler opt-in")
    found["warnings"] = click.get_current_context().meta.pop("warnings", [])
    if of_page and scope.selects_all:
        found["history"] = {"apart": read_history()}
        if len(found["nodes"]) <= MAX_DRAINS:
            describe_drains(found["nodes"], statuses, fleet.inventory, settings)
    return found


def _rendered(report: JsonObject, what: str, output: str, *, everywhere: bool, headers: bool) -> str:
    if output in ("json", "yaml"):
        return as_data(report, output)
    if output == "html":
        return page.render(report)
    if output == "name":
        return render_names(report, what)
    if what == "nodes":
        return render_nodes(report, columns=terminal_columns(), headers=headers)
    columns = max(terminal_columns(), WIDE) if output == "wide" else terminal_columns(COLUMNS)
    return render_vms(report, wide=output == "wide", everywhere=everywhere, columns=columns, headers=headers)
