"""`kubevirt-scheduler opt-in` and `opt-out`: write the opt-in annotation into the templates of VMs."""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import click

from webhook.catalog.kind import key_of
from webhook.catalog.kinds import NAMESPACES, VIRTUAL_MACHINES
from webhook.cluster.client import ClusterClient
from webhook.cluster.credentials import ClusterError
from webhook.commands.fleet_source import Scope, selected, show_settings
from webhook.commands.options import (
    DRY_RUN,
    as_data,
    connect,
    given,
    live_options,
    output_option,
    scope_options,
    together,
    vm_names,
    yes_option,
)
from webhook.commands.tables import render_table, terminal_columns
from webhook.fleet.gitops import managed_by
from webhook.fleet.states import NAMESPACE_NAME, excluded_by
from webhook.fleet.webhook import Activity
from webhook.placement.objects.facts import Namespace
from webhook.placement.objects.fields import JsonObject, mapping, text
from webhook.placement.objects.selectors import labels_match
from webhook.placement.settings import Settings
from webhook.reading.api import REQUEST_TIMEOUT, Denied, answered, list_objects, read_list, read_object
from webhook.reading.installation import find_webhook

FIELD_MANAGER = "kubevirt-scheduler"
EXIT_INCOMPLETE = 1
HEADS, KEYS = ("NAMESPACE", "VM", "RESULT", "DETAIL"), ("namespace", "name", "result", "detail")
PLANNED = "would change"
CHANGED = "changed"
UNCHANGED = "unchanged"
SKIPPED = "skipped"
FAILED = "failed"


vm_options = together(
    vm_names,
    scope_options,
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


def _run(output: str, *, opts_in: bool, yes: bool) -> None:
    if given("names") and given("selector"):
        raise click.UsageError("specify either names or -l, not both")
    cluster = connect()
    scope = selected(cluster.namespace)
    webhook = find_webhook(cluster)
    keys = webhook.settings.opt_in_annotations
    if webhook.activity is Activity.UNKNOWN:  # the cluster may have other annotations
        show_settings(webhook)
    found = _find_vms(cluster, scope)
    rows = list[tuple[str, ...]]()
    if not found:
        known = list[JsonObject]()
        with suppress(Denied):
            known = read_list(cluster, NAMESPACES.path)
        scope.report_none([text(each, "metadata", "name") for each in known])
    namespaces = {key_of(vm)[0] for vm in found} if opts_in else ()
    excluded = {name: each for name in namespaces if (each := _excluding(cluster, name, webhook.settings))}
    try:
        rows.extend(
            (*key, SKIPPED, f"{excluded[key[0]]} excludes its namespace")
            if (key := key_of(vm))[0] in excluded
            else _apply(cluster, vm, keys, opts_in=opts_in, write=yes)
            for vm in found
        )
    finally:  # also after Ctrl-C: the VMs that are changed by then
        listed = as_data([dict(zip(KEYS, row, strict=True)) for row in rows])
        click.echo(listed if output == "json" else _table(rows), nl=False)
    results = {result for _, _, result, _ in rows}
    if PLANNED in results:
        click.echo(DRY_RUN, err=True)
    if results & {SKIPPED, FAILED}:
        raise SystemExit(EXIT_INCOMPLETE)


def _excluding(cluster: ClusterClient, namespace: str, settings: Settings) -> str:
    """Return the setting that excludes a namespace. Its labels are read only where the name does not decide."""
    labels = {NAMESPACE_NAME: namespace}
    if any(each.key != NAMESPACE_NAME for each in settings.namespace_selector):
        with suppress(Denied):
            labels |= mapping(read_object(cluster, f"/api/v1/namespaces/{namespace}"), "metadata", "labels")
    return excluded_by(Namespace(namespace, None, labels), settings)


def _table(rows: Sequence[Sequence[str]]) -> str:
    counted = ", ".join(f"{number} {result}" for result, number in Counter(row[2] for row in rows).items())
    plural = "VM" if len(rows) == 1 else "VMs"
    total = f"\n{len(rows)} {plural}: {counted}\n" if rows else ""
    return render_table(HEADS, rows, columns=terminal_columns()) + total


def _changes(vm: JsonObject, keys: Sequence[str], *, opts_in: bool) -> dict[str, str | None]:
    """Return the annotations to change in a VM's template; None removes one. Empty if nothing needs a change.

    `keys` are the opt-in annotations; the command writes the first one.
    """
    present = mapping(vm, "spec", "template", "metadata", "annotations")
    if opts_in:
        return {} if any(present.get(key) == "true" for key in keys) else {keys[0]: "true"}
    others: dict[str, str | None] = {key: None for key in keys[1:] if present.get(key) == "true"}
    return others | ({} if present.get(keys[0]) == "false" else {keys[0]: "false"})


def _find_vms(cluster: ClusterClient, scope: Scope) -> list[JsonObject]:
    """Read the VMs in the scope. Raises BadInput if a name is unknown."""
    with answered():
        found = list(list_objects(cluster, VIRTUAL_MACHINES.path_in(scope.namespace or "")))
    scope.require({key_of(vm)[1] for vm in found})
    labeled = (vm for vm in found if labels_match(scope.selector, mapping(vm, "metadata", "labels")))
    return [vm for vm in labeled if not scope.names or key_of(vm)[1] in scope.names]


def _apply(
    cluster: ClusterClient, vm: JsonObject, keys: Sequence[str], *, opts_in: bool, write: bool
) -> tuple[str, ...]:
    """Change the annotations of a VM's template, and return a row that says what happened, or would happen, and why."""
    key = key_of(vm)
    annotations = _changes(vm, keys, opts_in=opts_in)
    if not annotations:
        return *key, UNCHANGED, f"already opted {'in' if opts_in else 'out'}"
    if manager := managed_by(vm):
        return *key, SKIPPED, f"managed by {manager}: change its source"
    detail = ", ".join(
        f"{name} removed" if value is None else f'{name}: "{value}"' for name, value in annotations.items()
    )
    if not write:
        return *key, PLANNED, detail
    path = f"{VIRTUAL_MACHINES.object_path(key)}?fieldManager={FIELD_MANAGER}"
    try:
        body = {"spec": {"template": {"metadata": {"annotations": annotations}}}}
        cluster.send("PATCH", path, body, REQUEST_TIMEOUT)
    except ClusterError as error:
        return *key, FAILED, str(error)
    return *key, CHANGED, detail
