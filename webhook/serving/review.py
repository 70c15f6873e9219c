"""Parse the request of an AdmissionReview, and write the AdmissionReview with its response."""

from base64 import b64encode
from datetime import UTC, datetime
from typing import Any

import msgspec

from webhook.cluster.wire import Review
from webhook.placement.decision import ClaimFinding, Decision
from webhook.placement.injector import Injection
from webhook.placement.shape import JsonObject, mappings, text
from webhook.serving.large_review import INLINE_BODY_LIMIT, read_within_limits

API_VERSION = "admission.k8s.io/v1"
KIND = "AdmissionReview"


_REVIEW = msgspec.json.Decoder(Review)


class BadReview(ValueError):
    """The body is not an AdmissionReview v1. `uid` is that of the request, if it could be read."""

    def __init__(self, message: str, uid: str | None = None) -> None:
        super().__init__(message)
        self.uid = uid


class OversizedReview(ValueError):
    """A review with fields that are too large to be decoded. `request` lacks these fields; `fields` names them."""

    def __init__(self, request: JsonObject, fields: list[str]) -> None:
        super().__init__()
        self.request, self.fields = request, fields


def read_review(body: bytes) -> JsonObject:
    """Return the request of an AdmissionReview in JSON.

    Raises BadReview, whose message never quotes the body, and OversizedReview.
    """
    if not body:
        raise BadReview("empty body: expected an AdmissionReview in JSON")
    if len(body) <= INLINE_BODY_LIMIT:
        return request_of(_decode(body))
    try:
        review, omitted = read_within_limits(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadReview(f"invalid JSON ({type(error).__name__})") from None
    request = request_of(review)
    if omitted:
        raise OversizedReview(request, omitted)
    return request


def _decode(body: bytes) -> Any:
    try:
        return _REVIEW.decode(body)
    except (msgspec.ValidationError, UnicodeDecodeError, RecursionError):
        pass  # a field has an unexpected type: decode without the schema
    except msgspec.DecodeError as error:
        raise BadReview(f"invalid JSON: {error}") from None
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadReview(f"invalid JSON ({type(error).__name__})") from None


def request_of(review: Any) -> JsonObject:
    """Return the request of a decoded AdmissionReview. Raises BadReview."""
    if not isinstance(review, dict):
        raise BadReview("not an AdmissionReview: expected a JSON object")
    request = review.get("request")
    uid = request.get("uid") if isinstance(request, dict) else None
    uid = uid if isinstance(uid, str) and uid else None
    if review.get("kind") != KIND or review.get("apiVersion") != API_VERSION:
        raise BadReview(f"not an {KIND} of {API_VERSION}", uid)
    if not isinstance(request, dict):
        raise BadReview("the AdmissionReview has no request")
    if uid is None:
        raise BadReview("the AdmissionReview's request has no uid")
    return request


def call_age(request: JsonObject, now: float) -> float:
    """Return for how many whole seconds the creation of the request's object has lasted. `now` is in epoch seconds.

    The API server sets the time of the object's managedFields when it receives the creation, before it calls webhooks.
    Retries send the same time. Returns 0 if the request has no such time.
    """
    times = [text(entry, "time") for entry in mappings(request, "object", "metadata", "managedFields")]
    try:
        begun = datetime.fromisoformat(max(times, default=""))
    except ValueError:
        return 0.0
    return max(0.0, now // 1 - begun.replace(tzinfo=begun.tzinfo or UTC).timestamp() // 1)


def write_review(uid: str, injection: Injection) -> bytes:
    """Return the AdmissionReview that answers a request. It always allows the pod: the webhook never rejects a VM."""
    decision = injection.decision
    response: JsonObject = {
        "uid": uid,
        "allowed": True,
        "auditAnnotations": {
            "outcome": decision.outcome,
            "reason": decision.reason,
            "node": decision.node or "",
            "claims": claims_line(decision),
        },
    }
    if injection.patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = b64encode(msgspec.json.encode(injection.patch)).decode()
    if injection.warnings:
        response["warnings"] = injection.warnings
    return msgspec.json.encode({"apiVersion": API_VERSION, "kind": KIND, "response": response})


def claims_line(decision: Decision) -> str:
    """Return each claim with its node, or with the reason why it has none."""
    return " ".join(f"{finding.claim}={finding.node or finding.reason}" for finding in decision.claims)


def as_json(injection: Injection) -> JsonObject:
    """Return an injection as JSON for people and programs, with the patch unencoded and the full decision."""
    decision = injection.decision
    return {
        "allowed": True,
        "decision": {
            "outcome": decision.outcome,
            "reason": decision.reason,
            "message": decision.message,
            "node": decision.node,
            "mode": decision.mode,
            "conflict": decision.conflict,
            "claims": [_claim(finding) for finding in decision.claims],
        },
        "patch": injection.patch,
        "warnings": list(injection.warnings),
    }


def _claim(finding: ClaimFinding) -> JsonObject:
    names = ("claim", "volume", "node", "source", "reason")
    return {name: getattr(finding, name) for name in names}
