"""A pod that is being created: what the rules read of its manifest and of the request."""

from msgspec import Struct

from webhook.placement.objects.claims import mounted_claims
from webhook.placement.objects.fields import JsonObject, mapping, text
from webhook.placement.objects.kubevirt import APP_LABEL, MIGRATION_LABEL, VIRT_LAUNCHER
from webhook.placement.objects.pod import true_and_false_keys


class Creation(Struct, frozen=True):
    """A pod that `user` is creating.

    `true_annotations` and `false_annotations` are the keys of the annotations with that value.
    """

    pod: JsonObject
    namespace: str
    user: str
    labels: JsonObject
    annotations: JsonObject
    claims: tuple[str, ...]
    true_annotations: frozenset[str]
    false_annotations: frozenset[str]
    is_virt_launcher: bool
    is_migration_target: bool


def new_creation(pod: JsonObject, namespace: str, user: str = "") -> Creation:
    """Read each part of the pod once."""
    metadata = mapping(pod, "metadata")
    labels, annotations = mapping(metadata, "labels"), mapping(metadata, "annotations")
    claims, values = mounted_claims(pod), true_and_false_keys(annotations)
    runs_vm, is_target = labels.get(APP_LABEL) == VIRT_LAUNCHER, bool(labels.get(MIGRATION_LABEL))
    return Creation(pod, namespace, user, labels, annotations, claims, *values, runs_vm, is_target)


def namespace_of(request: JsonObject) -> str:
    """Return the request's namespace. The pod itself may have none until the API server stores it."""
    return text(request, "namespace") or text(request, "object", "metadata", "namespace") or "default"


def username(request: JsonObject) -> str:
    """Return the user that sent a request to the API server, or an empty string."""
    return text(request, "userInfo", "username")
