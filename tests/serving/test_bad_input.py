"""The webhook responds to any input in JSON, echoes a readable uid, hides tracebacks, and never denies a VM pod."""

import json
from base64 import b64decode
from itertools import product

import jsonpatch
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests.serving.review_client import ReviewClient
from tests.support.builders import (
    catalog,
    claim,
    node,
    node_terms,
    pod_anti_affinity,
    request,
    settings,
    storage,
    virt_launcher,
)
from tests.support.malformed import replaced, value_paths
from webhook.cluster.backend import from_snapshot
from webhook.serving.app import review_port
from webhook.serving.review.reviewer import Reviewer
from webhook.serving.telemetry.metrics import Metrics

UID = "00000000-0000-0000-0000-000000000001"
JSON = "application/json"


@pytest.fixture(scope="module")
def client():
    cluster = catalog(*storage(), claim("disk2"), node())
    return ReviewClient(review_port(Reviewer(from_snapshot(cluster, settings()), settings(), Metrics())))


def review(**overrides):
    return {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request({})} | overrides


def encoded(value):
    return json.dumps(value).encode()


def post(client, body, content_type=JSON):
    return client.post("/mutate?timeout=10s", data=body, content_type=content_type)


def expect_error(response, code):
    """Assert that the response is a JSON error with this status and no internals, and return its body."""
    assert (response.status_code, response.content_type) == (code, JSON)
    assert not [word for word in ("Traceback", 'File "', ".py", "<html", "<!doctype") if word in response.text]
    assert response.json.keys() <= {"error", "uid"}
    assert response.json["error"]
    return response.json


def expect_allowed(response):
    """Assert that the AdmissionReview allows the request, and return its `response`."""
    assert (response.status_code, response.content_type) == (200, JSON)
    assert response.json["response"]["allowed"] is True
    return response.json["response"]


# The object


def pod_with_everything():
    """The pod of an opted-in VM with every field that the webhook reads."""
    affinity = node_terms({"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}, {}, None)
    affinity["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] = [
        {"weight": 1, "preference": {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]}}
    ]
    return virt_launcher(
        claims=["disk1", "disk2"],
        requests={"cpu": "100m", "devices.kubevirt.io/kvm": "1"},
        affinity=affinity | pod_anti_affinity({"labelSelector": {"matchLabels": {"a": "b"}}, "topologyKey": "zone"}),
        nodeSelector={"kubernetes.io/arch": "amd64"},
        tolerations=[{"key": "a", "operator": "Exists", "effect": "NoSchedule"}],
        initContainers=[{"name": "sidecar", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}}],
        overhead={"memory": "1Mi"},
        resources={"requests": {"cpu": "1"}},
        schedulerName="kubevirt-scheduler",
        nodeName=None,
        topologySpreadConstraints=[],
        resourceClaims=[],
    )


PATHS = [*value_paths(pod_with_everything())][1:]
WRONG_VALUES = [None, True, 0, -1.5, "", "text", [], ["text"], [None], [[]], [{}], {}, {"key": {"key": []}}]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: ".".join(map(str, path)))
def test_a_pod_field_of_the_wrong_type_never_denies_the_pod(client, path):
    for wrong_value in WRONG_VALUES:
        pod = replaced(pod_with_everything(), path, wrong_value)
        response = expect_allowed(post(client, encoded(review(request=request(pod)))))
        assert response["uid"] == UID
        if "patch" in response:
            jsonpatch.JsonPatch(json.loads(b64decode(response["patch"]))).apply(pod)


def test_a_request_field_of_the_wrong_type_never_denies_the_pod(client):
    fields = "kind", "namespace", "operation", "subResource", "dryRun", "name", "object", "userInfo"
    for field, wrong_value in product(fields, WRONG_VALUES):
        sent = request(virt_launcher()) | {field: wrong_value}
        assert expect_allowed(post(client, encoded(review(request=sent))))["uid"] == UID


@pytest.mark.usefixtures("no_collection")
def test_deep_nesting_returns_200_or_400_but_never_denies_the_pod(client):
    for depth in (10, 500, 900, 1100, 20_000):
        nested = b'{"a":' * depth + b"1" + b"}" * depth
        pod = encoded(virt_launcher(affinity="NESTED")).replace(b'"NESTED"', nested)
        response = post(client, encoded(review(request=request("POD"))).replace(b'"POD"', pod))
        if response.status_code == 200:
            assert expect_allowed(response)["uid"] == UID
        else:
            expect_error(response, 400)


# HTTP


@pytest.mark.parametrize(
    "content_type",
    [
        None,
        "",
        "text/plain",
        "application/yaml",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/json-patch+json",
        "application/jsonx",
        "application/json; charset=latin-1",
        "application/json; charset=utf-16",
        "application/json; q=1",
        "json",
    ],
)
def test_another_media_type_or_charset_returns_415(client, content_type):
    body = encoded(review(request=request(virt_launcher())))
    assert expect_error(post(client, body, content_type), 415)["error"].startswith(
        "unsupported media type: expected application/json"
    )


@pytest.mark.parametrize(
    "content_type",
    ["application/json", "Application/JSON", "application/json; charset=UTF-8", 'application/json;charset="utf8"'],
)
def test_each_spelling_of_the_json_media_type_is_accepted(client, content_type):
    assert expect_allowed(post(client, encoded(review()), content_type))


def test_another_method_returns_405_and_another_path_404(client):
    for method in ("GET", "PUT", "OPTIONS", "QUERY"):
        response = client.open("/mutate", method=method, data=encoded(review()), content_type=JSON)
        assert expect_error(response, 405) == {"error": "method not allowed"}
        assert response.headers["Allow"] == "POST"
    for path in ("/", "/mutate/", "//mutate", "/mutate/x", "/MUTATE", "/%2e%2e/mutate"):
        response = client.open(path, method="POST", data=encoded(review()), content_type=JSON)
        assert expect_error(response, 404) == {"error": "no such path"}


# Arbitrary input

any_example = hypothesis_settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow]
)  # the test machine may be busy

ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(), children, max_size=4),
    max_leaves=20,
)
FIELDS = sorted({field for path in PATHS for field in path if isinstance(field, str)})
POD_LIKE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from(["true", "virt-launcher", "disk1", "In", "1", "", "100m"]),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), children, max_size=6),
    max_leaves=40,
)


@any_example
@given(st.integers(min_value=0), st.binary(max_size=3))
def test_a_review_with_corrupted_bytes_returns_200_or_400(client, position, replacement):
    body = encoded(review(request=request(virt_launcher())))
    position %= len(body)
    response = post(client, body[:position] + replacement + body[position + 1 :])
    if response.status_code == 200:
        expect_allowed(response)
    else:
        expect_error(response, 400)


@any_example
@given(ANY_JSON | POD_LIKE, st.text(min_size=1))
def test_a_review_with_arbitrary_json_as_its_object_is_allowed_with_its_uid(client, value, uid):
    assert expect_allowed(post(client, encoded(review(request=request(value, uid=uid)))))["uid"] == uid
