"""The webhook responds to any input in JSON, echoes a readable uid, hides tracebacks, and never denies a VM pod."""

import json
from base64 import b64decode
from itertools import product

import jsonpatch
import pytest

from tests.serving.review_client import ReviewClient, review_port
from tests.support.builders import (
    catalog,
    claim,
    node,
    node_terms,
    pod,
    pod_anti_affinity,
    pod_term,
    request,
    settings,
    storage,
    virt_launcher,
)
from tests.support.malformed import replaced, value_paths
from tests.support.paths import REVIEWS
from webhook.cluster.backend import from_snapshot
from webhook.serving.review.reviewer import Reviewer
from webhook.serving.telemetry.metrics import Metrics

UID = "00000000-0000-0000-0000-000000000001"
JSON = "application/json"


@pytest.fixture(scope="module")
def client():
    resources = {"cpu": "9", "memory": "9Gi", "pods": "9", "devices.kubevirt.io/kvm": "9"}
    repelling = pod("web", node="node-a", affinity=pod_anti_affinity(pod_term({"a": "b"})))
    cluster = catalog(*storage(), claim("disk2"), node(allocatable=resources), repelling)
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


def recorded_request():
    """A request for a pod that the real controller created."""
    found = json.loads(REVIEWS.joinpath("vm-start.json").read_bytes())["request"]
    del found["object"]["metadata"]["managedFields"]
    return found


WRONG_VALUES = [None, True, 0, -1.5, "", "text", [], ["text"], [None], [[]], [{}], {}, {"key": {"key": []}}]
# The webhook reads few fields of the recorded pod, so some of the values suffice.
REQUESTS = {
    "every field": (request(pod_with_everything()), WRONG_VALUES),
    "a recorded pod": (recorded_request(), [None, 0, "text", [None], {"key": {"key": []}}]),
}


@pytest.mark.parametrize(("sent", "wrong_values"), REQUESTS.values(), ids=REQUESTS)
def test_a_field_of_the_wrong_type_never_denies_the_pod(client, sent, wrong_values):
    paths = [path for path in value_paths(sent) if path not in ((), ("uid",))]
    for path, wrong_value in product(paths, wrong_values):
        broken = replaced(sent, path, wrong_value)
        response = expect_allowed(post(client, encoded(review(request=broken))))
        assert response["uid"] == sent["uid"], path
        assert response["auditAnnotations"]["reason"] != "InternalError", path
        if "patch" in response:
            jsonpatch.JsonPatch(json.loads(b64decode(response["patch"]))).apply(broken["object"])


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


JSON_TYPES = [JSON, "Application/JSON", "application/json; charset=UTF-8", 'application/json;charset="utf8"']
OTHER_TYPES = [None, "", "json", "text/plain", "application/yaml", "application/x-www-form-urlencoded"]
OTHER_TYPES += ["multipart/form-data; boundary=x", "application/json-patch+json", "application/jsonx"]
OTHER_TYPES += [f"application/json; {parameter}" for parameter in ("charset=latin-1", "charset=utf-16", "q=1")]


def test_each_spelling_of_the_json_media_type_is_accepted_and_any_other_type_or_charset_returns_415(client):
    for content_type in JSON_TYPES:
        assert expect_allowed(post(client, encoded(review()), content_type))
    for content_type in OTHER_TYPES:
        error = expect_error(post(client, encoded(review()), content_type), 415)["error"]
        assert error.startswith("unsupported media type: expected application/json"), content_type


def test_another_method_returns_405_and_another_path_404(client):
    for method in ("GET", "PUT", "OPTIONS", "QUERY"):
        response = client.open("/mutate", method=method, data=encoded(review()), content_type=JSON)
        assert expect_error(response, 405) == {"error": "method not allowed"}
        assert response.headers["Allow"] == "POST"
    for path in ("/", "/mutate/", "//mutate", "/mutate/x", "/MUTATE", "/%2e%2e/mutate"):
        response = client.open(path, method="POST", data=encoded(review()), content_type=JSON)
        assert expect_error(response, 404) == {"error": "no such path"}


def test_a_review_with_a_corrupted_byte_returns_200_or_400(client):
    body = encoded(review(request=request(virt_launcher())))
    for position, replacement in product(range(len(body)), (b"", b"\xff", b'"', b"{")):
        response = post(client, body[:position] + replacement + body[position + 1 :])
        if response.status_code == 200:
            expect_allowed(response)
        else:
            expect_error(response, 400)
