"""What a user may type next, or meant to type: the names of contexts, namespaces and VMs."""

import difflib
from collections.abc import Iterable

import click

from webhook.cluster.client import ClusterClient, ClusterError, context_names
from webhook.reading.listing import NAMED_KINDS, list_names


def not_found(kind: str, name: str, namespace: str | None, known: Iterable[str]) -> str:
    """Return the error for a VM or a pod that doesn't exist. `known` are the names of those that do."""
    noun = "Pod" if kind == "pod" else "VirtualMachine"
    where, option = (f'in namespace "{namespace}"', f"-n {namespace}") if namespace else ("in any namespace", "-A")
    close = difflib.get_close_matches(name, sorted(known), n=1)
    remedy = f'did you mean "{close[0]}"?' if close else f"to list all: kubectl get {kind} {option}"
    return f'{noun} "{name}" not found {where}; {remedy}'


def complete_contexts(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the kubeconfig contexts that begin like this."""
    return [name for name in context_names(context.params.get("kubeconfig")) if name.startswith(incomplete)]


def complete_namespaces(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the namespaces of the cluster that begin like this."""
    return [name for name in _names(context, "namespace") if name.startswith(incomplete)]


def complete_vms(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the VMs of the namespace that begin like this."""
    return [name for name in _names(context, "vm") if name.startswith(incomplete)]


def complete_subjects(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the kinds that `explain` knows, and after a kind its objects."""
    kind = next(iter(context.params.get("subject") or ()), None)
    names = ["vm", "vmi", "pod"] if kind is None else _names(context, kind)
    return [name for name in names if name.startswith(incomplete)]


def _names(context: click.Context, kind: str) -> list[str]:
    options = context.params
    try:
        cluster = ClusterClient.connect(options.get("kubeconfig"), options.get("context"))
    except ClusterError:
        return []
    everywhere = kind == "namespace"
    namespace = "" if everywhere else options.get("namespace") or cluster.namespace
    return list_names(cluster, kind, namespace) if kind in NAMED_KINDS else []
