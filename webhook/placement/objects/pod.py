"""Read the facts about one pod from its manifest."""

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import Any, Self

from msgspec.structs import replace

from webhook.placement.objects import kubevirt
from webhook.placement.objects.facts import Pod
from webhook.placement.objects.fields import JsonObject, Malformed, is_dns_subdomain, mapping, mappings, text
from webhook.placement.objects.pod_object import PodMetadata, PodObject, PodSpec, PodVolume
from webhook.placement.objects.resources import (
    MAX_RESOURCES,
    PODS,
    CostlyQuantities,
    effective_requests,
    malformed_quantity,
)
from webhook.placement.objects.selectors import REQUIRED, required_terms
from webhook.placement.objects.typed import convert

DECIDING_CLAIM_ANNOTATION = "kubevirt-scheduler/co-schedule-claim"
MAX_CLAIMS = 128  # of a pod that are followed, each in 10 µs; more than a VM can have disks
# bytes of memory that the details of a pod may take: labels, annotations, claims, owners, resource names and terms. A
# pod of KubeVirt takes 4 KB. Anybody who may create pods fills the caches: with 2.8 MB of terms, a pod took 18 MB.
MAX_DETAILS = 16 * 1024
MAX_NAME = 253  # characters; a made-up review may have longer names than the API server accepts
# Bytes of memory: of a string without its characters; of each quote and each entry of a map in the text of a term.
_STRING, _QUOTE, _ENTRY = 100, 40, 80
_TERMS = frozenset({"podAntiAffinity", "podAffinity"})
_KEPT_LABELS = (kubevirt.APP_LABEL, kubevirt.CREATED_BY_LABEL, kubevirt.MIGRATION_LABEL)
_LONGEST_LABEL = 317  # characters: a prefix, a slash and a name
_stored_once = lru_cache(maxsize=16_384)(str)
# Shared, because an empty set takes 216 bytes and most pods need two.
NO_STRINGS: frozenset[str] = frozenset()


class Manifest:
    """A pod, of which the rules read each part once. The pod may not have a namespace yet.

    `user` is the creator of a pod that is being created, None for a pod from a file and for a predicted one.
    `true_annotations` and `false_annotations` are the keys of the annotations with that value, if the pod mounts
    claims. `deciding_claim` is the claim that its annotation names, empty without one. `node_terms` are the terms of
    its required node affinity, if it has one.
    """

    def __init__(self, pod: PodObject, namespace: str, user: str | None = None) -> None:
        self.pod = pod
        self.namespace = namespace
        self.user = user
        self.metadata: PodMetadata = pod.metadata
        self.spec: PodSpec = pod.spec
        self.labels = self.metadata.labels
        self.annotations: JsonObject = self.metadata.annotations or {}
        self.affinity: JsonObject = self.spec.affinity or {}
        self.claims = mounted_claims(self.spec.volumes)
        required = mapping(self.affinity, "nodeAffinity").get(REQUIRED)
        self.requires_nodes = isinstance(required, dict)
        self.node_terms = mappings(required, "nodeSelectorTerms")
        self.deciding_claim = text(self.annotations, DECIDING_CLAIM_ANNOTATION)
        app = self.labels.get(kubevirt.APP_LABEL)
        self.is_virt_launcher = app == kubevirt.VIRT_LAUNCHER
        self.is_of_vm = app in (kubevirt.VIRT_LAUNCHER, kubevirt.HOTPLUG_POD)
        uses_volumes = self.is_of_vm or self.claims
        keys = true_and_false_keys(self.annotations) if uses_volumes else (NO_STRINGS, NO_STRINGS)
        self.true_annotations, self.false_annotations = keys
        self.is_migration_target = bool(self.labels.get(kubevirt.MIGRATION_LABEL))
        self.vmi_uid = self.labels.get(kubevirt.CREATED_BY_LABEL, "")

    @classmethod
    def of(cls, pod: JsonObject, namespace: str) -> Self:
        """Return the manifest of a pod from a file, or of a predicted pod. Raises Malformed."""
        return cls(convert(pod, PodObject), namespace)

    @property
    def vmi_name(self) -> str:
        """Return the name of the VMI that the pod runs, empty without one. It is also the name of the VM."""
        return text(self.annotations, kubevirt.VMI_NAME_ANNOTATION)

    @property
    def controlling_vmi(self) -> tuple[str, str]:
        """Return the UID and the name of the VMI that controls the pod; "" twice if the label names another VMI."""
        owner = self.metadata.controller
        if not self.vmi_uid or owner.kind != kubevirt.VMI or owner.uid != self.vmi_uid:
            return "", ""
        return owner.uid, owner.name

    def as_start(self) -> "Manifest":
        """Return the manifest as if the pod started a VM, and were no target of a live migration."""
        labels = {key: value for key, value in self.labels.items() if key != kubevirt.MIGRATION_LABEL}
        pod = replace(self.pod, metadata=replace(self.metadata, labels=labels))
        return Manifest(pod, self.namespace, self.user)


def mounted_claims(volumes: Iterable[PodVolume]) -> tuple[str, ...]:
    """Return the names of the claims that a pod's volumes mount, in their order, without duplicates.

    Of more than MAX_CLAIMS, the first ones and one more: to read 6,000 takes 3 ms.
    """
    names: dict[str, None] = {}
    for volume in volumes:
        if volume.persistent_volume_claim and (name := volume.persistent_volume_claim.claim_name):
            names[name] = None
            if len(names) > MAX_CLAIMS:
                break
    return tuple(names)


def pod_facts(manifest: Manifest, name: str, effective_node: str) -> Pod:
    """Read the facts about a pod, which may not have a name, a namespace or a node yet.

    Of an oversized pod, only what identifies it, its node and its requests are read. Raises Malformed for a quantity
    that can't be parsed.
    """
    owner = manifest.metadata.controller.uid if manifest.is_of_vm else ""
    oversized = _is_oversized(manifest, owner)
    if oversized:
        manifest = Manifest(_without_details(manifest), manifest.namespace)
        owner = ""
    metadata, spec, status = manifest.metadata, manifest.spec, manifest.pod.status
    requests, unknown = _requests(manifest.pod)
    return Pod(
        namespace=manifest.namespace[:MAX_NAME],
        name=name[:MAX_NAME],
        uid=metadata.uid[:MAX_NAME],
        node=spec.node_name,
        effective_node=effective_node,
        alive=status.phase in ("Pending", "Running", "") and not metadata.deletion_timestamp,
        created=(metadata.creation_timestamp or "")[:MAX_NAME],
        labels=manifest.labels,
        requests=requests,
        anti_affinity=required_terms(manifest.affinity, manifest.labels, manifest.namespace, "podAntiAffinity"),
        claims=manifest.claims,
        true_annotations=manifest.true_annotations,
        owner=owner,
        vm=_valid_name(manifest.vmi_name) if manifest.is_of_vm else "",
        deciding_claim=_valid_name(manifest.deciding_claim) if manifest.is_of_vm else "",
        false_annotations=manifest.false_annotations,
        oversized=oversized or unknown,
        priority=spec.priority or 0,
        nominated=not spec.node_name and bool(status.nominated_node_name),
    )


def _is_oversized(manifest: Manifest, owner: str) -> bool:
    """Return whether the details of a pod are unknown, or take more than MAX_DETAILS."""
    labels = manifest.labels
    if manifest.pod.undecoded or len(labels) * _STRING > MAX_DETAILS or len(manifest.claims) > MAX_CLAIMS:
        return True
    details = [*labels, *labels.values(), *manifest.true_annotations, *manifest.false_annotations, *manifest.claims]
    return memory_of([*details, owner] if owner else details) + _size_of_terms(manifest.affinity) > MAX_DETAILS


def _requests(pod: PodObject) -> tuple[dict[str, int], bool]:
    """Return the requests of a pod, and whether they are unknown. Such a pod counts only as a pod."""
    try:
        requests = effective_requests(pod)
    except CostlyQuantities:
        return {PODS: 1}, True
    except Malformed:
        raise Malformed(malformed_quantity(pod)) from None
    if len(requests) <= MAX_RESOURCES:
        return requests, False
    return dict(sorted(requests.items(), key=lambda item: "/" in item[0])[:MAX_RESOURCES]), True  # cpu and memory first


def _without_details(manifest: Manifest) -> PodObject:
    metadata, spec, labels = manifest.metadata, manifest.spec, manifest.labels
    identity = PodMetadata(
        uid=metadata.uid,
        creation_timestamp=metadata.creation_timestamp,
        deletion_timestamp=metadata.deletion_timestamp,
        labels={key: labels[key] for key in _KEPT_LABELS if len(labels.get(key, "")) in range(1, _LONGEST_LABEL)},
    )
    requests = PodSpec(
        containers=spec.containers,
        init_containers=spec.init_containers,
        node_name=spec.node_name,
        overhead=spec.overhead,
        resources=spec.resources,
    )
    return PodObject(identity, requests, manifest.pod.status, undecoded=True)


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
    values = annotations.values()
    items = annotations.items()
    true = frozenset([key for key, value in items if value == "true"]) if "true" in values else NO_STRINGS
    false = frozenset([key for key, value in items if value == "false"]) if "false" in values else NO_STRINGS
    return true, false


def _valid_name(name: str) -> str:
    # Namespace users control annotations: a value of any length must not fill the memory.
    return name if name and is_dns_subdomain(name) else ""


def shared_labels(labels: Mapping[str, str]) -> Mapping[str, str]:
    """Return the labels, with each key and value stored once: thousands of objects repeat the same few."""
    # A table of limited size, because Python 3.12.1 never frees an interned string.
    # A file may have labels that the API server would reject: long ones must not fill the table.
    if max(map(len, (*labels, *labels.values())), default=0) > _LONGEST_LABEL:
        return labels
    return dict(zip(map(_stored_once, labels), map(_stored_once, labels.values()), strict=True))


def is_terminating(item: Any) -> bool:
    """Return whether the object is being deleted."""
    return bool(mapping(item, "metadata").get("deletionTimestamp"))
