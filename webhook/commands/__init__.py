"""One file per subcommand; and here what those that read a pod from a file share."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from webhook import documents, snapshot
from webhook.documents import BadInput, Document, Kind
from webhook.review import BadReview, request_of
from webhook.shape import JsonObject, mapping, text
from webhook.store import Store

file_option = click.option(
    "-f",
    "--filename",
    "file",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE",
    help="YAML or JSON: pods, lists, AdmissionReviews. - is standard input.",
)

snapshot_option = click.option(
    "--snapshot",
    "snapshots",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="FILE",
    help="The cluster, as kubectl writes it: a file or a folder. May be given several times.",
)

color_option = click.option(
    "--color/--no-color",
    default=None,
    help="With colours or without. Default: with them on a terminal, unless NO_COLOR is set.",
)

verbose_option = click.option("-v", "--verbose", is_flag=True, help="Say what the snapshot holds besides.")


def wants_color(chosen: bool | None) -> bool:
    """Say whether the output is to be coloured (https://no-color.org)."""
    return chosen if chosen is not None else sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def cluster_from(snapshots: Sequence[Path], *, verbose: bool) -> Store:
    """Read the cluster from files. Raises BadInput, and UsageError without any."""
    if not snapshots:
        raise click.UsageError("--snapshot is needed: this version can not read a live cluster yet.")
    store, ignored = snapshot.read(snapshots)
    if verbose and ignored:
        counted = ", ".join(f"{count} {kind}" for kind, count in sorted(ignored.items()))
        click.echo(documents.printable(f"The snapshot also holds, and nobody asks for it: {counted}"), err=True)
    return store


def objects_from(file: Path) -> list[Document]:
    """Read the documents of a file, at least one. Raises BadInput."""
    found = documents.read(file)
    if not found:
        raise BadInput(f"{documents.shown(file)}: it is empty; a Pod is wanted, in YAML or JSON")
    return found


def request_in(document: Document, kind: Kind, item: JsonObject) -> JsonObject | None:
    """Return the request that an object from a file stands for, None where it is neither Pod nor AdmissionReview.

    Raises BadInput.
    """
    if kind[1] == "AdmissionReview":
        try:
            request = request_of(item)
        except BadReview as error:
            raise document.bad(str(error)) from None
    elif kind == ("v1", "Pod"):
        request = _creation(item)
    else:
        return None
    if text(request, "kind", "kind") == "Pod" and isinstance(pod := request.get("object"), dict):
        for field in ("metadata", "spec"):
            if not isinstance(pod.get(field), dict):
                raise document.bad(f"a Pod's {field} is no map")
    return request


def _creation(pod: JsonObject) -> JsonObject:
    return {
        "uid": "offline",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "namespace": text(pod, "metadata", "namespace") or "default",
        "operation": "CREATE",
        "dryRun": True,
        "object": pod,
    }


def name_in(request: JsonObject) -> str:
    """Return the pod's namespace and name, or what its name will begin with."""
    metadata = mapping(request, "object", "metadata")
    name = text(metadata, "name") or text(metadata, "generateName") or "(no name)"
    return f"{text(request, 'namespace') or text(metadata, 'namespace') or 'default'}/{name}"
