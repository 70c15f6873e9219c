"""`kubevirt-scheduler inject`: print pods from files as the webhook would patch them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec

from webhook.cluster.caches.fact_readers import key_of
from webhook.cluster.caches.kinds import VIRTUAL_MACHINES
from webhook.cluster.machines import Inventory
from webhook.commands.admission_requests import as_json, inject_request, pod_name, read_documents, request_from
from webhook.commands.fleet_source import read_fleet
from webhook.commands.options import (
    file_option,
    live_options,
    output_option,
    show_settings,
    snapshot_option,
    wants_color,
)
from webhook.commands.progress import progress_bar
from webhook.placement.injector import Injection
from webhook.placement.objects.fields import JsonObject, printable
from webhook.placement.patch import apply_patch
from webhook.placement.settings import Settings
from webhook.reading import documents, kubernetes_yaml
from webhook.reading.documents import Document, Kind

_COLORS = {"+": "green", "-": "red", "@": "cyan"}


@dataclass(frozen=True, slots=True)
class InjectionResult:
    """An object that the webhook reviews, before and after the patch, and the decision."""

    name: str
    before: JsonObject
    after: JsonObject
    injection: Injection


@dataclass(frozen=True, slots=True)
class Injector:
    """Apply the webhook to documents, and collect a result for each object that the webhook reviews."""

    inventory: Inventory
    settings: Settings
    results: list[InjectionResult] = field(default_factory=list)

    def mutate(self, document: Document) -> JsonObject:
        """Return the document with its pods patched. An AdmissionReview is replaced by its object."""
        return document.map_objects(partial(self._mutate_item, document))

    def _mutate_item(self, document: Document, kind: Kind, item: JsonObject) -> JsonObject:
        if VIRTUAL_MACHINES.is_of(*kind):
            kind, item = ("v1", "Pod"), self._pod_of(document, item)
        request = request_from(document, kind, item, self.settings)
        if request is None:
            return item
        injection = inject_request(request, self.inventory.store, self.settings)
        before = _object(request, item)
        after = apply_patch(injection.patch or [], before)
        self.results.append(InjectionResult(pod_name(request), before, after, injection))
        return after

    def _pod_of(self, document: Document, vm: JsonObject) -> JsonObject:
        """Return the pod that KubeVirt would create for a VM of a file. Raises BadInput."""
        key = key_of(vm)
        self.inventory.vms[key] = vm
        pod, missing = self.inventory.next_pod(None, key, self.settings)
        if pod is None:
            problem = f"{missing} not found" if missing else "a field is malformed"
            raise document.error(f"VirtualMachine {key[1]}: {problem}")
        return pod


def _object(request: JsonObject, review: JsonObject) -> JsonObject:
    content = request.get("object")
    return content if isinstance(content, dict) else review  # a DELETE request has no object


@click.command(short_help="print pods as the webhook would patch them")
@file_option
@snapshot_option
@output_option(
    "yaml",
    "json",
    "patch",
    "diff",
    text="yaml: the mutated objects. json: a list of the decisions. patch: the JSON patch, or a list of patches for "
    "several pods. diff: the changes.",
)
@live_options
def inject(file: Path, snapshots: tuple[Path, ...], output: str, **live: str | None) -> None:
    """Print pods as the webhook would patch them.

    FILE contains Pods, VirtualMachines, Lists or AdmissionReviews. The command prints the next pod of a VirtualMachine,
    and objects of other kinds unchanged. It changes nothing in the cluster. Without a snapshot, it reads the objects
    that the decision needs from the cluster of the kubeconfig.

    \b
    Examples:
      kubevirt-scheduler inject -f vm.yaml
      kubevirt-scheduler inject -f pod.yaml --snapshot cluster.json
      kubevirt-scheduler inject -f pod.yaml --snapshot cluster.json -o diff
      kubevirt-scheduler inject -f review.json --snapshot cluster.json -o json
      kubectl get pods -o yaml | kubevirt-scheduler inject -f - --snapshot cluster.json
    """  # noqa: D301 (click's mark for a block whose line breaks are kept)
    received = read_documents(file)
    with progress_bar() as progress:
        fleet, _ = read_fleet(snapshots, live, progress)
    webhook, injector = fleet.webhook, Injector(fleet.inventory, fleet.webhook.settings)
    mutated = [injector.mutate(document) for document in received]
    match output:
        case "yaml":
            text = _yaml(mutated)
        case "json":
            text = _json([as_json(result.injection) for result in injector.results])
        case "patch":
            patches = [result.injection.patch or [] for result in injector.results]
            text = _json(patches[0] if len(patches) == 1 else patches)
        case _:
            text = "".join(_diff(documents.display_name(file), result) for result in injector.results)
            text = _colorize(text) if wants_color() else text
    if output != "json":
        show_settings(webhook)
        if not injector.results:
            kinds = "no Pod, VirtualMachine or AdmissionReview"
            click.echo(f"Nothing to inject: {documents.display_name(file)} has {kinds}", err=True)
    _warn(injector.results, quiet=output == "json", says_unchanged=output == "diff")
    click.echo(text.encode(), nl=False)  # bytes: always UTF-8, regardless of the locale


def _yaml(objects: Iterable[JsonObject]) -> str:
    return "---\n".join(map(kubernetes_yaml.to_yaml, objects))


def _json(results: list[Any]) -> str:
    return msgspec.json.format(msgspec.json.encode(results), indent=2).decode() + "\n"


def _diff(file: str, result: InjectionResult) -> str:
    # One diff per object, because the running time of difflib grows with the square of the input.
    import difflib  # noqa: PLC0415 (only `-o diff` needs it)

    # Not splitlines(), which also splits at characters such as U+2028.
    before, after = (kubernetes_yaml.to_yaml(content).split("\n") for content in (result.before, result.after))
    name = f"{file} {printable(result.name)}"
    lines = difflib.unified_diff(before, after, name, f"{name} (injected)", lineterm="")
    return "".join(f"{line}\n" for line in lines)


def _colorize(diff: str) -> str:
    lines = diff.split("\n")
    return "\n".join(click.style(line, fg=_COLORS.get(line[:1])) if line else line for line in lines)


def _warn(results: list[InjectionResult], *, quiet: bool, says_unchanged: bool) -> None:
    for result in results:
        prefix = f"{result.name}: " if len(results) > 1 else ""
        decision, warnings = result.injection.decision, [] if quiet else list(result.injection.warnings)
        if result.injection.error is not None:
            warnings.append(f"{decision.reason}: {decision.message}")
        elif result.injection.patch is None and says_unchanged:
            click.echo(printable(f"{result.name}: unchanged, {decision.reason}: {decision.message}"), err=True)
        for warning in warnings:
            click.echo(printable(f"Warning: {prefix}{warning}"), err=True)
