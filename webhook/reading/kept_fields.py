"""Reduce an object to what a snapshot keeps: the fields that the webhook reads, without what may hold secrets.

`cluster.kind_fields` lists the fields. This module removes the annotations of other programs, such as kubectl's
last-applied-configuration, the volumes that are no claims, and the messages of all conditions but the scheduler's.
"""

from collections.abc import Collection

import msgspec

from webhook.cluster import kind_fields
from webhook.cluster.caches.kinds import Kind
from webhook.placement.objects.fields import JsonObject, mapping, mappings
from webhook.placement.objects.kubevirt import (
    EVICTION_SOURCE,
    MIGRATION_NAME_ANNOTATION,
    PROVISIONING_ANNOTATION,
    VMI_NAME_ANNOTATION,
)

OWN_PREFIXES = ("kubevirt-scheduler/", "scheduler.kubevirt-scheduler.io/")
ANNOTATIONS = frozenset({VMI_NAME_ANNOTATION, PROVISIONING_ANNOTATION, MIGRATION_NAME_ANNOTATION, EVICTION_SOURCE})
_CLAIM_SOURCES = ("persistentVolumeClaim", "dataVolume", "ephemeral")


def reduced(kind: Kind, raw: msgspec.Raw | bytes, opt_in: Collection[str]) -> JsonObject:
    """Return an object with the kept fields. `opt_in` are the keys of the opt-in annotations.

    A field of an unexpected type is removed. Raises ValueError for invalid JSON.
    """
    item = kind_fields.decode_large(raw, kind.shape)
    mapping(item, "metadata").pop("resourceVersion", None)
    template, revision = mapping(item, "spec", "template"), mapping(item, "data")
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
            spec["volumes"] = [each for each in mappings(spec, "volumes") if any(key in each for key in _CLAIM_SOURCES)]
    for condition in mappings(item, "status", "conditions"):
        if condition.get("type") != "PodScheduled":  # says why a pod is Pending
            condition.pop("message", None)
    # The API server omits both from the items of a list.
    return {"apiVersion": kind.api_version, "kind": kind.name} | item
