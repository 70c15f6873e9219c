"""Decoding AdmissionReviews and encoding the responses. Errors never quote the body."""

import json
from base64 import b64decode
from pathlib import Path

import pytest

from tests.support.builders import Object, catalog, inject_request, injection_for, node, request, storage, virt_launcher
from tests.support.paths import REVIEWS
from webhook.placement.injector import inject
from webhook.placement.reasons import Outcome, Reason
from webhook.placement.settings import Settings
from webhook.serving.review.admission_review import (
    MAX_ITEMS,
    REVIEW_LIMIT,
    BadReview,
    claims_line,
    is_oversized,
    read_review,
    read_uid,
    request_of,
    write_review,
)

GOOD = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request(virt_launcher())}
UID = GOOD["request"]["uid"]
NOT_A_REVIEW = "not an AdmissionReview of admission.k8s.io/v1"
NO_REQUEST = "the AdmissionReview has no request"
NO_UID = "the AdmissionReview's request has no uid"


@pytest.mark.parametrize("file", sorted(REVIEWS.glob("*.json")), ids=lambda file: file.stem)
def test_fields_skipped_by_the_decoder_do_not_affect_the_decision(file: Path) -> None:
    consumer = virt_launcher("vm", node="node-a", claims=["disk1", "disk2"])
    cluster = catalog(*storage(), *storage("disk2"), consumer, node(labels={"kubernetes.io/arch": "amd64"}))
    full, decoded = json.loads(file.read_bytes())["request"], read_review(file.read_bytes(), Settings())
    assert inject(decoded, cluster, Settings()) == inject_request(full, cluster, Settings())
    assert "env" not in repr(decoded.manifest.pod)


def test_the_decoder_keeps_the_fields_by_which_the_guard_softens_a_pin() -> None:
    together, bound = {"restartPolicyRules": [{"action": "RestartAllContainers"}]}, {"bindMountOptions": ["noexec"]}
    for spec in (
        {"hostNetwork": True, "hostUsers": False},
        {"containers": [{"name": "main"} | together]},
        {"initContainers": [{"name": "init", "volumeMounts": [bound]}]},
    ):
        review = GOOD | {"request": request(virt_launcher(**spec))}
        received = read_review(json.dumps(review).encode(), Settings())
        assert inject(received, catalog(*storage(), node()), Settings()).decision.reason is Reason.UNJUDGED


NOT_OBJECTS = {
    "empty body: expected an AdmissionReview in JSON": [b""],
    "invalid JSON": [
        *(b" ", b"secret", b'{"a":\n secret}', b'{"a": "secret', b'["\\secret"]'),
        b'{"kind": 1, "request": {"object": {"metadata": "secret\xff"}}}',
        b'{"request": [], "secret": "\xff"}',
        *(b"\xff\xfe{}", b"\xef\xbb\xbf{}", b'{"a": NaN}', b"[" * 100_000, b'{"a":' * 100_000),
    ],
    "not an AdmissionReview: expected a JSON object": [b"[]", b"null", b'"x"', b"1"],
}


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("message", NOT_OBJECTS)
def test_a_body_that_is_not_a_json_object_is_rejected_without_quoting_it(message: str) -> None:
    for body in NOT_OBJECTS[message]:
        with pytest.raises(BadReview) as raised:
            read_review(body, Settings())
        assert str(raised.value).startswith(message), body[:40]
        assert "secret" not in str(raised.value)
        assert raised.value.uid is None


@pytest.mark.parametrize(
    ("change", "message", "uid"),
    [
        ({"kind": "Review"}, NOT_A_REVIEW, UID),
        ({"apiVersion": "admission.k8s.io/v1beta1"}, NOT_A_REVIEW, UID),
        ({"kind": "Pod", "request": {"uid": 7}}, NOT_A_REVIEW, None),
        ({"kind": "Pod", "request": None}, NOT_A_REVIEW, None),
        ({"request": None}, NO_REQUEST, None),
        ({"request": []}, NO_REQUEST, None),
        ({"request": {}}, NO_UID, None),
        ({"request": {"uid": ""}}, NO_UID, None),
        ({"request": {"uid": 7}}, NO_UID, None),
    ],
    ids=repr,
)
def test_an_invalid_review_is_rejected_with_its_uid_if_readable(change: Object, message: str, uid: str | None) -> None:
    with pytest.raises(BadReview) as raised:
        request_of(GOOD | change)
    assert (str(raised.value), raised.value.uid) == (message, uid)


def test_the_response_allows_the_pod_with_its_patch_warnings_and_claims() -> None:
    pod = virt_launcher(claims=["disk1", "gone", "disk2"])
    injection = injection_for(pod, *storage(), *storage("disk2", "node-b"), node(ready="False"))
    review = json.loads(write_review(UID, injection, claims_line(injection.decision)))
    assert (review["apiVersion"], review["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    response = review["response"]
    assert json.loads(b64decode(response.pop("patch"))) == injection.patch
    assert f" {Reason.NODE_NOT_READY}" in [warning.split(":")[1] for warning in response.pop("warnings")]
    claims = f"disk1=node-a gone={Reason.CLAIM_NOT_FOUND} disk2=node-b"
    decision = {"outcome": Outcome.PREFERRED, "reason": Reason.NODE_NOT_READY, "node": "node-a", "claims": claims}
    assert response == {"uid": UID, "allowed": True, "auditAnnotations": decision, "patchType": "JSONPatch"}


# Oversized reviews


@pytest.mark.parametrize(
    ("body", "oversized"),
    [
        (b" " * REVIEW_LIMIT, False),
        (b" " * (REVIEW_LIMIT + 1), True),
        (b"[{" * (MAX_ITEMS // 2), False),
        (b"[{" * (MAX_ITEMS // 2) + b"[", True),
    ],
    ids=["512 KiB", "above", "10,000 lists and objects", "one more"],
)
def test_a_review_is_oversized_by_its_bytes_or_by_its_lists_and_objects(body: bytes, oversized: bool) -> None:
    assert is_oversized(body) is oversized


def test_of_an_oversized_review_only_the_uid_is_read_and_any_other_body_is_rejected() -> None:
    for change in {}, {"object": []}, {"object": {"spec": [1]}}, {"kind": 5}:
        body = json.dumps(GOOD | {"request": GOOD["request"] | change}).encode()
        assert (read_uid(body, Settings()).uid, read_uid(body, Settings()).creates_pod) == (UID, False)
    for body in b"", b"[]", b"[" * 100_000, b'{"request":[]}', b'{"kind":"\xff"}', b"x":
        with pytest.raises(BadReview):
            read_uid(body, Settings())
