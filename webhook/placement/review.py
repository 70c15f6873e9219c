"""An admission request, read once: what the decision and everything behind it use of the request."""

from msgspec import Struct

from webhook.placement.eligibility import is_share_manager_pod, mode_of
from webhook.placement.objects.fields import JsonObject, mapping, mappings, text
from webhook.placement.objects.pod import Manifest
from webhook.placement.reasons import Mode, Subject
from webhook.placement.settings import Settings


class Review(Struct, frozen=True):
    """A request to create a pod, or any other request, which changes nothing."""

    uid: str
    manifest: Manifest  # of an empty pod if the request has no object
    subject: Subject
    mode: Mode  # that applies to a VM's pod
    unknown_mode: str | None = None  # the value of the pod's mode annotation, if that is no mode
    creates_pod: bool = True  # False for another object, another operation, or a subresource such as `pods/binding`
    dry_run: bool = True
    begun: str = ""  # when the API server received the creation, in RFC 3339; empty if the request has no such time

    @property
    def pod_name(self) -> str:
        """Return the name of the pod, or its `generateName` if the API server has not named the pod yet."""
        return text(self.manifest.metadata, "name") or text(self.manifest.metadata, "generateName")


def read_request(request: JsonObject, settings: Settings, *, from_file: bool = False) -> Review:
    """Read the request of an AdmissionReview. One from a file may name no user; then any user counts as the right one.

    The pod itself may have no namespace until the API server stores it.
    """
    pod = mapping(request, "object")
    namespace = text(request, "namespace") or text(pod, "metadata", "namespace") or "default"
    user = text(request, "userInfo", "username")
    manifest = Manifest(pod, namespace, None if from_file and not user else user)
    kind = mapping(request, "kind") or pod
    creates_pod = (
        request.get("operation") == "CREATE"
        and kind.get("kind") == "Pod"
        and not kind.get("group")
        and not request.get("subResource")
        and isinstance(request.get("object"), dict)
    )
    # The API server sets the time of the managedFields when it receives the creation, before it calls webhooks.
    times = [text(entry, "time") for entry in mappings(manifest.metadata, "managedFields")]
    return Review(
        text(request, "uid"),
        manifest,
        _subject(manifest, settings),
        *mode_of(manifest.annotations, settings),
        creates_pod=creates_pod,
        dry_run=request.get("dryRun") is True,
        begun=max(times, default=""),
    )


def review_of(pod: JsonObject, settings: Settings) -> Review:
    """Return the review by which KubeVirt or Longhorn would create a pod, as a dry run."""
    manifest = Manifest(pod, text(pod, "metadata", "namespace") or "default")
    return Review("offline", manifest, _subject(manifest, settings), *mode_of(manifest.annotations, settings))


def _subject(manifest: Manifest, settings: Settings) -> Subject:
    return Subject.SHARE_MANAGER if is_share_manager_pod(manifest.namespace, manifest.labels, settings) else Subject.VM
