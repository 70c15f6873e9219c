"""What a user may type next, or meant to type: the names of contexts, namespaces, VMs and pods."""

import difflib
from collections.abc import Callable, Iterable

import click

from webhook.catalog.kinds import NAMESPACES, NODES, PODS, VIRTUAL_MACHINES, VMIS
from webhook.catalog.storage_kinds import CLAIMS
from webhook.cluster.client import ClusterClient
from webhook.cluster.credentials import ClusterError, context_names
from webhook.placement.objects.fields import text
from webhook.reading.api import list_objects

KINDS = {"namespace": NAMESPACES, "node": NODES, "vm": VIRTUAL_MACHINES, "vmi": VMIS, "pod": PODS, "pvc": CLAIMS}
NOUNS = {"pod": "Pod", "pvc": "PersistentVolumeClaim", "node": "Node"}


def not_found(kind: str, name: str, namespace: str | None, known: Iterable[str]) -> str:
    """Return the error for a VM or a pod that doesn't exist. `known` are the names of those that do."""
    noun = NOUNS.get(kind, "VirtualMachine")
    where, option = (f' in namespace "{namespace}"', f" -n {namespace}") if namespace else (" in any namespace", " -A")
    where, option = ("", "") if kind == "node" else (where, option)
    close = difflib.get_close_matches(name, sorted(known), n=1)
    remedy = f'did you mean "{close[0]}"?' if close else f"to list all: kubectl get {kind}{option}"
    return f'{noun} "{name}" not found{where}; {remedy}'


def complete(kind: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Return the completion of names of a kind. A `subject` is a kind, and then a name of it."""

    def completion(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
        return sorted(name for name in _names(context, kind) if name.startswith(incomplete))

    return completion


def _names(context: click.Context, kind: str) -> Iterable[str]:
    options = context.meta | context.params
    if kind == "subject":
        kind = next(iter(options.get("subject") or ()), "")
        if not kind:
            return "vm", "vmi", "pod", "pvc", "node"
    if kind == "context":
        return context_names(options.get("kubeconfig"))
    try:
        cluster = ClusterClient.connect(options.get("kubeconfig"), options.get("context"))
        namespace = "" if kind in ("namespace", "node") else options.get("namespace") or cluster.namespace
        path = KINDS[kind].path_in(namespace)
        return [text(item, "metadata", "name") for item in list_objects(cluster, path)]
    except (ClusterError, KeyError):  # KeyError: another kind
        return ()
