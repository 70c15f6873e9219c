"""What would become of a pod: the engine on files."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec

from webhook.cluster import documents, manifests
from webhook.cluster.documents import Document, Kind
from webhook.commands.options import (
    cluster_from,
    color_option,
    file_option,
    live_options,
    snapshot_option,
    verbose_option,
    wants_color,
)
from webhook.commands.requests import decided, name_in, objects_from, request_in
from webhook.placement.catalog import Catalog
from webhook.placement.injector import Injection
from webhook.placement.patch import applied
from webhook.placement.settings import Settings, read_settings
from webhook.placement.shape import JsonObject
from webhook.serving.review import as_json

_COLORS = {"+": "green", "-": "red", "@": "cyan"}


@dataclass(frozen=True, slots=True)
class Injected:
    """An object for which the webhook is asked, before and after, and what was decided on it."""

    name: str
    before: JsonObject
    after: JsonObject
    injection: Injection


@dataclass(frozen=True, slots=True)
class Run:
    """The engine on the objects of files, and what came of those for which the webhook is asked."""

    catalog: Catalog
    settings: Settings
    found: list[Injected] = field(default_factory=list)

    def mutated(self, document: Document) -> JsonObject:
        """Return a document with its pods mutated; an AdmissionReview becomes its object."""
        return document.rewritten(partial(self._mutated, document))

    def _mutated(self, document: Document, kind: Kind, item: JsonObject) -> JsonObject:
        request = request_in(document, kind, item)
        if request is None:
            return item
        injection = decided(request, self.catalog, self.settings)
        before = _object(request, item)
        after = applied(injection.patch or [], before)
        self.found.append(Injected(name_in(request), before, after, injection))
        return after


def _object(request: JsonObject, review: JsonObject) -> JsonObject:
    found = request.get("object")
    return found if isinstance(found, dict) else review  # a deletion has none


@click.command(short_help="print pods as the webhook would have patched them")
@file_option
@snapshot_option
@click.option(
    "-o",
    "--output",
    type=click.Choice(["yaml", "json", "patch", "diff"]),
    default="yaml",
    show_default=True,
    help="The mutated objects, the decisions, the JSON patches, or what changes.",
)
@color_option
@verbose_option
@live_options
def inject(
    file: Path, snapshots: tuple[Path, ...], output: str, color: bool | None, verbose: bool, **live: str | None
) -> None:
    """Print pods as the webhook would have patched them.

    FILE holds a Pod, a List, an AdmissionReview, or several YAML documents; objects of other kinds come out as they
    went in. Nothing is changed anywhere. Without a snapshot the cluster of the kubeconfig is read, as far as the pod
    needs it.

    \b
    Examples:
      kubevirt-scheduler inject -f pod.yaml
      kubevirt-scheduler inject -f pod.yaml --snapshot cluster.yaml
      kubevirt-scheduler inject -f pod.yaml --snapshot cluster.yaml -o diff
      kubevirt-scheduler inject -f review.json --snapshot cluster.yaml -o json
      kubectl get pods -o yaml | kubevirt-scheduler inject -f - --snapshot cluster.yaml
    """  # noqa: D301 (click's mark of a block that keeps its lines)
    received = objects_from(file)
    settings = read_settings(os.environ)
    run = Run(cluster_from(snapshots, **live, settings=settings, verbose=verbose), settings)
    mutated = [run.mutated(document) for document in received]
    match output:
        case "yaml":
            text = _yaml(mutated)
        case "json":
            text = _json([as_json(found.injection) for found in run.found])
        case "patch":
            text = _json([found.injection.patch or [] for found in run.found])
        case _:
            text = "".join(_diff(documents.display_name(file), found) for found in run.found)
            text = _painted(text) if wants_color(color) else text
    _warn(run.found, quiet=output == "json")
    click.echo(text.encode(), nl=False)  # in UTF-8, whatever the terminal is set to


def _yaml(objects: Iterable[JsonObject]) -> str:
    return "---\n".join(map(manifests.to_yaml, objects))


def _json(results: list[Any]) -> str:
    whole = msgspec.json.encode(results[0] if len(results) == 1 else results)
    return msgspec.json.format(whole, indent=2).decode() + "\n"


def _diff(file: str, found: Injected) -> str:
    # Object by object: the time that difflib takes grows with the square of what it compares.
    import difflib  # noqa: PLC0415 (one output of four needs it)

    # Not splitlines(): it also splits within a line, at signs that only some take for its end.
    before, after = (manifests.to_yaml(one).split("\n") for one in (found.before, found.after))
    name = f"{file} {documents.printable(found.name)}"
    lines = difflib.unified_diff(before, after, name, f"{name} (injected)", lineterm="")
    return "".join(f"{line}\n" for line in lines)


def _painted(diff: str) -> str:
    lines = diff.split("\n")
    return "\n".join(click.style(line, fg=_COLORS.get(line[:1])) if line else line for line in lines)


def _warn(everything: list[Injected], *, quiet: bool) -> None:
    for found in everything:
        of = f"{found.name}: " if len(everything) > 1 else ""
        decision, said = found.injection.decision, [] if quiet else list(found.injection.warnings)
        if found.injection.error is not None:
            said.append(f"{decision.reason}: {decision.message}")
        for sentence in said:
            click.echo(documents.printable(f"Warning: {of}{sentence}"), err=True)
