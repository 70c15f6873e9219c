"""`kubevirt-scheduler inject`: print pods from files as the webhook would patch them."""

import difflib
from functools import partial
from pathlib import Path

import click
from msgspec.structs import replace

from webhook.catalog.kind import key_of
from webhook.catalog.kinds import VIRTUAL_MACHINES
from webhook.commands.admission_requests import as_json, in_namespace, pod_name, read_documents, review_from
from webhook.commands.fleet_source import Fleet, read_fleet, show_settings
from webhook.commands.options import as_data, file_option, live_options, output_option, snapshot_option
from webhook.fleet.rendering.instance_type import NotFound
from webhook.placement import injector
from webhook.placement.injector import Injection
from webhook.placement.objects.fields import JsonObject, Malformed, mapping, printable, text
from webhook.placement.patch import apply_patch
from webhook.reading import documents, kubernetes_yaml, snapshot
from webhook.reading.documents import Document, Kind

KUBEVIRT_GROUP, POOL_GROUP = "kubevirt.io", "pool.kubevirt.io"
_COLORS = {"+": "green", "-": "red", "@": "cyan"}

# The name of an object that the webhook reviews, the object before and after the patch, and the decision.
Reviewed = tuple[str, JsonObject, JsonObject, Injection]


@click.command(short_help="print pods as the webhook would patch them")
@file_option
@snapshot_option
@output_option(
    "yaml",
    "json",
    "diff",
    text="yaml: the mutated objects. json: a list of the decisions, with the JSON patches. diff: the changes.",
)
@click.option("-n", "--namespace", metavar="NAME", help="The namespace of objects that name none. Default: as kubectl.")
@live_options
def inject(file: Path, output: str, namespace: str | None) -> None:
    """Print pods as the webhook would patch them.

    FILE contains Pods, VirtualMachines, Lists or AdmissionReviews. The command prints the next pod of a VirtualMachine,
    a VirtualMachineInstance, and the template of a VirtualMachineInstanceReplicaSet or a VirtualMachinePool. It prints
    objects of other kinds unchanged. The objects of FILE count as if they were in the cluster; a claim or a node
    that the cluster has stays as it is. The command changes nothing in the cluster. Without a snapshot, it reads the
    objects that the decision needs from the cluster of the kubeconfig.

    \b
    Examples:
      kubevirt-scheduler inject -f vm.yaml -n shop
      kubevirt-scheduler inject -f pod.yaml --snapshot cluster.json
      kubevirt-scheduler inject -f pod.yaml --snapshot cluster.json -o diff
      kubevirt-scheduler inject -f review.json --snapshot cluster.json -o json
      kubectl get pods -o yaml | kubevirt-scheduler inject -f - --snapshot cluster.json
    """  # noqa: D301 (click's mark for a block whose line breaks are kept)
    received = read_documents(file)
    fleet = read_fleet()
    results = list[Reviewed]()
    fleet = replace(fleet, namespace=namespace or fleet.namespace)
    for document in received:
        snapshot.add(fleet.inventory, document, fleet.namespace)
    mutated = [each.map_objects(partial(_mutate, fleet, results, each)) for each in received]
    match output:
        case "yaml":
            shown = "---\n".join(map(kubernetes_yaml.to_yaml, mutated))
        case "json":
            shown = as_data([as_json(injection) for *_, injection in results])
        case _:
            shown = "".join(_diff(documents.display_name(file), *result) for result in results)
    if output != "json":
        show_settings(fleet.webhook)
        if not results:
            kinds = "no Pod, VirtualMachine or AdmissionReview"
            click.echo(f"Nothing to inject: {documents.display_name(file)} has {kinds}", err=True)
    _warn(results, output)
    click.echo(shown, nl=False)


def _mutate(fleet: Fleet, results: list[Reviewed], document: Document, kind: Kind, item: JsonObject) -> JsonObject:
    """Return an object with the webhook's patch: the next pod of a VM, the object of an AdmissionReview."""
    settings = fleet.webhook.settings
    item = in_namespace(fleet.namespace, kind, item)
    if template := _template(kind, item):
        metadata = {"namespace": fleet.namespace or "default"} | mapping(item, "metadata")
        item = {"metadata": metadata, "spec": {"template": template}}
        fleet.inventory.vms[key_of(item)] = VIRTUAL_MACHINES.convert(item)
    if template or VIRTUAL_MACHINES.is_of(*kind):
        try:
            item = fleet.inventory.rendered_pod(key_of(item))
        except (NotFound, Malformed) as error:
            problem = f"{error} not found" if isinstance(error, NotFound) else error
            raise document.error(f"{kind[1]} {text(item, 'metadata', 'name')}: {problem}") from None
        kind = ("v1", "Pod")
    review = review_from(document, kind, item, settings)
    if review is None:
        return item
    injection = injector.inject(review, fleet.inventory.store, settings)
    is_review = kind[1] == "AdmissionReview"
    before = (mapping(item, "request", "object") if is_review else item) or item  # a DELETE request has no object
    after = apply_patch(injection.patch or [], before)
    results.append((pod_name(review), before, after, injection))
    return after


def _template(kind: Kind, item: JsonObject) -> JsonObject:
    """Return the template of the VMIs of an object other than a VM; empty if it has none."""
    match kind[1] if kind[0].partition("/")[0] in (KUBEVIRT_GROUP, POOL_GROUP) else "":
        case "VirtualMachineInstance":
            metadata = mapping(item, "metadata")
            return {"metadata": {name: mapping(metadata, name) for name in ("labels", "annotations")}} | {
                "spec": mapping(item, "spec")
            }
        case "VirtualMachineInstanceReplicaSet":
            return mapping(item, "spec", "template")
        case "VirtualMachinePool":
            return mapping(item, "spec", "virtualMachineTemplate", "spec", "template")
    return {}


def _diff(file: str, reviewed: str, before: JsonObject, after: JsonObject, _: Injection) -> str:
    # One diff per object, because the running time of difflib grows with the square of the input.
    # Not splitlines(), which also splits at characters such as U+2028.
    old, new = (kubernetes_yaml.to_yaml(content).split("\n") for content in (before, after))
    name = f"{file} {printable(reviewed)}"
    lines = difflib.unified_diff(old, new, name, f"{name} (injected)", lineterm="")
    return "".join(f"{click.style(line, fg=_COLORS.get(line[:1]))}\n" for line in lines)


def _warn(results: list[Reviewed], output: str) -> None:
    for name, *_, injection in results:
        prefix = f"{name}: " if len(results) > 1 else ""
        decision = injection.decision
        warnings = [] if output == "json" else list(injection.warnings)
        if injection.error is not None:
            warnings.append(f"{decision.reason}: {decision.message}")
        elif injection.patch is None and output == "diff":
            click.echo(printable(f"{name}: unchanged, {decision.reason}: {decision.message}"), err=True)
        for warning in warnings:
            click.echo(printable(f"Warning: {prefix}{warning}"), err=True)
