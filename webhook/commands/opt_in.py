"""`kubevirt-scheduler opt-in` and `opt-out`: write the opt-in annotation into the templates of VMs."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import click

from webhook.cluster.caches.kinds import VIRTUAL_MACHINES
from webhook.cluster.client import ClusterClient, ClusterError
from webhook.commands.fleet_source import live_webhook
from webhook.commands.label_selector import parse_selector
from webhook.commands.options import (
    DRY_RUN,
    all_namespaces_option,
    as_data,
    connect,
    live_options,
    namespace_option,
    output_option,
    selector_option,
    together,
    yes_option,
)
from webhook.commands.suggestions import complete_vms, not_found
from webhook.commands.tables import render_table
from webhook.fleet.gitops import managed_by
from webhook.placement.objects.fields import JsonObject, mapping, printable, text
from webhook.reading.api import answered, list_objects
from webhook.reading.documents import BadInput
from webhook.reading.listing import list_names

MAX_ATTEMPTS = 5  # KubeVirt writes a VM's status a few times while it starts, and each write changes the version
WRITE_TIMEOUT = 15.0  # seconds
CONFLICT, NOT_FOUND = 409, 404
FIELD_MANAGER = "kubevirt-scheduler"
EXIT_INCOMPLETE = 1
HEADS = ("NAMESPACE", "VM", "RESULT", "DETAIL")
PLANNED, CHANGED, UNCHANGED, SKIPPED, FAILED = "would change", "changed", "unchanged", "skipped", "failed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What happened to a VM, or would happen to it, and why."""

    namespace: str
    name: str
    result: str
    detail: str


@dataclass(frozen=True, slots=True)
class DesiredOptIn:
    """The desired opt-in of VMs. `keys` are the opt-in annotations; the command writes the first one."""

    opt_in: bool
    keys: Sequence[str]

    def change(self, vm: JsonObject) -> dict[str, str | None]:
        """Return the annotations to change in the VM's template; None removes one. Empty if nothing needs a change."""
        present = mapping(vm, "spec", "template", "metadata", "annotations")
        if self.opt_in:
            return {} if any(present.get(key) == "true" for key in self.keys) else {self.keys[0]: "true"}
        others: dict[str, str | None] = {key: None for key in self.keys[1:] if present.get(key) == "true"}
        return others | ({} if present.get(self.keys[0]) == "false" else {self.keys[0]: "false"})


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
    if names and selector:
        raise click.UsageError("specify either names or -l, not both")
    if all_namespaces and (namespace or names):
        raise click.UsageError("-A cannot be combined with -n or names")
    parse_selector(selector)
    cluster = connect(**live)
    namespace = "" if all_namespaces else namespace or cluster.namespace
    desired = DesiredOptIn(opts_in, live_webhook(cluster).settings.opt_in_annotations)
    found = _find_vms(cluster, namespace, names, selector)
    outcomes = [_apply(cluster, vm, desired) if yes else _plan(vm, desired) for vm in found]
    rows = [asdict(each) for each in outcomes]
    if output == "json":
        click.echo(as_data(rows), nl=False)
    else:
        click.echo(render_table(HEADS, [list(row.values()) for row in rows]), nl=False)
    if not found:
        where = f" in namespace {namespace}. To select all, use -A" if namespace else ""
        click.echo(printable(f"No VM found{where}"), err=True)
    results = {each.result for each in outcomes}
    if PLANNED in results:
        click.echo(DRY_RUN, err=True)
    if results & {SKIPPED, FAILED}:
        raise SystemExit(EXIT_INCOMPLETE)


def _find_vms(cluster: ClusterClient, namespace: str, names: Sequence[str], selector: str) -> list[JsonObject]:
    """Read the VMs of these names, or those of a namespace with these labels; an empty namespace stands for all.

    Raises BadInput if a name is unknown.
    """
    with answered():
        if names:
            return [_named(cluster, namespace, name) for name in dict.fromkeys(names)]
        query = {"labelSelector": selector} if selector else {}
        return list(list_objects(cluster, VIRTUAL_MACHINES.path_in(namespace), **query))


def _named(cluster: ClusterClient, namespace: str, name: str) -> JsonObject:
    vm = cluster.get(VIRTUAL_MACHINES.object_path((namespace, name)))
    if vm is None:
        raise BadInput(not_found("vm", name, namespace, list_names(cluster, "vm", namespace)))
    return vm


def _plan(vm: JsonObject, desired: DesiredOptIn) -> Outcome:
    """Return what `_apply` would do to a VM."""
    key = text(vm, "metadata", "namespace"), text(vm, "metadata", "name")
    changes = desired.change(vm)
    if not changes:
        return Outcome(*key, UNCHANGED, f"already opted {'in' if desired.opt_in else 'out'}")
    if manager := managed_by(vm):
        return Outcome(*key, SKIPPED, f"managed by {manager}: change its source")
    words = (f"{name} removed" if value is None else f'{name}: "{value}"' for name, value in changes.items())
    return Outcome(*key, PLANNED, ", ".join(words))


def _apply(cluster: ClusterClient, vm: JsonObject, desired: DesiredOptIn) -> Outcome:
    """Write the annotation. If the VM has changed since it was read, read it and plan again."""
    key = text(vm, "metadata", "namespace"), text(vm, "metadata", "name")
    for _ in range(MAX_ATTEMPTS):
        outcome = _plan(vm, desired)
        if outcome.result != PLANNED:
            return outcome
        try:
            _patch(cluster, vm, desired)
        except ClusterError as error:
            if error.code != CONFLICT:
                return Outcome(*key, FAILED, "the VM was deleted" if error.code == NOT_FOUND else str(error))
        else:
            return replace(outcome, result=CHANGED)
        try:
            vm = _named(cluster, *key)
        except (BadInput, ClusterError) as error:
            return Outcome(*key, FAILED, str(error))
    return Outcome(*key, FAILED, f"the VM changed during each of {MAX_ATTEMPTS} attempts; run the command again")


def _patch(cluster: ClusterClient, vm: JsonObject, desired: DesiredOptIn) -> None:
    # With the version, the API server refuses the patch if another program has changed the VM, which may manage it now.
    body = {
        "metadata": {"resourceVersion": text(vm, "metadata", "resourceVersion")},
        "spec": {"template": {"metadata": {"annotations": desired.change(vm)}}},
    }
    path = VIRTUAL_MACHINES.object_path((text(vm, "metadata", "namespace"), text(vm, "metadata", "name")))
    cluster.send("PATCH", f"{path}?fieldManager={FIELD_MANAGER}", body, WRITE_TIMEOUT)
