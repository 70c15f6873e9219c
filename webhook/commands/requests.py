"""The admission requests in a file."""

from pathlib import Path

from webhook.cluster import documents
from webhook.cluster.documents import BadInput, Document, Kind
from webhook.placement import injector
from webhook.placement.catalog import Catalog
from webhook.placement.eligibility import is_pod_creation
from webhook.placement.injector import Injection
from webhook.placement.settings import Settings
from webhook.placement.shape import JsonObject, mapping, text
from webhook.serving.review import BadReview, request_of


def objects_from(file: Path) -> list[Document]:
    """Read the documents of a file, at least one. Raises BadInput."""
    found = documents.read(file)
    if not found:
        raise BadInput(f"{documents.display_name(file)}: it is empty; a Pod is wanted, in YAML or JSON")
    return found


def request_in(document: Document, kind: Kind, item: JsonObject) -> JsonObject | None:
    """Return the request that an object from a file stands for, None where it is neither Pod nor AdmissionReview.

    Raises BadInput.
    """
    if kind[1] == "AdmissionReview":
        try:
            request = request_of(item)
        except BadReview as error:
            raise document.bad(str(error)) from None
    elif kind == ("v1", "Pod"):
        request = creation(item)
    else:
        return None
    for field in ("metadata", "spec") if is_pod_creation(request) else ():
        if not isinstance(request["object"].get(field), dict):  # and so no patch could apply to it
            raise document.bad(f"a Pod's {field} is no map")
    return request


def decided(request: JsonObject, catalog: Catalog, settings: Settings) -> Injection:
    """Decide on a request. Raises BadInput where the live cluster did not answer: nothing was decided then."""
    injection = injector.inject(request, catalog, settings)
    if isinstance(injection.error, BadInput):
        raise injection.error
    return injection


def creation(pod: JsonObject) -> JsonObject:
    """Return the request with which a pod would be created."""
    return {
        "uid": "offline",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "namespace": text(pod, "metadata", "namespace") or "default",
        "operation": "CREATE",
        "dryRun": True,
        "object": pod,
    }


def name_in(request: JsonObject) -> str:
    """Return the pod's namespace and name, or what its name will begin with."""
    metadata = mapping(request, "object", "metadata")
    name = text(metadata, "name") or text(metadata, "generateName") or "(no name)"
    return f"{text(request, 'namespace') or text(metadata, 'namespace') or 'default'}/{name}"
