"""Parse the request of an AdmissionReview, and write the AdmissionReview with its response."""

from base64 import b64encode
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

from webhook.placement.injector import Injection
from webhook.placement.objects.fields import JsonObject
from webhook.placement.objects.typed import Typed
from webhook.placement.reasons import Decision
from webhook.placement.review import AdmissionRequest, Review, read_request, read_untyped
from webhook.placement.settings import Settings

# bytes. KubeVirt copies the annotations of a VM, at most 256 KiB, to its pod; without them, the review has 10 KiB.
REVIEW_LIMIT = 512 * 1024
# Brackets, braces and commas of the JSON. A VM with one disk has 700, one with 128 disks some 4,000. 19,000 annotations
# in 280 KB cost 7 ms, and half a megabyte of `[[[[]]]]` takes 0.2 s.
MAX_ITEMS = 10_000

MAX_CLAIMS_LINE = 256  # characters; what is logged or audited of one request is at most 1 KB

API_VERSION = "admission.k8s.io/v1"
KIND = "AdmissionReview"


class _AdmissionReview(Typed, frozen=True):
    kind: str = ""
    api_version: str = ""
    request: AdmissionRequest | None = None


class _Uid(Typed, frozen=True):
    uid: Any = None


class _UnreadReview(Typed, frozen=True):
    kind: Any = None
    api_version: Any = None
    request: _Uid | None = None


_REVIEW = msgspec.json.Decoder(_AdmissionReview)
_UID = msgspec.json.Decoder(_UnreadReview)


class BadReview(ValueError):
    """The body is not an AdmissionReview v1. `uid` is the request's, if it could be read."""

    def __init__(self, message: str, uid: str | None = None) -> None:
        super().__init__(message)
        self.uid = uid


def is_oversized(body: bytes) -> bool:
    """Return whether a review is larger than that of any VM. Reading it would delay other reviews."""
    if len(body) <= MAX_ITEMS:  # to count in 10 KB takes 15 µs
        return False
    return len(body) > REVIEW_LIMIT or sum(map(body.count, (b"[", b"{", b","))) > MAX_ITEMS


def read_review(body: bytes, settings: Settings) -> Review:
    """Read an AdmissionReview in JSON. Raises BadReview, whose message never quotes the body."""
    if not body:
        raise BadReview("empty body: expected an AdmissionReview in JSON")
    review = _AdmissionReview()
    try:
        review = _REVIEW.decode(body)
    except (msgspec.ValidationError, UnicodeDecodeError, RecursionError):
        pass  # a null, or a field of another type
    except msgspec.DecodeError as error:
        raise BadReview(f"invalid JSON: {error}") from None
    if review.kind == KIND and review.api_version == API_VERSION and review.request and review.request.uid:
        return read_request(review.request, settings)
    return read_untyped(request_of(_decode(msgspec.json.decode, body)), settings)


def read_uid(body: bytes, settings: Settings) -> Review:
    """Read an AdmissionReview in JSON, with nothing but its uid. Raises BadReview."""
    return read_untyped(request_of(msgspec.to_builtins(_decode(_UID.decode, body))), settings)


def _decode(decode: Callable[[bytes], Any], body: bytes) -> Any:
    try:
        return decode(body)
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


def call_age(review: Review, now: float) -> float:
    """Return for how many seconds the creation of the review's pod has lasted at least. `now` is in epoch seconds.

    Retries send the same time. It is cut to whole seconds, so the creation may have lasted up to a second longer.
    Returns 0 if the review has no time.
    """
    try:
        begun = datetime.fromisoformat(review.begun)
    except ValueError:
        return 0.0
    return max(0.0, now - begun.replace(tzinfo=begun.tzinfo or UTC).timestamp() - 1)


def write_review(uid: str, injection: Injection, claims: str) -> bytes:
    """Return the AdmissionReview that answers a request. It always allows the pod: the webhook never rejects a VM.

    `claims` is the `claims_line` of the decision.
    """
    decision = injection.decision
    response: JsonObject = {
        "uid": uid,
        "allowed": True,
        "auditAnnotations": {
            "outcome": decision.outcome,
            "reason": decision.reason,
            "node": decision.node or "",
            "claims": claims,
        },
    }
    if injection.patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = b64encode(msgspec.json.encode(injection.patch)).decode()
    if injection.warnings:
        response["warnings"] = injection.warnings
    return msgspec.json.encode({"apiVersion": API_VERSION, "kind": KIND, "response": response})


def claims_line(decision: Decision) -> str:
    """Return each claim with its node, or with the reason why it has none; at most MAX_CLAIMS_LINE characters."""
    line = " ".join(f"{finding.claim}={finding.node or finding.reason}" for finding in decision.claims)
    return line if len(line) <= MAX_CLAIMS_LINE else line[: MAX_CLAIMS_LINE - 3] + "..."
