"""Read a live cluster once, and return its objects with only what a snapshot keeps.

These are the fields of the shapes in `catalog.kinds`, without what may hold secrets, such as the annotations of other
programs (docs/decisions/0023-snapshots-keep-listed-fields.md).
"""

from collections.abc import Callable, Collection, Iterator

import msgspec

from webhook import __version__
from webhook.catalog.kind import Kind, MalformedObject, as_map
from webhook.catalog.kinds import kinds, tool_kinds
from webhook.catalog.storage_kinds import OLD_CLASS
from webhook.cluster.client import ClusterClient
from webhook.cluster.credentials import ClusterError
from webhook.fleet.webhook import Webhook
from webhook.placement.objects.fields import JsonObject, mapping, mappings
from webhook.placement.objects.kubevirt import (
    EVICTION_SOURCE,
    MIGRATION_NAME_ANNOTATION,
    PROVISIONING_ANNOTATION,
    VMI_NAME_ANNOTATION,
)
from webhook.placement.objects.longhorn import is_share_manager
from webhook.reading.api import describe_failure, list_raw
from webhook.reading.documents import BadInput
from webhook.reading.snapshot import DESCRIPTION

OWN_PREFIXES = ("kubevirt-scheduler/", "scheduler.kubevirt-scheduler.io/")
ANNOTATIONS = frozenset(
    {VMI_NAME_ANNOTATION, PROVISIONING_ANNOTATION, MIGRATION_NAME_ANNOTATION, EVICTION_SOURCE, OLD_CLASS}
)
_SOURCES = ("persistentVolumeClaim", "dataVolume", "ephemeral", "containerPath", "downwardMetrics")


def description(cluster: ClusterClient, webhook: Webhook, time: str) -> JsonObject:
    """Return the object by which a snapshot describes itself. `time` is in RFC 3339."""
    api_version, kind = DESCRIPTION
    metadata = {"name": cluster.name or "cluster", "creationTimestamp": time}
    about = {"cluster": cluster.name, "version": __version__, "webhook": webhook.as_json()}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata} | about


def export(
    cluster: ClusterClient, longhorn: str, opt_in: Collection[str], omit: Callable[[str, str, bool], None]
) -> Iterator[JsonObject]:
    """Yield the cluster's objects, reduced to the kept fields.

    Calls `omit` for each kind that the API server doesn't have or that the user may not list: with its plural, the
    cause, and whether the right is missing. Raises BadInput if the API server can't be reached.
    """
    for kind in (*kinds(longhorn), *tool_kinds(longhorn)):
        try:
            items = list_raw(cluster, kind.path, **kind.query)
        except ClusterError as error:
            if error.code != 403 and not (error.code == 404 and kind.optional):
                raise BadInput(f"{kind.plural}: {describe_failure(error)}") from None
            denied = error.code == 403
            omit(kind.plural, str(error) if denied else f"{kind.group} is not installed", denied)
            continue
        for item in items:
            try:
                yield reduced(kind, item, opt_in)
            except MalformedObject as error:  # the webhook skips it, too
                name, problem = error.args
                omit(f"{kind.name} {name}".rstrip(), problem, False)


def _reduce_containers(pod: JsonObject) -> None:
    serves = is_share_manager(mapping(pod, "metadata", "labels"))
    for container in (*mappings(pod, "spec", "containers"), *mappings(pod, "spec", "initContainers")):
        if not serves:
            container.pop("image", None)
        if not any(mappings(container, "volumeMounts")):  # each is empty without an option that the guard reads
            container.pop("volumeMounts", None)


def reduced(kind: Kind, raw: msgspec.Raw | bytes, opt_in: Collection[str]) -> JsonObject:
    """Return an object with the kept fields. `opt_in` are the keys of the opt-in annotations.

    Of a kind without a type, a field of an unexpected type is removed. Raises MalformedObject for invalid JSON, and for
    a typed object with such a field.
    """
    decoded = kind.decode(raw)
    item = as_map(decoded) if kind.typed else decoded
    mapping(item, "metadata").pop("resourceVersion", None)
    template = mapping(item, "spec", "template")
    revision = mapping(item, "data")
    specs = [mapping(each, "spec") for each in (item, template, revision)]
    kept = ANNOTATIONS | frozenset(opt_in)
    for annotated in (mapping(item, "metadata"), mapping(template, "metadata"), *specs):
        if "annotations" in annotated:
            items = mapping(annotated, "annotations").items()
            annotated["annotations"] = {
                key: value for key, value in items if key in kept or key.startswith(OWN_PREFIXES)
            }
    for spec in specs:
        if "volumes" in spec:
            spec["volumes"] = [each for each in mappings(spec, "volumes") if any(key in each for key in _SOURCES)]
    _reduce_containers(item)
    for condition in mappings(item, "status", "conditions"):
        if condition.get("type") != "PodScheduled":  # says why a pod is Pending
            condition.pop("message", None)
    # The API server omits both from the items of a list.
    return {"apiVersion": kind.api_version, "kind": kind.name} | item
