"""Read the facts about one pod from its manifest."""

from sys import intern
from typing import Any

from webhook.placement.objects.claims import DECIDING_CLAIM_ANNOTATION, mounted_claims
from webhook.placement.objects.facts import Pod
from webhook.placement.objects.fields import JsonObject, is_dns_subdomain, mapping, mappings, text
from webhook.placement.objects.kubevirt import APP_LABEL, HOTPLUG_POD, VIRT_LAUNCHER, VMI_NAME_ANNOTATION
from webhook.placement.objects.resources import effective_requests
from webhook.placement.objects.selectors import required_terms

# Shared, because an empty set takes 216 bytes and most pods need two.
NO_STRINGS: frozenset[str] = frozenset()


def pod_facts(item: JsonObject, namespace: str, name: str, effective_node: str) -> Pod:
    """Read the facts about a pod, which may not have a name, a namespace or a node yet.

    Raises Malformed for a quantity that can't be parsed.
    """
    labels, metadata = labels_of(item), mapping(item, "metadata")
    belongs_to_vm = labels.get(APP_LABEL) in (VIRT_LAUNCHER, HOTPLUG_POD)
    annotations = mapping(metadata, "annotations") if belongs_to_vm else {}
    true, false = true_and_false_keys(annotations)
    owners = mappings(metadata, "ownerReferences") if belongs_to_vm else []
    return Pod(
        namespace=namespace,
        name=name,
        uid=text(metadata, "uid"),
        node=text(item, "spec", "nodeName"),
        effective_node=effective_node,
        alive=text(item, "status", "phase") in ("Pending", "Running", "") and not is_terminating(item),
        created=text(metadata, "creationTimestamp"),
        labels=labels,
        requests=effective_requests(item),
        anti_affinity=required_terms(item, namespace, "podAntiAffinity"),
        claims=mounted_claims(item),
        true_annotations=true,
        owners=frozenset(text(owner, "uid") for owner in owners) or NO_STRINGS,
        vm=_name_in(annotations, VMI_NAME_ANNOTATION),
        deciding_claim=_name_in(annotations, DECIDING_CLAIM_ANNOTATION),
        false_annotations=false,
    )


def true_and_false_keys(annotations: JsonObject) -> tuple[frozenset[str], frozenset[str]]:
    """Return the keys of the annotations with the value "true", and of those with the value "false"."""
    true, false = [], []
    for key, value in annotations.items():
        if value == "true":
            true.append(key)
        elif value == "false":
            false.append(key)
    return frozenset(true) or NO_STRINGS, frozenset(false) or NO_STRINGS


def _name_in(annotations: JsonObject, key: str) -> str:
    # Namespace users control annotations: a value of any length must not fill the memory.
    name = text(annotations, key)
    return name if is_dns_subdomain(name) else ""


def labels_of(item: JsonObject) -> dict[str, str]:
    """Return the object's labels."""
    # Thousands of objects repeat the same few keys and values: interning stores each once.
    labels = mapping(item, "metadata", "labels").items()
    return {intern(key): intern(value) for key, value in labels if isinstance(value, str)}


def is_terminating(item: Any) -> bool:
    """Return whether the object is being deleted."""
    return bool(mapping(item, "metadata").get("deletionTimestamp"))
