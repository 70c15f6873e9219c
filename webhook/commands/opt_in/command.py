"""`kubevirt-scheduler opt-in` and `opt-out`: write the opt-in annotation into the templates of VMs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from webhook.commands.label_selector import parse_selector
from webhook.commands.options import (
    DRY_RUN,
    all_namespaces_option,
    connect,
    live_options,
    live_webhook,
    namespace_option,
    output_option,
    selector_option,
    together,
    yes_option,
)
from webhook.commands.suggestions import complete_vms
from webhook.commands.tables import render_table
from webhook.placement.objects.fields import JsonObject, printable

if TYPE_CHECKING:
    from webhook.commands.opt_in.annotation import Outcome

EXIT_INCOMPLETE = 1
HEADS = ("NAMESPACE", "VM", "RESULT", "DETAIL")


vm_options = together(
    click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=complete_vms),
    namespace_option,
    all_namespaces_option("Select the VMs of all namespaces."),
    selector_option,
    output_option("table", "json"),
    yes_option,
    live_options,
)


@click.command("opt-in", short_help="opt VMs in: annotate their templates")
@vm_options
def opt_in(**options: Any) -> None:
    """Opt VMs in: set the annotation kubevirt-scheduler/co-schedule: "true" in their templates.

    Without NAME and -l, the command selects all VMs of the namespace. The annotation takes effect at a VM's next start.
    The command skips VMs that Argo CD, Flux, Helm or another controller manages: change those at their source.

    Exit status 1: a VM was skipped or could not be changed. 2: the VMs can't be read.

    \b
    Examples:
      kubevirt-scheduler opt-in -n shop
      kubevirt-scheduler opt-in -A -o json
      kubevirt-scheduler opt-in -n shop -l app=db --yes
      kubevirt-scheduler opt-in -n shop vm1 --yes
    """  # noqa: D301 (click's mark for a block whose line breaks are kept)
    _run(opts_in=True, **options)


@click.command("opt-out", short_help="opt VMs out: annotate their templates")
@vm_options
def opt_out(**options: Any) -> None:
    """Opt VMs out: set the annotation kubevirt-scheduler/co-schedule: "false" in their templates.

    "false" overrides the label of the namespace and the StorageClasses. The command removes other annotations that opt
    the VM in. It selects and skips VMs like opt-in, and has the same exit status.

    \b
    Examples:
      kubevirt-scheduler opt-out -n shop
      kubevirt-scheduler opt-out -n shop vm1 --yes
    """  # noqa: D301 (click's mark for a block whose line breaks are kept)
    _run(opts_in=False, **options)


def _run(  # noqa: PLR0913 (the options of both commands)
    *,
    opts_in: bool,
    names: Sequence[str],
    namespace: str | None,
    all_namespaces: bool,
    selector: str,
    output: str,
    yes: bool,
    **live: str | None,
) -> None:
    from webhook.commands.opt_in.annotation import DesiredOptIn, Result, apply, find_vms, plan  # noqa: PLC0415 (imports the Kubernetes client, which takes a second)

    if names and selector:
        raise click.UsageError("specify either names or -l, not both")
    if all_namespaces and (namespace or names):
        raise click.UsageError("-A cannot be combined with -n or names")
    parse_selector(selector)
    cluster = connect(**live)
    desired = DesiredOptIn(opts_in, live_webhook(cluster).settings.opt_in_annotations)
    found = find_vms(cluster, "" if all_namespaces else namespace or cluster.namespace, names, selector)
    outcomes = [apply(cluster, vm, desired) if yes else plan(vm, desired) for vm in found]
    if output == "json":
        click.echo(json.dumps([_as_json(each, done=yes) for each in outcomes], indent=2))
    else:
        rows = [tuple(map(str, _as_json(each, done=yes).values())) for each in outcomes]
        click.echo(render_table(HEADS, rows), nl=False)
    if not found:
        where = "" if all_namespaces else f" in namespace {namespace or cluster.namespace}. To select all, use -A"
        click.echo(printable(f"No VM found{where}"), err=True)
    counts = Counter(outcome.result for outcome in outcomes)
    if not yes and counts[Result.CHANGED]:
        click.echo(DRY_RUN, err=True)
    if counts[Result.SKIPPED] or counts[Result.FAILED]:
        raise SystemExit(EXIT_INCOMPLETE)


def _as_json(outcome: Outcome, *, done: bool) -> JsonObject:
    """Return an outcome; `done` is False for a plan."""
    result = outcome.result.value if done or outcome.result != "changed" else "would change"
    return {"namespace": outcome.namespace, "name": outcome.name, "result": result, "detail": outcome.detail}
