"""An admission request, read once: what the decision and everything behind it use of the request."""

from msgspec import Struct

from webhook.placement.eligibility import is_share_manager_pod, mode_of
from webhook.placement.objects.fields import JsonObject, Malformed, text
from webhook.placement.objects.pod import Manifest
from webhook.placement.objects.pod_object import NewPod, PodObject
from webhook.placement.objects.typed import Typed, convert
from webhook.placement.reasons import Mode, Subject
from webhook.placement.settings import Settings


class _Kind(Typed, frozen=True):
    group: str = ""
    kind: str = ""


class _User(Typed, frozen=True):
    username: str = ""


class AdmissionRequest(Typed, frozen=True):
    """The request of an AdmissionReview: of the user, not the groups."""

    uid: str = ""
    kind: _Kind | None = None
    namespace: str = ""
    operation: str = ""
    sub_resource: str = ""
    dry_run: bool | None = None
    user_info: _User = _User()
    object: NewPod | None = None


NO_POD = NewPod()


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
    malformed: str = ""  # which field of the request has another type, and what was expected; empty without one

    @property
    def pod_name(self) -> str:
        """Return the name of the pod, or its `generateName` if the API server has not named the pod yet."""
        return self.manifest.metadata.name or self.manifest.metadata.generate_name


def read_request(request: AdmissionRequest, settings: Settings, *, from_file: bool = False) -> Review:
    """Read the request of an AdmissionReview. One from a file may name no user; then any user counts as the right one.

    The pod itself may have no namespace until the API server stores it.
    """
    pod = request.object or NO_POD
    user = request.user_info.username
    namespace = request.namespace or pod.metadata.namespace or "default"
    manifest = Manifest(pod, namespace, None if from_file and not user else user)
    is_pod = request.kind == _POD if request.kind else pod.kind == _POD.kind
    # The API server sets the time of the managedFields when it receives the creation, before it calls webhooks.
    times = [entry.time for entry in pod.metadata.managed_fields if entry.time]
    return Review(
        request.uid,
        manifest,
        _subject(manifest, settings),
        *mode_of(manifest.annotations, settings),
        creates_pod=is_pod
        and request.operation == "CREATE"
        and not request.sub_resource
        and request.object is not None,
        dry_run=request.dry_run is True,
        begun=max(times, default=""),
    )


def read_untyped(request: JsonObject, settings: Settings, *, from_file: bool = False) -> Review:
    """Read a request like `read_request`. A field of another type makes the review `malformed`."""
    try:
        return read_request(convert(request, AdmissionRequest), settings, from_file=from_file)
    except Malformed as error:
        nothing = Manifest(PodObject(), text(request, "namespace"))
        dry_run = request.get("dryRun") is True
        problem = str(error).removeprefix("object.")
        mode = settings.affinity_mode
        return Review(text(request, "uid"), nothing, Subject.VM, mode, dry_run=dry_run, malformed=problem)


def review_of(manifest: Manifest, settings: Settings) -> Review:
    """Return the review by which KubeVirt or Longhorn would create a pod, as a dry run."""
    return Review("offline", manifest, _subject(manifest, settings), *mode_of(manifest.annotations, settings))


_POD = _Kind(kind="Pod")


def _subject(manifest: Manifest, settings: Settings) -> Subject:
    return Subject.SHARE_MANAGER if is_share_manager_pod(manifest.namespace, manifest.labels, settings) else Subject.VM
