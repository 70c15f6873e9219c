"""Whatever is sent: an answer in JSON, the uid where it can be read, no traceback, and no VM is ever refused."""

import json
from base64 import b64decode

import jsonpatch
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as chosen
from hypothesis import strategies as st

from tests.support.builders import apart, catalog, claim, node, node_terms, request, settings, storage, virt_launcher
from webhook.cluster.backend import from_snapshot
from webhook.serving.app import create_app, make_reviewer
from webhook.serving.metrics import Metrics
from webhook.serving.request_parser import BODY_LIMIT

UID = "00000000-0000-0000-0000-000000000001"
JSON = "application/json"


@pytest.fixture(scope="module")
def client():
    found = catalog(*storage(), claim("disk2"), node())
    return create_app(make_reviewer(from_snapshot(found, settings()), settings(), Metrics())).test_client()


def review(**changed):
    return {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request({})} | changed


def encoded(value):
    return json.dumps(value).encode()


def post(client, body, content_type=JSON, **rest):
    return client.post("/mutate?timeout=10s", data=body, content_type=content_type, **rest)


def refused(response, code):
    """The error that came back, in JSON and with nothing of our insides."""
    assert (response.status_code, response.content_type) == (code, JSON)
    assert not [word for word in ("Traceback", 'File "', ".py", "<html", "<!doctype") if word in response.text]
    assert response.json.keys() <= {"error", "uid"}
    assert response.json["error"]
    return response.json


def allowed(response):
    """The response that came back, which let the pod through."""
    assert (response.status_code, response.content_type) == (200, JSON)
    assert response.json["response"]["allowed"] is True
    return response.json["response"]


# The body


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b" \n", id="only blanks"),
        pytest.param(b"\0", id="a zero"),
        pytest.param(b"review", id="not JSON"),
        pytest.param(encoded(review())[:-1], id="cut off"),
        pytest.param(encoded(review()) + b"}", id="something after it"),
        pytest.param(b"\xef\xbb\xbf" + encoded(review()), id="with a byte order mark"),
        pytest.param(json.dumps(review()).encode("utf-16"), id="UTF-16"),
        pytest.param(b'{"kind": "\xff"}', id="not UTF-8"),
        pytest.param(b"{'kind': 'AdmissionReview'}", id="other quotes"),
        pytest.param(b"kind: AdmissionReview\n", id="YAML"),
        pytest.param(b"NaN", id="not a number"),
        pytest.param(b'{"kind":' * 100_000, id="nested maps without end"),
        pytest.param(b"[" * 1_000_000, id="nested lists without end"),
        pytest.param(b"[" * 100_000 + b"]" * 100_000, id="nested lists"),
        pytest.param(b"null", id="null"),
        pytest.param(b"[]", id="a list"),
        pytest.param(b'"AdmissionReview"', id="a string"),
        pytest.param(b"1", id="a number"),
        pytest.param(b"true", id="a boolean"),
        pytest.param(b"{}", id="an empty object"),
        pytest.param(encoded(review(request=None)), id="a request that is null"),
        pytest.param(encoded(review(request=[])), id="a request that is a list"),
        pytest.param(encoded(review(request="CREATE")), id="a request that is a string"),
        pytest.param(encoded({k: v for k, v in review().items() if k != "request"}), id="no request"),
        pytest.param(encoded(review(request={})), id="no uid"),
        pytest.param(encoded(review(request=request({}, uid=None))), id="a uid that is null"),
        pytest.param(encoded(review(request=request({}, uid=""))), id="an empty uid"),
        pytest.param(encoded(review(request=request({}, uid=7))), id="a uid that is a number"),
        pytest.param(encoded(review(request=request({}, uid=[UID]))), id="a uid that is a list"),
    ],
)
def test_a_body_that_is_no_review_with_a_uid_is_a_bad_request(client, body):
    assert refused(post(client, body), 400).keys() == {"error"}


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"kind": "Pod"}, id="another kind"),
        pytest.param({"kind": None}, id="a kind that is null"),
        pytest.param({"kind": ["AdmissionReview"]}, id="a kind that is a list"),
        pytest.param({"apiVersion": "admission.k8s.io/v1beta1"}, id="another version"),
        pytest.param({"apiVersion": "v1"}, id="another group"),
        pytest.param({"apiVersion": None}, id="a version that is null"),
    ],
)
def test_a_review_of_another_kind_or_version_is_a_bad_request_with_its_uid(client, changed):
    assert refused(post(client, encoded(review(**changed))), 400)["uid"] == UID


# The object


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(None, id="null"),
        pytest.param("Pod", id="a string"),
        pytest.param([], id="a list"),
        pytest.param([virt_launcher()], id="a list of pods"),
        pytest.param(7, id="a number"),
        pytest.param(True, id="a boolean"),
        pytest.param({}, id="an empty object"),
        pytest.param({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "config"}}, id="not a Pod"),
    ],
)
def test_an_object_that_is_no_pod_of_ours_goes_on_as_it_was(client, pod):
    for told in ({}, {"kind": None}, {"kind": {"group": "", "version": "v1", "kind": "ConfigMap"}}):
        response = allowed(post(client, encoded(review(request=request(pod, **told)))))
        assert response["uid"] == UID
        assert "patch" not in response


def test_a_request_without_an_object_goes_on_as_it_was(client):
    sent = request({})
    del sent["object"]
    assert "patch" not in allowed(post(client, encoded(review(request=sent))))


def pod_with_everything():
    """An opted-in VM that has each field that we read."""
    affinity = node_terms({"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}, {}, None)
    affinity["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] = [
        {"weight": 1, "preference": {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]}}
    ]
    return virt_launcher(
        claims=["disk1", "disk2"],
        requests={"cpu": "100m", "devices.kubevirt.io/kvm": "1"},
        affinity=affinity | apart({"labelSelector": {"matchLabels": {"a": "b"}}, "topologyKey": "zone"}),
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


def paths(value, path=()):
    """The way to each field of an object, at every level."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, field in inner:
        yield (*path, key)
        yield from paths(field, (*path, key))


def replaced(value, path, field):
    """A copy of an object in which one field holds something else."""
    if not path:
        return field
    copy = value.copy()
    copy[path[0]] = replaced(value[path[0]], path[1:], field)
    return copy


WRONG = [None, True, 0, -1.5, "", "text", [], ["text"], [None], [[]], [{}], {}, {"key": None}, {"key": {"key": []}}]


@pytest.mark.parametrize("path", list(paths(pod_with_everything())), ids=lambda path: ".".join(map(str, path)))
def test_a_field_of_another_type_never_refuses_the_pod(client, path):
    for wrong in WRONG:
        pod = replaced(pod_with_everything(), path, wrong)
        response = allowed(post(client, encoded(review(request=request(pod)))))
        assert response["uid"] == UID
        if "patch" in response:
            jsonpatch.JsonPatch(json.loads(b64decode(response["patch"]))).apply(pod)


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
@pytest.mark.parametrize("field", ["kind", "namespace", "operation", "subResource", "dryRun", "name", "userInfo"])
def test_a_field_of_the_request_of_another_type_never_refuses_the_pod(client, field, wrong):
    response = allowed(post(client, encoded(review(request=request(virt_launcher(), **{field: wrong})))))
    assert response["uid"] == UID


@pytest.mark.parametrize("depth", [10, 500, 900, 1100, 20_000])
def test_deep_nesting_never_refuses_the_pod(client, depth):
    nested = b'{"a":' * depth + b"1" + b"}" * depth
    pod = encoded(virt_launcher(affinity="NESTED")).replace(b'"NESTED"', nested)
    response = post(client, encoded(review(request=request("POD"))).replace(b'"POD"', pod))
    if response.status_code == 200:
        assert allowed(response)["uid"] == UID
    else:
        refused(response, 400)


# Size


def test_a_body_of_8_mib_is_read(client):
    body = encoded(review(request=request(virt_launcher()))).ljust(BODY_LIMIT)
    assert allowed(post(client, body))["auditAnnotations"]["reason"] == "CoScheduled"


@pytest.mark.parametrize("more", [1, 1000, 1024 * 1024])
def test_a_body_over_8_mib_is_too_large(client, more):
    body = encoded(review(request=request(virt_launcher()))).ljust(BODY_LIMIT + more)
    assert refused(post(client, body), 413) == {"error": "the body is over 8 MiB"}


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
        "json",
    ],
)
def test_another_media_type_or_charset_is_not_supported(client, content_type):
    body = encoded(review(request=request(virt_launcher())))
    assert refused(post(client, body, content_type), 415)["error"].startswith("the media type is not application/json")


@pytest.mark.parametrize(
    "content_type", ["application/json", "Application/JSON", "application/json; charset=UTF-8; q=1"]
)
def test_json_is_json_however_it_is_written(client, content_type):
    assert allowed(post(client, encoded(review()), content_type))


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"])
def test_another_method_is_not_allowed(client, method):
    response = client.open("/mutate", method=method, data=encoded(review()), content_type=JSON)
    assert refused(response, 405) == {"error": "this path takes another method"}
    assert response.headers["Allow"] == "POST"


def test_another_method_without_a_body_in_its_answer_is_not_allowed(client):
    response = client.head("/mutate")
    assert (response.status_code, response.headers["Allow"], response.data) == (405, "POST", b"")


@pytest.mark.parametrize(
    "path", ["/", "/mutate/", "//mutate", "/mutate/x", "/MUTATE", "/static/x", "/%2e%2e/mutate", "/validate"]
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_another_path_is_not_found(client, method, path):
    response = client.open(path, method=method, data=encoded(review()), content_type=JSON)
    assert refused(response, 404) == {"error": "there is nothing at this path"}


@pytest.mark.parametrize("timeout", ["", "x", "-1s", "1" * 3000, "10s&timeout=0s", "%ff", "%00"])
def test_a_timeout_that_can_not_be_read_changes_nothing(client, timeout):
    response = client.post(f"/mutate?timeout={timeout}", data=encoded(review()), content_type=JSON)
    assert allowed(response)["uid"] == UID


# Anything

any_example = chosen(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # the machine may be busy

ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
FIELDS = sorted({field for path in paths(pod_with_everything()) for field in path if isinstance(field, str)})
POD_LIKE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from(["true", "virt-launcher", "disk1", "In", "1", "", "100m"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=6),
    max_leaves=40,
)


@any_example
@given(st.binary())
def test_any_bytes_get_an_answer(client, body):
    response = post(client, body)
    if response.status_code != 200:
        refused(response, 400)


@any_example
@given(st.integers(min_value=0), st.binary(max_size=3))
def test_a_review_with_any_bytes_in_it_gets_an_answer(client, where, what):
    body = encoded(review(request=request(virt_launcher())))
    where %= len(body)
    response = post(client, body[:where] + what + body[where + 1 :])
    if response.status_code == 200:
        allowed(response)
    else:
        refused(response, 400)


@any_example
@given(ANY_JSON)
def test_any_json_gets_an_answer(client, value):
    refused(post(client, encoded(value)), 400)


@any_example
@given(ANY_JSON | POD_LIKE)
def test_any_json_as_the_object_is_allowed_with_its_uid(client, value):
    assert allowed(post(client, encoded(review(request=request(value)))))["uid"] == UID


@any_example
@given(POD_LIKE)
def test_any_spec_of_an_opted_in_vm_is_allowed_with_its_uid(client, spec):
    pod = virt_launcher() | {"spec": spec}
    assert allowed(post(client, encoded(review(request=request(pod)))))["uid"] == UID


@any_example
@given(st.text(min_size=1))
def test_any_uid_is_echoed(client, uid):
    assert allowed(post(client, encoded(review(request=request({}, uid=uid)))))["uid"] == uid
