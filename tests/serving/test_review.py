"""An AdmissionReview comes in and an AdmissionReview goes out, and nothing of a bad one is quoted."""

import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

from tests.support.builders import (
    Object,
    catalog,
    injected,
    node,
    patched,
    request,
    share_manager,
    storage,
    virt_launcher,
)
from tests.support.paths import REVIEWS
from webhook.placement.decision import Outcome, Reason
from webhook.placement.injector import Injection, inject, unchanged
from webhook.placement.settings import Settings
from webhook.serving.review import BadReview, as_json, claims_line, read_review, request_of, write_review

GOOD = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request(virt_launcher())}
UID = GOOD["request"]["uid"]
NO_REVIEW = "the body is no AdmissionReview of admission.k8s.io/v1"
NO_REQUEST = "the AdmissionReview has no request"
NO_UID = "the AdmissionReview's request has no uid"


def test_the_request_of_a_review_is_read() -> None:
    assert read_review(json.dumps(GOOD).encode())["uid"] == UID
    assert request_of(GOOD) is GOOD["request"]


@pytest.mark.parametrize("file", sorted(REVIEWS.glob("*.json")), ids=lambda file: file.stem)
def test_what_is_skipped_while_decoding_changes_no_decision(file: Path) -> None:
    consumer = virt_launcher("vm", node="node-a", claims=["disk1", "disk2"])
    known = catalog(*storage(), *storage("disk2"), consumer, node(labels={"kubernetes.io/arch": "amd64"}))
    whole, decoded = json.loads(file.read_bytes())["request"], read_review(file.read_bytes())
    assert inject(decoded, known, Settings()) == inject(whole, known, Settings())
    assert "env" not in json.dumps(decoded)


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param({"metadata": None}, id="null metadata"),
        pytest.param({"spec": "x"}, id="a spec that is a string"),
        pytest.param({"spec": {"containers": [None]}}, id="a null container"),
        pytest.param({"spec": {"containers": {}}}, id="containers that are a map"),
    ],
)
def test_a_pod_of_odd_types_is_read_as_it_is(odd: Object) -> None:
    review = GOOD | {"request": request(odd)}
    assert read_review(json.dumps(review).encode())["object"] == odd


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "the body is empty; an AdmissionReview in JSON is wanted"),
        *(
            (body, "the body is not JSON")
            for body in (b" ", b"secret", b'{"a":\n secret}', b'{"a": "secret', b'["\\secret"]')
        ),
        (b'{"kind": 1, "request": {"object": {"metadata": "secret\xff"}}}', "the body is not JSON"),
        (b'{"request": [], "secret": "\xff"}', "the body is not JSON"),
        (b"\xff\xfe{}", "the body is not JSON"),
        (b"\xef\xbb\xbf{}", "the body is not JSON"),
        (b'{"a": NaN}', "the body is not JSON"),
        (b"[" * 100_000, "the body is not JSON"),
        (b'{"a":' * 100_000, "the body is not JSON"),
        *(
            (body, "the body is not a JSON object; an AdmissionReview is wanted")
            for body in (b"[]", b"null", b'"x"', b"1")
        ),
    ],
    ids=lambda value: repr(value[:12]) if isinstance(value, bytes) else "",
)
def test_a_body_that_is_no_json_object_is_refused_without_quoting_it(body: bytes, said: str) -> None:
    with pytest.raises(BadReview) as raised:
        read_review(body)
    assert str(raised.value).startswith(said)
    assert "secret" not in str(raised.value)
    assert raised.value.uid is None


@pytest.mark.parametrize(
    ("change", "said", "uid"),
    [
        ({"kind": "Review"}, NO_REVIEW, UID),
        ({"kind": None}, NO_REVIEW, UID),
        ({"apiVersion": "admission.k8s.io/v1beta1"}, NO_REVIEW, UID),
        ({"apiVersion": None}, NO_REVIEW, UID),
        ({"kind": "Pod", "request": {"uid": 7}}, NO_REVIEW, None),
        ({"kind": "Pod", "request": None}, NO_REVIEW, None),
        ({"request": None}, NO_REQUEST, None),
        ({"request": []}, NO_REQUEST, None),
        ({"request": "uid"}, NO_REQUEST, None),
        ({"request": {}}, NO_UID, None),
        ({"request": {"uid": ""}}, NO_UID, None),
        ({"request": {"uid": None}}, NO_UID, None),
        ({"request": {"uid": 7}}, NO_UID, None),
        ({"request": {"uid": ["a"]}}, NO_UID, None),
    ],
    ids=repr,
)
def test_a_bad_review_is_refused_and_its_uid_kept_where_it_can_be_read(
    change: Object, said: str, uid: str | None
) -> None:
    with pytest.raises(BadReview) as raised:
        request_of(GOOD | change)
    assert (str(raised.value), raised.value.uid) == (said, uid)


def answer(injection: Injection) -> Any:
    review = json.loads(write_review(UID, injection))
    assert (review["apiVersion"], review["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    assert (review["response"]["uid"], review["response"]["allowed"]) == (UID, True)
    return review["response"]


def test_the_answer_to_a_pinned_pod_carries_a_patch() -> None:
    injection = injected(virt_launcher(), *storage())
    response = answer(injection)
    assert set(response) == {"uid", "allowed", "auditAnnotations", "patchType", "patch"}
    assert response["patchType"] == "JSONPatch"
    assert json.loads(b64decode(response["patch"])) == injection.patch
    assert response["auditAnnotations"] == {
        "outcome": Outcome.PINNED,
        "reason": Reason.CO_SCHEDULED,
        "node": "node-a",
        "claims": "disk1=node-a",
    }


def test_the_answer_to_a_pod_that_is_not_ours_carries_no_patch() -> None:
    response = answer(injected(virt_launcher(opt_in=None)))
    assert set(response) == {"uid", "allowed", "auditAnnotations"}
    assert response["auditAnnotations"] == {
        "outcome": Outcome.UNCHANGED,
        "reason": Reason.NOT_OPTED_IN,
        "node": "",
        "claims": "",
    }


@pytest.mark.parametrize("reason", [Reason.CACHE_NOT_SYNCED, Reason.INTERNAL_ERROR])
def test_we_allow_where_we_are_unwell(reason: Reason) -> None:
    response = answer(Injection(unchanged(reason, Settings().affinity_mode, "we are unwell")))
    assert (response["auditAnnotations"]["reason"], "patch" in response) == (reason, False)


def test_warnings_are_in_the_answer() -> None:
    response = answer(injected(virt_launcher(), *storage(), node(ready="False")))
    assert [warning.split(":")[1] for warning in response["warnings"]] == [f" {Reason.NODE_NOT_READY}"]


def test_claims_are_told_with_node_or_reason() -> None:
    decision = injected(
        virt_launcher(claims=["disk1", "gone", "disk2"]), *storage(), *storage("disk2", "node-b")
    ).decision
    assert claims_line(decision) == f"disk1=node-a gone={Reason.CLAIM_NOT_FOUND} disk2=node-b"


def test_an_injection_is_told_in_full_to_people_and_programs() -> None:
    made = virt_launcher(claims=["disk1", "gone"])
    injection = injected(made, *storage()[:2], share_manager())
    told = json.loads(json.dumps(as_json(injection)))
    assert told["allowed"] is True
    assert told["decision"] == {
        "outcome": "pinned",
        "reason": Reason.CO_SCHEDULED,
        "message": "pinned to node-a, which serves claim disk1",
        "node": "node-a",
        "mode": "required",
        "conflict": False,
        "claims": [
            {"claim": "disk1", "volume": "vol-disk1", "node": "node-a", "source": "share-manager", "reason": None},
            {"claim": "gone", "volume": None, "node": None, "source": None, "reason": Reason.CLAIM_NOT_FOUND},
        ],
    }
    assert patched(made, Injection(injection.decision, told["patch"])) == patched(made, injection)
    assert told["warnings"] == []


def test_an_injection_without_a_patch_says_null() -> None:
    told = as_json(injected(virt_launcher(opt_in=None)))
    assert (told["patch"], told["decision"]["node"], told["decision"]["claims"]) == (None, None, [])
