"""The shapes of what the API server sends, as far as it is read.

All else is skipped while decoding. That halves its time, and what was never decoded can't leak: no environment of a
container, no passphrase in it. A field is `Any` where its content is kept whole, or where any type must do.
"""

from collections.abc import Iterable, Iterator
from typing import Any, TypedDict

import msgspec

from webhook.placement.shape import JsonObject

# The API server stores no object over 3 MiB: what goes on for longer without an end of line is no event.
LONGEST_LINE = 16 * 1024 * 1024  # bytes


class Container(TypedDict, total=False):
    """A container of a pod."""

    name: Any
    resources: Any
    restartPolicy: Any
    ports: Any


class Metadata(TypedDict, total=False):
    """The metadata of any object; managedFields alone are half of a pod."""

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


class PodSpec(TypedDict, total=False):
    """A pod's spec; a bookmark's has null for containers."""

    affinity: Any
    containers: list[Container] | None
    initContainers: list[Container] | None
    nodeName: Any
    nodeSelector: Any
    overhead: Any
    resourceClaims: Any
    resources: Any
    schedulerName: Any
    tolerations: Any
    topologySpreadConstraints: Any
    volumes: Any


class PodObject(TypedDict, total=False):
    """A pod."""

    kind: Any
    metadata: Metadata
    spec: PodSpec


class Request(TypedDict, total=False):
    """The request of an AdmissionReview."""

    uid: Any
    kind: Any
    namespace: Any
    operation: Any
    subResource: Any
    dryRun: Any
    object: PodObject


class Review(TypedDict, total=False):
    """An AdmissionReview."""

    kind: Any
    apiVersion: Any
    request: Request


class PodStatus(TypedDict, total=False):
    """A pod's status."""

    phase: Any
    resources: Any
    allocatedResources: Any
    containerStatuses: list[JsonObject] | None
    initContainerStatuses: list[JsonObject] | None


class StoredPod(PodObject, total=False):
    """A pod as it is stored."""

    status: PodStatus


class Node(TypedDict, total=False):
    """A node; its list of images, the largest part of it, is left out."""

    metadata: Metadata
    spec: Any
    status: "NodeStatus"


class NodeStatus(TypedDict, total=False):
    """A node's status."""

    conditions: Any
    allocatable: Any


class ClaimSpec(TypedDict, total=False):
    """A PersistentVolumeClaim's spec."""

    accessModes: Any
    volumeName: Any


class Claim(TypedDict, total=False):
    """A PersistentVolumeClaim."""

    metadata: Metadata
    spec: ClaimSpec


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


class ListMetadata(msgspec.Struct, frozen=True):
    """The metadata of one page; `more` leads to the next one."""

    version: str = msgspec.field(name="resourceVersion", default="")
    more: str = msgspec.field(name="continue", default="")


class Page(msgspec.Struct, frozen=True):
    """One page of a list. Each object is decoded for itself, so that a strange one does not take the others along."""

    metadata: ListMetadata = ListMetadata()
    items: list[msgspec.Raw] | None = None


class Event(msgspec.Struct, frozen=True):
    """One line of a watch. The object's shape depends on the type: that of an ERROR is a Status."""

    type: str
    object: msgspec.Raw


class Status(msgspec.Struct, frozen=True):
    """What the API server answers when it refuses."""

    code: int = 0
    message: str = ""


def lines(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Split what comes in parts of any size into lines. Raises ValueError for one that does not end."""
    rest = bytearray()
    for part in parts:
        *ends, begin = part.split(b"\n")
        for end in ends:
            line = bytes(rest + end)
            rest.clear()
            if line:
                yield line
        rest += begin
        if len(rest) > LONGEST_LINE:
            raise ValueError("a line does not end")
    if rest:
        yield bytes(rest)
