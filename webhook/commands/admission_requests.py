"""Read admission requests from files, and run the webhook's decision on them."""

from pathlib import Path

from webhook.catalog.kinds import VIRTUAL_MACHINES
from webhook.fleet.next_pod import creation_request
from webhook.placement.eligibility import creator_of, is_pod_creation, namespace_of, username
from webhook.placement.injector import Injection
from webhook.placement.objects.fields import JsonObject, mapping, text
from webhook.placement.reasons import ClaimFinding
from webhook.placement.settings import Settings
from webhook.reading import documents
from webhook.reading.documents import BadInput, Document, Kind
from webhook.serving.review.admission_review import BadReview, request_of


def read_documents(file: Path) -> list[Document]:
    """Read the documents of a file. Raises BadInput if the file is unusable or empty."""
    content = documents.read(file)
    if not content:
        raise BadInput(f"{documents.display_name(file)}: empty file: expected a Pod in YAML or JSON")
    return content


def in_namespace(namespace: str | None, kind: Kind, item: JsonObject) -> JsonObject:
    """Return a Pod or a VM in this namespace, unless it names one: many manifests leave that to the context."""
    metadata, known = mapping(item, "metadata"), kind == ("v1", "Pod") or VIRTUAL_MACHINES.is_of(*kind)
    named = not metadata or not namespace or text(metadata, "namespace")
    return item if named or not known else item | {"metadata": metadata | {"namespace": namespace}}


def request_from(document: Document, kind: Kind, item: JsonObject, settings: Settings) -> JsonObject | None:
    """Return the admission request for a Pod or an AdmissionReview from a file, None for any other kind.

    A review that names no user counts as sent by the account that creates such pods.
    Raises BadInput if the review or the pod is malformed.
    """
    if kind[1] == "AdmissionReview":
        try:
            request = request_of(item)
        except BadReview as error:
            raise document.error(str(error)) from None
    elif kind == ("v1", "Pod"):
        request = creation_request(item, settings)
    else:
        return None
    for field in ("metadata", "spec") if is_pod_creation(request) else ():
        if not isinstance(request["object"].get(field), dict):  # no patch could be applied
            raise document.error(f"Pod {field}: expected a mapping")
    if is_pod_creation(request) and not username(request):
        account = creator_of(request["object"], namespace_of(request), settings)
        request = request | {"userInfo": {"username": account}}
    return request


def as_json(injection: Injection) -> JsonObject:
    """Return an injection as JSON for people and programs, with the patch unencoded and the full decision."""
    decision = injection.decision
    keys = ("outcome", "reason", "message", "node", "mode", "conflict")
    described = {key: getattr(decision, key) for key in keys} | {"claims": [_claim(each) for each in decision.claims]}
    return {"allowed": True, "decision": described, "patch": injection.patch, "warnings": list(injection.warnings)}


def _claim(finding: ClaimFinding) -> JsonObject:
    return {key: getattr(finding, key) for key in ("claim", "volume", "node", "source", "reason")}


def pod_name(request: JsonObject) -> str:
    """Return NAMESPACE/NAME of the pod, with `generateName` if the pod has no name yet."""
    metadata = mapping(request, "object", "metadata")
    name = text(metadata, "name") or text(metadata, "generateName") or "(no name)"
    return f"{text(request, 'namespace') or text(metadata, 'namespace') or 'default'}/{name}"
