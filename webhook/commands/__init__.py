"""One file per subcommand; and here what those that read a pod from a file share."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from webhook import documents, injector, snapshot
from webhook.catalog import Catalog
from webhook.documents import BadInput, Document, Kind
from webhook.eligibility import is_pod_creation
from webhook.injector import Injection
from webhook.review import BadReview, request_of
from webhook.settings import Settings
from webhook.shape import JsonObject, mapping, text
from webhook.store import Store

if TYPE_CHECKING:
    from webhook.cluster import Cluster

optional_file_option, file_option = (
    click.option(
        "-f",
        "--filename",
        "file",
        type=click.Path(path_type=Path),
        required=required,
        metavar="FILE",
        help="YAML or JSON: pods, lists, AdmissionReviews. - is standard input.",
    )
    for required in (False, True)
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


def live_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add what chooses a live cluster."""
    for option in (
        click.option("--context", metavar="NAME", help="Which context of the kubeconfig. Default: its current one."),
        click.option("--kubeconfig", metavar="FILE", help="Whose cluster to read, where no snapshot is given."),
    ):
        command = option(command)
    return command


def connect(kubeconfig: str | None, context: str | None) -> Cluster:
    """Find the live cluster. Raises BadInput."""
    # Here, because the Kubernetes client takes a second to import, which files need not wait for.
    from webhook.cluster import Cluster, ClusterError  # noqa: PLC0415

    try:
        return Cluster.connect(kubeconfig, context)
    except ClusterError as error:
        raise BadInput(f"{str(error).rstrip('.')}; give --kubeconfig FILE, or --snapshot FILE") from None


def namespace_and_name(value: str, option: str) -> tuple[str, str]:
    """Read what an option names as NAMESPACE/NAME. Raises BadParameter."""
    namespace, _, name = value.partition("/")
    if not (namespace and name) or "/" in name:
        raise click.BadParameter(f"{value!r} is not NAMESPACE/NAME", param_hint=option)
    return namespace, name


def cluster_from(
    snapshots: Sequence[Path], kubeconfig: str | None, context: str | None, settings: Settings, *, verbose: bool
) -> Store:
    """Read the cluster from files, or else, as far as it is asked about, the live one. Raises BadInput."""
    if not snapshots:
        from webhook.ondemand import OnDemand  # noqa: PLC0415 (as above)

        return OnDemand(connect(kubeconfig, context), settings.longhorn_namespace)
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
        request = creation(item)
    else:
        return None
    for field in ("metadata", "spec") if is_pod_creation(request) else ():
        if not isinstance(request["object"].get(field), dict):  # and so no patch could apply to it
            raise document.bad(f"a Pod's {field} is no map")
    return request


def decided(request: JsonObject, catalog: Catalog, settings: Settings) -> Injection:
    """Decide on a request. Raises BadInput where the live cluster did not answer: nothing was decided then."""
    injection = injector.inject(request, catalog, settings)
    if isinstance(injection.error, BadInput):
        raise injection.error
    return injection


def creation(pod: JsonObject) -> JsonObject:
    """Return the request with which a pod would be created."""
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
