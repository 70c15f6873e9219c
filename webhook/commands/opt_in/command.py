"""`kubevirt-scheduler opt-in` and `opt-out`: write the opt-in annotation into the templates of VMs."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import click

from webhook.commands.label_selector import parse_selector
from webhook.commands.options import connect, live_options, namespace_option, selector_option
from webhook.placement.objects.fields import printable
from webhook.placement.settings import read_settings

if TYPE_CHECKING:
    from webhook.commands.opt_in.annotation import Outcome

EXIT_INCOMPLETE = 1
HEADS = ("NAMESPACE", "VM", "RESULT", "DETAIL")
GAP = "   "


def vm_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the arguments and options that select VMs, and `--yes`."""
    decorators = (
        click.option("--yes", is_flag=True, help="Apply the changes. Without --yes, the command only prints them."),
        selector_option,
        namespace_option,
        click.argument("names", nargs=-1, metavar="[NAME]..."),
    )
    for decorate in (live_options, *decorators):
        command = decorate(command)
    return command


@click.command("opt-in", short_help="opt VMs in: annotate their templates")
@vm_options
def opt_in(names: tuple[str, ...], namespace: str | None, selector: str, yes: bool, **live: str | None) -> None:
    """Opt VMs in: set the annotation kubevirt-scheduler/co-schedule: "true" in their templates.

    Without NAME and -l, the command selects all VMs of the namespace. The annotation takes effect at a VM's next start.
    The command skips VMs that Argo CD, Flux, Helm or another controller manages: change those at their source.

    Exit status 1: a VM was skipped or could not be changed. 2: the VMs can't be read.

    \b
    Examples:
      kubevirt-scheduler opt-in -n shop
      kubevirt-scheduler opt-in -n shop -l app=db --yes
      kubevirt-scheduler opt-in -n shop vm1 --yes
    """  # noqa: D301 (click's mark for a block whose line breaks are kept)
    _run(names, namespace, selector, live, opts_in=True, yes=yes)


@click.command("opt-out", short_help="opt VMs out: annotate their templates")
@vm_options
def opt_out(names: tuple[str, ...], namespace: str | None, selector: str, yes: bool, **live: str | None) -> None:
    """Opt VMs out: set the annotation kubevirt-scheduler/co-schedule: "false" in their templates.

    "false" overrides the label of the namespace and the StorageClasses. The command removes other annotations that opt
    the VM in. It selects and skips VMs like opt-in, and has the same exit status.

    \b
    Examples:
      kubevirt-scheduler opt-out -n shop
      kubevirt-scheduler opt-out -n shop vm1 --yes
    """  # noqa: D301 (click's mark for a block whose line breaks are kept)
    _run(names, namespace, selector, live, opts_in=False, yes=yes)


def _run(  # noqa: PLR0913 (the options of both commands)
    names: Sequence[str],
    namespace: str | None,
    selector: str,
    live: dict[str, str | None],
    *,
    opts_in: bool,
    yes: bool,
) -> None:
    from webhook.commands.opt_in.annotation import DesiredOptIn, Result, apply, find_vms, plan  # noqa: PLC0415 (imports the Kubernetes client, which takes a second)

    if names and selector:
        raise click.UsageError("specify either names or -l, not both")
    parse_selector(selector)
    desired = DesiredOptIn(opts_in, read_settings(os.environ).opt_in_annotations)
    cluster = connect(live["kubeconfig"], live["context"])
    found = find_vms(cluster, namespace or cluster.namespace, names, selector)
    if not found:
        click.echo(
            printable(f"No VM found in namespace {namespace or cluster.namespace}. To select another, use -n"), err=True
        )
        return
    outcomes = [apply(cluster, vm, desired) if yes else plan(vm, desired) for vm in found]
    click.echo(printable_table(outcomes, done=yes), nl=False)
    counts = Counter(outcome.result for outcome in outcomes)
    if not yes and counts[Result.CHANGED]:
        click.echo("Dry run: nothing changed. To apply the changes, add --yes", err=True)
    if counts[Result.SKIPPED] or counts[Result.FAILED]:
        raise SystemExit(EXIT_INCOMPLETE)


def printable_table(outcomes: Iterable[Outcome], *, done: bool) -> str:
    """Return the outcomes as a table. `done` is False for a plan."""
    would = {} if done else {"changed": "would change"}
    rows = [(each.namespace, each.name, would.get(each.result, each.result.value), each.detail) for each in outcomes]
    cells = [HEADS, *(tuple(map(printable, row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = (GAP.join(map(str.ljust, row, widths)).rstrip() for row in cells)
    return "".join(f"{line}\n" for line in lines)
