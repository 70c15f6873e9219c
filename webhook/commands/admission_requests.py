"""Read admission requests from files, and run the webhook's decision on them."""

from pathlib import Path
from typing import Any

from webhook.catalog.kinds import VIRTUAL_MACHINES
from webhook.placement.injector import Injection
from webhook.placement.objects.fields import JsonObject, Malformed, mapping, text
from webhook.placement.objects.pod import Manifest
from webhook.placement.reasons import ClaimFinding, Decision
from webhook.placement.review import Review, read_untyped, review_of
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
    metadata = mapping(item, "metadata")
    known = kind == ("v1", "Pod") or VIRTUAL_MACHINES.is_of(*kind)
    named = not metadata or not namespace or text(metadata, "namespace")
    return item if named or not known else item | {"metadata": metadata | {"namespace": namespace}}


def review_from(document: Document, kind: Kind, item: JsonObject, settings: Settings) -> Review | None:
    """Return the review of a Pod or an AdmissionReview from a file, None for any other kind.

    A review that names no user counts as sent by the account that creates such pods.
    Raises BadInput if the review or the pod is malformed.
    """
    pod: Any = item
    try:
        if kind[1] == "AdmissionReview":
            request = request_of(item)
            review = read_untyped(request, settings, from_file=True)
            pod = request.get("object")
        elif kind == ("v1", "Pod"):
            namespace = text(item, "metadata", "namespace") or "default"
            review = review_of(Manifest.of(item, namespace), settings)
        else:
            return None
    except BadReview as error:
        raise document.error(str(error)) from None
    except Malformed as error:
        raise document.error(f"Pod {error}") from None
    if review.malformed:
        raise document.error(f"{kind[1]} {review.malformed}")
    for field in ("metadata", "spec") if review.creates_pod else ():
        if not isinstance(mapping(pod).get(field), dict):  # no patch could be applied
            raise document.error(f"Pod {field}: expected a mapping")
    return review


def as_json(injection: Injection) -> JsonObject:
    """Return an injection as JSON for people and programs, with the patch unencoded and the full decision."""
    return {
        "allowed": True,
        "decision": described(injection.decision),
        "patch": injection.patch,
        "warnings": list(injection.warnings),
    }


def described(decision: Decision) -> JsonObject:
    """Return a decision as JSON."""
    keys = ("outcome", "reason", "message", "node", "mode", "conflict")
    return {key: getattr(decision, key) for key in keys} | {"claims": [_claim(each) for each in decision.claims]}


def _claim(finding: ClaimFinding) -> JsonObject:
    return {key: getattr(finding, key) for key in ("claim", "volume", "node", "source", "reason")}


def pod_name(review: Review) -> str:
    """Return NAMESPACE/NAME of the pod, with `generateName` if the pod has no name yet."""
    return f"{review.manifest.namespace}/{review.pod_name or '(no name)'}"
