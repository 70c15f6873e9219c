"""The routes: a review in, an answer out, and whatever happens, no VM is refused."""

import gc
import io
import json
from base64 import b64decode
from dataclasses import replace
from types import FunctionType, ModuleType

import jsonpatch
import pytest
import structlog
from structlog.testing import capture_logs

from tests.support import paths
from tests.support.builders import catalog, node, pinned, request, settings, storage, virt_launcher
from webhook.cluster import objects
from webhook.cluster.backend import from_snapshot
from webhook.cluster.store import Store
from webhook.placement.settings import Action
from webhook.serving import logs
from webhook.serving.app import create_app, create_probes, make_reviewer
from webhook.serving.deadline import MARGIN
from webhook.serving.metrics import Metrics
from webhook.serving.reviewer import Call

REVIEWS = sorted(paths.REVIEWS.glob("*.json"))
SECRET = "not-a-real-passphrase"
AVOIDING = paths.REVIEWS / "share-manager-avoiding-a-node.json"
LABELS = dict.fromkeys(["kubevirt.io/schedulable", "machine-type.node.kubevirt.io/q35"], "true") | {
    "kubernetes.io/arch": "amd64"
}
CLUSTER = (*storage(), node(labels=LABELS))


class Failing:
    """A catalog of which every question fails, with what was asked and more in the message."""

    def __init__(self, message):
        self._message = message

    def __getattr__(self, name):
        def fail(*asked):
            raise LookupError(f"{name} {asked} {self._message}")

        return fail


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def app(found=None, *, synced=lambda: True, metrics=None, clock=None, **chosen):
    store = catalog(*CLUSTER) if found is None else found
    backend = from_snapshot(store, settings(**chosen))
    waiting = replace(backend, synced=synced)
    made = create_app(make_reviewer(waiting, settings(**chosen), metrics or Metrics(), clock or Clock()))
    return made.test_client()


def review(pod=None, **rest):
    return {
        "kind": "AdmissionReview",
        "apiVersion": "admission.k8s.io/v1",
        "request": request(virt_launcher() if pod is None else pod, **rest),
    }


def post(client, body, query="timeout=10s", **rest):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return client.post(f"/mutate?{query}", data=data, content_type="application/json", **rest)


def answered(response):
    """The response of the review that came back, which is always allowed."""
    assert (response.status_code, response.content_type) == (200, "application/json")
    assert response.json["kind"] == "AdmissionReview"
    assert response.json["response"]["allowed"] is True
    return response.json["response"]


def reason(response):
    return answered(response)["auditAnnotations"]["reason"]


def count(metrics, series):
    lines = metrics.exposition().decode().splitlines()
    return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"kubevirt_scheduler_{series} "))


# Reviews


@pytest.mark.parametrize("file", REVIEWS, ids=lambda file: file.stem)
def test_a_recorded_review_is_answered_with_its_uid(file):
    sent = json.loads(file.read_bytes())
    assert answered(post(app(), file.read_bytes()))["uid"] == sent["request"]["uid"]


def test_a_recorded_vm_is_pinned_by_a_patch_that_applies():
    sent = json.loads((AVOIDING.parent / "vm-start.json").read_bytes())
    response = answered(post(app(), sent))
    patch = jsonpatch.JsonPatch(json.loads(b64decode(response["patch"])))
    after = patch.apply(sent["request"]["object"])
    assert response["auditAnnotations"]["outcome"] == "pinned"
    assert after["metadata"]["annotations"]["kubevirt-scheduler/co-scheduled-node"] == "node-a"


def test_what_needs_no_change_gets_no_patch():
    response = answered(post(app(), review(virt_launcher(**pinned("node-a")))))
    assert response["auditAnnotations"]["reason"] == "AlreadyInjected"
    assert not {"patch", "patchType"} & response.keys()


def test_the_settings_are_obeyed():
    assert "patch" in answered(post(app(), review()))
    assert "patch" not in answered(post(app(action=Action.OBSERVE), review()))


@pytest.mark.parametrize("charset", ["utf-8", "UTF-8", '"utf-8"', "utf8"])
def test_the_charset_may_be_said(charset):
    body = json.dumps(review()).encode()
    response = app().post("/mutate", data=body, content_type=f"application/json; charset={charset}")
    assert reason(response) == "CoScheduled"


# The log and the metrics


def test_a_decision_is_one_line_in_the_log():
    pod = virt_launcher(annotations={"kubevirt.io/domain": "vm1"})
    with capture_logs() as lines:
        post(app(), review(pod, dryRun=True))
    assert lines == [
        {
            "event": "decided",
            "log_level": "info",
            "uid": "00000000-0000-0000-0000-000000000001",
            "namespace": "default",
            "pod": "pod-",
            "vm": "vm1",
            "outcome": "pinned",
            "reason": "CoScheduled",
            "node": "node-a",
            "claims": "disk1=node-a",
            "ms": 0.0,
            "dry_run": True,
            "exc_info": None,
        }
    ]


def test_a_pod_that_has_its_name_is_logged_by_it():
    with capture_logs() as lines:
        post(app(), review(virt_launcher("virt-launcher-vm1-abcde")))
    assert lines[0]["pod"] == "virt-launcher-vm1-abcde"


def test_nobody_fills_the_log_with_long_names():
    with capture_logs() as lines:
        post(app(), review(virt_launcher("n" * 10_000, claims=["c" * 10_000]), uid="u" * 10_000))
    assert len(json.dumps(lines)) < 5000


def test_a_decision_is_counted_with_its_time():
    metrics = Metrics()
    post(app(metrics=metrics), review())
    assert count(metrics, 'decisions_total{outcome="pinned",reason="CoScheduled"}') == 1
    assert count(metrics, "decision_duration_seconds_count") == 1


def test_a_request_is_in_flight_while_it_is_decided():
    metrics, seen = Metrics(), []

    class Watching(Store):
        def claim(self, namespace, name):
            seen.append(count(metrics, "requests_in_flight"))
            return super().claim(namespace, name)

    post(app(Watching(), metrics=metrics), review())
    assert set(seen) == {1.0}
    assert count(metrics, "requests_in_flight") == 0


# A catalog that has not synced


def test_a_catalog_that_has_not_synced_asks_to_come_again():
    metrics = Metrics()
    response = post(app(synced=lambda: False, metrics=metrics), review())
    assert (response.status_code, response.headers["Retry-After"]) == (503, "1")
    assert response.json == {
        "error": "the cluster is not read completely yet",
        "uid": "00000000-0000-0000-0000-000000000001",
    }
    assert count(metrics, "decision_duration_seconds_count") == 0


def test_a_request_that_comes_again_after_the_catalog_has_synced_is_decided():
    state = [False]
    client = app(synced=lambda: state[0])
    assert post(client, review()).status_code == 503
    state[0] = True
    assert reason(post(client, review())) == "CoScheduled"


def test_a_request_that_comes_again_is_granted_what_its_first_try_has_left():
    """Every try says the same timeout, and it is that of all of them together."""
    clock, synced, granted = Clock(), [False], []
    backend = from_snapshot(catalog(*CLUSTER), settings())

    def decide(request, seconds):
        granted.append(seconds)
        return backend.decide(request, seconds)

    following = replace(backend, decide=decide, synced=lambda: synced[0])
    client = create_app(make_reviewer(following, settings(), Metrics(), clock)).test_client()
    assert post(client, review(), "timeout=3s").status_code == 503
    clock.now, synced[0] = clock.now + 2.1, True
    assert reason(post(client, review(), "timeout=3s")) == "CoScheduled"
    assert granted == [pytest.approx(3 - 2.1 - MARGIN)]


@pytest.mark.parametrize(("query", "tries"), [("timeout=3s", 1), ("timeout=10s", 8), ("timeout=30s", 8), ("", 8)])
def test_near_its_deadline_a_request_is_let_through_unchanged(query, tries):
    clock, metrics = Clock(), Metrics()
    client = app(synced=lambda: False, clock=clock, metrics=metrics)
    codes = []
    while (response := post(client, review(), query)).status_code == 503:
        codes.append(response.status_code)
        clock.now += 1.001  # what the API server waits, and the way there
    assert reason(response) == "CacheNotSynced"
    assert "patch" not in answered(response)
    assert count(metrics, 'decisions_total{outcome="unchanged",reason="CacheNotSynced"}') == 1
    assert len(codes) == tries


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (request(virt_launcher(annotations={"kubevirt-scheduler/co-schedule": "false"})), "NotOptedIn"),
        (request(virt_launcher(), operation="UPDATE"), "NotAPodCreation"),
    ],
)
def test_what_needs_no_catalog_does_not_wait_for_it(sent, expected):
    body = review() | {"request": sent}
    assert reason(post(app(synced=lambda: False), body)) == expected


@pytest.mark.parametrize("timeout", ["1s", "1500ms", "600ms"])
def test_a_timeout_without_room_for_another_try_lets_the_request_through_at_once(timeout):
    assert reason(post(app(synced=lambda: False), review(), f"timeout={timeout}")) == "CacheNotSynced"


# The API server's deadline


@pytest.mark.parametrize("timeout", ["0s", "500ms", "1ms"])
def test_what_can_t_be_answered_in_time_is_let_through_undecided(timeout):
    metrics = Metrics()
    response = post(app(Failing("nobody is asked"), metrics=metrics), review(), f"timeout={timeout}")
    assert reason(response) == "DeadlineExceeded"
    assert "patch" not in answered(response)
    assert count(metrics, 'decisions_total{outcome="unchanged",reason="DeadlineExceeded"}') == 1


@pytest.mark.parametrize(
    ("waited", "expected"), [(0.0, "CoScheduled"), (2.4, "CoScheduled"), (2.5, "DeadlineExceeded")]
)
def test_the_time_counts_from_the_first_byte_of_the_request(waited, expected):
    clock = Clock()
    reviewer = make_reviewer(from_snapshot(catalog(*CLUSTER), settings()), settings(), Metrics(), clock)
    answer = reviewer.answer(json.dumps(review()).encode(), Call(clock.now - waited, 3.0))
    assert json.loads(answer.body)["response"]["auditAnnotations"]["reason"] == expected


def test_a_decision_may_wait_for_the_api_server_for_what_is_left_of_the_time():
    clock, granted = Clock(), []
    backend = from_snapshot(catalog(*CLUSTER), settings())

    def decide(request, seconds):
        granted.append(seconds)
        return backend.decide(request, seconds) if seconds else None

    reviewer = make_reviewer(replace(backend, decide=decide), settings(), Metrics(), clock)
    body = json.dumps(review()).encode()
    assert reviewer.answer(body, Call(clock.now - 1, 3.0), may_wait=False) is None
    assert reviewer.answer(body, Call(clock.now - 1, 3.0)).status == 200
    assert granted == [0, 1.5]


# Surprises


def test_a_surprise_in_the_engine_lets_the_pod_through_and_is_logged_with_its_traceback():
    metrics = Metrics()
    with capture_logs() as lines:
        response = post(app(Failing(""), metrics=metrics), review())
    assert reason(response) == "InternalError"
    assert "patch" not in answered(response)
    assert count(metrics, 'decisions_total{outcome="unchanged",reason="InternalError"}') == 1
    [line] = lines
    assert (line["log_level"], line["reason"], type(line["exc_info"])) == ("error", "InternalError", LookupError)


def test_a_surprise_outside_the_engine_lets_the_pod_through_as_well():
    def synced():
        raise OSError(SECRET)

    metrics = Metrics()
    with capture_logs() as lines:
        response = post(app(synced=synced, metrics=metrics), review())
    assert answered(response)["uid"] == "00000000-0000-0000-0000-000000000001"
    assert reason(response) == "InternalError"
    assert count(metrics, 'decisions_total{outcome="unchanged",reason="InternalError"}') == 1
    assert type(lines[-1]["exc_info"]) is OSError


def test_a_surprise_before_the_uid_is_read_is_an_error_in_json():
    class Broken(Metrics):
        in_flight = property(lambda _: {}[SECRET], lambda *_: None)

    with capture_logs() as lines:
        response = post(app(metrics=Broken()), review())
    assert (response.status_code, response.json) == (500, {"error": "the webhook failed"})
    assert type(lines[0]["exc_info"]) is KeyError


# A passphrase


@pytest.fixture
def written():
    """All that is logged, in full, as it would be on standard error."""
    stream = io.StringIO()
    logs.configure(settings(log_level="debug"), stream)
    yield stream
    logs.configure(settings(), io.StringIO())
    structlog.reset_defaults()


@pytest.mark.parametrize(
    "client_of",
    [
        pytest.param(lambda metrics: app(metrics=metrics), id="decided"),
        pytest.param(lambda metrics: app(Failing(SECRET), metrics=metrics), id="the engine fails"),
        pytest.param(lambda metrics: app(synced=lambda: int(SECRET), metrics=metrics), id="the edge fails"),
        pytest.param(lambda metrics: app(synced=lambda: False, metrics=metrics), id="not synced"),
    ],
)
@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda body: body, id="whole"),
        pytest.param(lambda body: body[:-1], id="cut off"),
        pytest.param(lambda body: body[body.index(SECRET.encode()) :], id="from the middle"),
        pytest.param(lambda body: body.replace(b"admission.k8s.io/v1", b"v9"), id="another version"),
        pytest.param(lambda body: body.replace(f'"{SECRET}"'.encode(), f'"{SECRET}'.encode()), id="open string"),
        pytest.param(lambda body: body.replace(SECRET.encode(), SECRET.encode() + b"\xff"), id="not UTF-8"),
        pytest.param(lambda body: body.replace(b'"env":[', f'"env":"{SECRET}","e":['.encode()), id="wrong type"),
    ],
)
def test_nothing_of_a_passphrase_gets_out(written, client_of, spoil):
    sent, metrics = spoil(AVOIDING.read_bytes()), Metrics()
    assert SECRET.encode() in sent
    response = post(client_of(metrics), sent)
    assert written.getvalue()
    for told in (response.text, str(response.headers), written.getvalue(), metrics.exposition().decode()):
        assert SECRET not in told
        assert "PASSPHRASE" not in told


def strings_in(value, seen=None):
    """Every string that a value of ours holds, however deep."""
    seen = set() if seen is None else seen
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, str):
        yield value
    elif not isinstance(value, type | ModuleType | FunctionType):
        for inner in gc.get_referents(value):
            yield from strings_in(inner, seen)


def test_nothing_of_a_passphrase_is_kept():
    sent = json.loads(AVOIDING.read_bytes())["request"]["object"]
    assert SECRET in repr(sent)
    store = Store([objects.read_pod(sent)])
    kept = list(strings_in(store))
    assert "share-manager-vol-disk2" in kept
    assert not [text for text in kept if SECRET in text]


# The plain port


def probes(ready=True, metrics=None, stuck=0.0, problems_of=dict):
    return create_probes(
        metrics or Metrics(), list, problems_of, lambda: "" if ready else "it ends", lambda: stuck
    ).test_client()


def test_whoever_asks_hears_that_we_live():
    response = probes(ready=False).get("/healthz")
    assert (response.status_code, response.json) == (200, {"status": "ok"})


@pytest.mark.parametrize(("path", "before"), [("/healthz", ""), ("/readyz", "not ready for reviews: ")])
def test_a_tls_port_that_hangs_fails_both_probes(path, before):
    """Readiness as well: reviews go elsewhere half a minute before the kubelet has restarted us."""
    response = probes(stuck=12.3).get(path)
    sentence = f"{before}the TLS port has made no progress for 12 s"
    assert (response.status_code, response.json) == (503, {"error": sentence})


@pytest.mark.parametrize(("ready", "code"), [(True, 200), (False, 503)])
def test_readiness_is_told(ready, code):
    response = probes(ready).get("/readyz")
    assert response.status_code == code
    assert ready or response.json == {"error": "not ready for reviews: it ends"}


def test_troubles_are_told_to_who_asks_for_more_and_make_nobody_unready():
    client = probes(problems_of=lambda: {"serving certificate": "is not served"})
    briefly, verbosely = client.get("/readyz"), client.get("/readyz?verbose")
    assert (briefly.status_code, briefly.json) == (200, {"status": "ok", "problems": {}})
    told = {"status": "ok", "problems": {"serving certificate": "is not served"}, "caches": []}
    assert (verbosely.status_code, verbosely.json) == (200, told)


def test_the_metrics_are_in_the_format_of_prometheus():
    response = probes().get("/metrics")
    assert response.content_type.startswith("text/plain; version=")
    assert "kubevirt_scheduler_build_info{" in response.text


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
def test_the_tls_port_has_no_probes(path):
    assert app().get(path).status_code == 404


def test_the_plain_port_takes_no_reviews():
    response = probes().post("/mutate", json=review())
    assert (response.status_code, response.json) == (404, {"error": "there is nothing at this path"})


def test_the_plain_port_answers_a_surprise_in_json():
    class Broken(Metrics):
        def exposition(self):
            raise OSError(SECRET)

    response = probes(metrics=Broken()).get("/metrics")
    assert (response.status_code, response.content_type) == (500, "application/json")
    assert SECRET not in response.text


def test_a_vm_for_a_node_to_which_pods_are_on_their_way_comes_again_and_is_answered_in_the_end():
    clock = Clock()
    backend = from_snapshot(catalog(*CLUSTER), settings())
    contested = replace(backend, contested=lambda injection: injection.decision.node is not None)
    client = create_app(make_reviewer(contested, settings(), Metrics(), clock)).test_client()
    first = post(client, review(), "timeout=3s")
    assert (first.status_code, first.headers["Retry-After"]) == (503, "1")
    assert "on their way" in first.json["error"]
    clock.now += 1.5
    assert post(client, review(), "timeout=3s").json["response"]["allowed"] is True
