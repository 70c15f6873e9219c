"""Read the facts about one pod from its manifest."""

from collections.abc import Collection
from functools import lru_cache
from typing import Any

from webhook.placement.objects import kubevirt
from webhook.placement.objects.facts import Pod
from webhook.placement.objects.fields import JsonObject, Malformed, is_dns_subdomain, mapping, mappings, text
from webhook.placement.objects.resources import MAX_RESOURCES, PODS, CostlyQuantities, effective_requests
from webhook.placement.objects.selectors import REQUIRED, required_terms

DECIDING_CLAIM_ANNOTATION = "kubevirt-scheduler/co-schedule-claim"
MAX_CLAIMS = 128  # of a pod that are followed, each in 10 µs; more than a VM can have disks
# bytes of memory that the details of a pod may take: labels, annotations, claims, owners, resource names and terms. A
# pod of KubeVirt takes 4 KB. Anybody who may create pods fills the caches: with 2.8 MB of terms, a pod took 18 MB.
MAX_DETAILS = 16 * 1024
MAX_NAME = 253  # characters; a made-up review may have longer names than the API server accepts
# The manifest's key that marks a pod whose details were too long to decode.
UNDECODED = "undecoded"
# Bytes of memory: of a string without its characters; of each quote and each entry of a map in the text of a term.
_STRING, _QUOTE, _ENTRY = 100, 40, 80
_TERMS = frozenset({"podAntiAffinity", "podAffinity"})
_KEPT_LABELS = (kubevirt.APP_LABEL, kubevirt.CREATED_BY_LABEL, kubevirt.MIGRATION_LABEL)
_LONGEST_LABEL = 317  # characters: a prefix, a slash and a name
_stored_once = lru_cache(maxsize=16_384)(str)
# Shared, because an empty set takes 216 bytes and most pods need two.
NO_STRINGS: frozenset[str] = frozenset()


class Manifest:
    """A pod's manifest, of which the rules read each part once. The pod may not have a namespace yet.

    `user` is the creator of a pod that is being created, None for a pod from a file and for a predicted one.
    `true_annotations` and `false_annotations` are the keys of the annotations with that value, if the pod mounts
    claims. `required_node_affinity` may be of any type.
    """

    def __init__(self, pod: JsonObject, namespace: str, user: str | None = None) -> None:
        self.pod, self.namespace, self.user = pod, namespace, user
        self.metadata, self.spec = mapping(pod, "metadata"), mapping(pod, "spec")
        self.labels, self.annotations = mapping(self.metadata, "labels"), mapping(self.metadata, "annotations")
        self.affinity, self.claims = mapping(self.spec, "affinity"), mounted_claims(self.spec)
        self.required_node_affinity = mapping(self.affinity, "nodeAffinity").get(REQUIRED)
        app = self.labels.get(kubevirt.APP_LABEL)
        self.is_virt_launcher = app == kubevirt.VIRT_LAUNCHER
        self.is_of_vm = app in (kubevirt.VIRT_LAUNCHER, kubevirt.HOTPLUG_POD)
        uses_volumes = self.is_of_vm or self.claims
        keys = true_and_false_keys(self.annotations) if uses_volumes else (NO_STRINGS, NO_STRINGS)
        self.true_annotations, self.false_annotations = keys
        self.is_migration_target = bool(self.labels.get(kubevirt.MIGRATION_LABEL))
        self.vmi_uid = text(self.labels, kubevirt.CREATED_BY_LABEL)

    def as_start(self) -> "Manifest":
        """Return the manifest as if the pod started a VM, and were no target of a live migration."""
        labels = {key: value for key, value in self.labels.items() if key != kubevirt.MIGRATION_LABEL}
        return Manifest(self.pod | {"metadata": self.metadata | {"labels": labels}}, self.namespace, self.user)


def mounted_claims(spec: JsonObject) -> tuple[str, ...]:
    """Return the names of the claims that a pod's spec mounts, in volume order, without duplicates.

    Of more than MAX_CLAIMS, the first ones and one more: to read 6,000 takes 3 ms.
    """
    names: dict[str, None] = {}
    for volume in mappings(spec, "volumes"):
        if "persistentVolumeClaim" in volume and (name := text(volume["persistentVolumeClaim"], "claimName")):
            names[name] = None
            if len(names) > MAX_CLAIMS:
                break
    return tuple(names)


def pod_facts(manifest: Manifest, name: str, effective_node: str) -> Pod:
    """Read the facts about a pod, which may not have a name, a namespace or a node yet.

    Of an oversized pod, only what identifies it, its node and its requests are read. Raises Malformed for a quantity
    that can't be parsed.
    """
    labels = _strings(manifest.labels)
    owner = text(kubevirt.controller_of(manifest.pod), "uid") if manifest.is_of_vm else ""
    oversized = _is_oversized(manifest, labels, owner)
    if oversized:
        manifest = Manifest(_without_details(manifest), manifest.namespace)
        labels, owner = manifest.labels, ""
    item, namespace, metadata, spec = manifest.pod, manifest.namespace, manifest.metadata, manifest.spec
    status = mapping(item, "status")
    annotations = manifest.annotations if manifest.is_of_vm else {}
    requests, unknown = _requests(item)
    node = text(spec, "nodeName")
    priority = spec.get("priority")
    return Pod(
        namespace=namespace[:MAX_NAME],
        name=name[:MAX_NAME],
        uid=text(metadata, "uid")[:MAX_NAME],
        node=node,
        effective_node=effective_node,
        alive=text(status, "phase") in ("Pending", "Running", "") and not metadata.get("deletionTimestamp"),
        created=text(metadata, "creationTimestamp")[:MAX_NAME],
        # A pod that is being created has no uid. Nothing keeps its labels for long.
        labels=shared_labels(labels) if "uid" in metadata else labels,
        requests=requests,
        anti_affinity=required_terms(item, namespace, "podAntiAffinity"),
        claims=manifest.claims,
        true_annotations=manifest.true_annotations,
        owner=owner,
        vm=_name_in(annotations, kubevirt.VMI_NAME_ANNOTATION),
        deciding_claim=_name_in(annotations, DECIDING_CLAIM_ANNOTATION),
        false_annotations=manifest.false_annotations,
        oversized=oversized or unknown,
        priority=priority if isinstance(priority, int) else 0,
        nominated=not node and bool(text(status, "nominatedNodeName")),
    )


def _is_oversized(manifest: Manifest, labels: dict[str, str], owner: str) -> bool:
    """Return whether the details of a pod are unknown, or take more than MAX_DETAILS."""
    if UNDECODED in manifest.pod or len(labels) * _STRING > MAX_DETAILS or len(manifest.claims) > MAX_CLAIMS:
        return True
    details = [*labels, *labels.values(), *manifest.true_annotations, *manifest.false_annotations, *manifest.claims]
    return memory_of([*details, owner] if owner else details) + _size_of_terms(manifest.affinity) > MAX_DETAILS


def _requests(item: JsonObject) -> tuple[dict[str, int], bool]:
    """Return the requests of a pod, and whether they are unknown. Such a pod counts only as a pod."""
    try:
        requests = effective_requests(item)
    except CostlyQuantities:
        return {PODS: 1}, True
    except Malformed as error:
        raise Malformed(f"resources: {error}") from None
    if len(requests) <= MAX_RESOURCES:
        return requests, False
    return dict(sorted(requests.items(), key=lambda item: "/" in item[0])[:MAX_RESOURCES]), True  # cpu and memory first


def _without_details(manifest: Manifest) -> JsonObject:
    metadata, spec, labels = manifest.metadata, manifest.spec, manifest.labels
    kept = {key: labels[key] for key in _KEPT_LABELS if len(text(labels, key)) in range(1, _LONGEST_LABEL)}
    identity = ("uid", "creationTimestamp", "deletionTimestamp")
    requests = ("containers", "initContainers", "nodeName", "overhead", "resources")
    return {
        "metadata": {key: metadata[key] for key in identity if key in metadata} | {"labels": kept},
        "spec": {key: spec[key] for key in requests if key in spec},
        "status": mapping(manifest.pod, "status"),
        UNDECODED: True,
    }


def memory_of(strings: Collection[str]) -> int:
    """Return roughly how many bytes strings take in memory."""
    return _STRING * len(strings) + len("".join(strings))


def _size_of_terms(affinity: JsonObject) -> int:
    """Return roughly how many bytes a pod's required terms take in memory, by their strings and map entries."""
    kinds = _TERMS & affinity.keys()
    if not kinds:  # most pods
        return 0
    terms = [mappings(affinity, kind, REQUIRED) for kind in kinds]
    least = _ENTRY * sum(map(len, terms))
    if least > MAX_DETAILS:  # to write 450 KB takes 2 ms
        return least
    written = str(terms)
    return len(written) + _QUOTE * (written.count("'") + written.count('"')) + _ENTRY * written.count(": ")


def true_and_false_keys(annotations: JsonObject) -> tuple[frozenset[str], frozenset[str]]:
    """Return the keys of the annotations with the value "true", and of those with the value "false"."""
    values, items = annotations.values(), annotations.items()
    true = frozenset([key for key, value in items if value == "true"]) if "true" in values else NO_STRINGS
    false = frozenset([key for key, value in items if value == "false"]) if "false" in values else NO_STRINGS
    return true, false


def _name_in(annotations: JsonObject, key: str) -> str:
    # Namespace users control annotations: a value of any length must not fill the memory.
    name = text(annotations, key) if key in annotations else ""
    return name if name and is_dns_subdomain(name) else ""


def _strings(labels: JsonObject) -> dict[str, str]:
    return {key: value for key, value in labels.items() if type(value) is str}


def shared_labels(labels: dict[str, str]) -> dict[str, str]:
    """Return the labels, with each key and value stored once: thousands of objects repeat the same few."""
    # A table of limited size, because Python 3.12.1 never frees an interned string.
    # The API server hasn't validated a new pod's labels yet: long ones must not fill the table.
    if max(map(len, (*labels, *labels.values())), default=0) > _LONGEST_LABEL:
        return labels
    return dict(zip(map(_stored_once, labels), map(_stored_once, labels.values()), strict=True))


def is_terminating(item: Any) -> bool:
    """Return whether the object is being deleted."""
    return bool(mapping(item, "metadata").get("deletionTimestamp"))
