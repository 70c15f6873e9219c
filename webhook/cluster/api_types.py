"""Types for decoding the API server's JSON, with only the fields that the webhook reads.

The decoder skips all other fields. That halves the decoding time, and a skipped field can't leak, such as a container's
environment with a passphrase. A field is `Any` if its whole content is used, or if any type must be accepted.
"""

from functools import lru_cache
from typing import Any, TypedDict, get_args, get_type_hints, is_typeddict

import msgspec

from webhook.placement.objects.fields import JsonObject
from webhook.placement.objects.pod import UNDECODED
from webhook.placement.objects.resources import MAX_CONTAINERS

JSON = "application/json"
# The API server sends only the metadata: https://kubernetes.io/docs/reference/using-api/api-concepts/#metadata-only-fetches
METADATA_LIST, METADATA = (
    f"{JSON};as={kind};g=meta.k8s.io;v=v1" for kind in ("PartialObjectMetadataList", "PartialObjectMetadata")
)


class Container(TypedDict, total=False):
    """A container of a pod."""

    name: Any
    resources: Any
    restartPolicy: Any
    ports: Any


class Metadata(TypedDict, total=False):
    """The metadata of any object, without managedFields, which alone are half of a pod."""

    name: Any
    namespace: Any
    generateName: Any
    uid: Any
    labels: Any
    annotations: Any
    ownerReferences: Any
    creationTimestamp: Any
    deletionTimestamp: Any
    resourceVersion: Any


class MetadataOnly(TypedDict, total=False):
    """An object of which only the metadata is read."""

    metadata: Metadata


class ManagedFields(TypedDict, total=False):
    """The fields that one client manages, without their names."""

    time: Any


class CreatedMetadata(Metadata, total=False):
    """The metadata of an object in a review."""

    managedFields: list[ManagedFields] | None


class PodSpec(TypedDict, total=False):
    """A pod's spec. In a bookmark, `containers` is null."""

    affinity: Any
    containers: list[Container] | None
    initContainers: list[Container] | None
    nodeName: Any
    nodeSelector: Any
    overhead: Any
    priority: Any
    resourceClaims: Any
    resources: Any
    schedulerName: Any
    schedulingGates: Any
    tolerations: Any
    topologySpreadConstraints: Any
    volumes: Any


class PodObject(TypedDict, total=False):
    """A pod."""

    kind: Any
    metadata: Metadata
    spec: PodSpec


class CreatedPod(TypedDict, total=False):
    """A pod in a review."""

    kind: Any
    metadata: CreatedMetadata
    spec: PodSpec


class UserInfo(TypedDict, total=False):
    """The user that sent a request to the API server, without the groups."""

    username: Any


class Request(TypedDict, total=False):
    """The request of an AdmissionReview."""

    uid: Any
    kind: Any
    namespace: Any
    operation: Any
    subResource: Any
    dryRun: Any
    userInfo: UserInfo
    object: CreatedPod


class Review(TypedDict, total=False):
    """An AdmissionReview."""

    kind: Any
    apiVersion: Any
    request: Request


class PodStatus(TypedDict, total=False):
    """A pod's status."""

    phase: Any
    conditions: Any
    nominatedNodeName: Any
    resources: Any
    allocatedResources: Any
    containerStatuses: list[JsonObject] | None
    initContainerStatuses: list[JsonObject] | None


class StoredPod(PodObject, total=False):
    """A pod in the API server's storage, with its status."""

    status: PodStatus


class Node(TypedDict, total=False):
    """A node, without its list of images, which is the largest part."""

    metadata: Metadata
    spec: Any
    status: "NodeStatus"


class NodeStatus(TypedDict, total=False):
    """A node's status."""

    conditions: Any
    allocatable: Any


class CSINode(TypedDict, total=False):
    """A CSINode."""

    metadata: Metadata
    spec: Any


class ClaimSpec(TypedDict, total=False):
    """A PersistentVolumeClaim's spec."""

    accessModes: Any
    resources: Any
    storageClassName: Any
    volumeMode: Any
    volumeName: Any


class Claim(TypedDict, total=False):
    """A PersistentVolumeClaim."""

    metadata: Metadata
    spec: ClaimSpec
    status: "ClaimStatus"


class ClaimStatus(TypedDict, total=False):
    """A PersistentVolumeClaim's status."""

    phase: Any


class VolumeSpec(TypedDict, total=False):
    """A PersistentVolume's spec."""

    csi: Any
    claimRef: Any
    nodeAffinity: Any


class Volume(TypedDict, total=False):
    """A PersistentVolume."""

    metadata: Metadata
    spec: VolumeSpec


class ShareManager(TypedDict, total=False):
    """A ShareManager."""

    metadata: Metadata
    status: Any


class TemplateVolume(TypedDict, total=False):
    """A volume of a VM, if it is a claim. Not cloud-init data, which may hold passwords."""

    dataVolume: Any
    ephemeral: Any
    persistentVolumeClaim: Any


class TemplateSpec(TypedDict, total=False):
    """The spec of a VM's next VMI, without the hardware."""

    volumes: list[TemplateVolume] | None


class VirtualMachineTemplate(TypedDict, total=False):
    """The template of a VM's next VMI."""

    metadata: Metadata
    spec: TemplateSpec


class VirtualMachineSpec(TypedDict, total=False):
    """A VirtualMachine's spec."""

    instancetype: Any
    preference: Any
    runStrategy: Any
    running: Any
    template: VirtualMachineTemplate


class VirtualMachine(TypedDict, total=False):
    """A VirtualMachine of KubeVirt."""

    metadata: Metadata
    spec: VirtualMachineSpec
    status: Any


# bytes of JSON. A larger object is decoded field by field, without the fields that are larger than MAX_FIELD: 38,000
# terms (2.3 MB) stop all threads for 70 ms, and then take 18 MB. The API server limits annotations to 256 KiB.
LARGE, MAX_FIELD = 64 * 1024, 256 * 1024
MAX_ANNOTATIONS = 2 * MAX_FIELD

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])
_hints = lru_cache(maxsize=64)(get_type_hints)


def size_of(raw: msgspec.Raw | bytes) -> int:
    """Return the number of bytes of an encoded value."""
    return memoryview(raw).nbytes


def decode_large(raw: msgspec.Raw | bytes, shape: Any) -> JsonObject:
    """Decode a large object like `shape`, without what is too large to decode; `UNDECODED` marks such an object.

    No part takes more than some milliseconds. Raises ValueError for invalid JSON.
    """
    item, undecoded = _decode_fields(raw, shape)
    return item | {UNDECODED: True} if undecoded else item


def _decode_fields(raw: msgspec.Raw | bytes, shape: Any) -> tuple[JsonObject, bool]:
    item, undecoded, hints = {}, False, _hints(shape)
    for name, value in _FIELDS.decode(raw).items():
        if name in hints:
            try:
                item[name], cut = _decode_value(
                    value, hints[name], MAX_ANNOTATIONS if name == "annotations" else MAX_FIELD
                )
            except (ValueError, RecursionError):  # an unexpected type
                cut = True
            undecoded |= cut
    return item, undecoded


def _decode_value(raw: msgspec.Raw, shape: Any, limit: int) -> tuple[Any, bool]:
    if is_typeddict(shape):
        return _decode_fields(raw, shape)
    if size_of(raw) <= limit:
        return msgspec.json.decode(raw, type=shape), False
    item_shape = next((each for listed in get_args(shape) for each in get_args(listed)), None)
    items = _ITEMS.decode(raw) if is_typeddict(item_shape) else []
    if not 0 < len(items) <= MAX_CONTAINERS:
        return None, True
    decoded = [_decode_fields(each, item_shape) for each in items]
    return [item for item, _ in decoded], any(cut for _, cut in decoded)
