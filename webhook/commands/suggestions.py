"""What a user may type next, or meant to type: the names of contexts, namespaces and VMs."""

import difflib
from collections.abc import Iterable, Iterator

import click


def close_match(name: str, known: Iterable[str]) -> str:
    """Return a question that corrects a misspelled name, such as 'did you mean "vm1"?'; empty if no name is close."""
    found = difflib.get_close_matches(name, sorted(known), n=1)
    return f'did you mean "{found[0]}"?' if found else ""


def complete_contexts(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the kubeconfig contexts that begin like this."""
    from webhook.cluster.client import context_names  # noqa: PLC0415 (takes a second to import)

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
    names = ("vm", "vmi", "pod") if kind is None else _names(context, kind)
    return [name for name in names if name.startswith(incomplete)]


def _names(context: click.Context, kind: str) -> Iterator[str]:
    from webhook.cluster.client import ClusterClient, ClusterError  # noqa: PLC0415 (as above)
    from webhook.reading.listing import NAMED_KINDS, list_names  # noqa: PLC0415

    options = context.params
    try:
        cluster = ClusterClient.connect(options.get("kubeconfig"), options.get("context"))
    except ClusterError:
        return
    if kind in NAMED_KINDS:
        everywhere = options.get("all_namespaces") or kind == "namespace"
        yield from list_names(cluster, kind, "" if everywhere else options.get("namespace") or cluster.namespace)
