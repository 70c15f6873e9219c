"""The HTTP routes of both ports. No failure rejects a VM."""

import io
import json
from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from tests.serving.review_client import ReviewClient, probe_port, review_port
from tests.support import paths
from tests.support.builders import (
    catalog,
    claim,
    node,
    request,
    settings,
    share_manager,
    share_manager_pod,
    storage,
    virt_launcher,
    volume,
)
from tests.support.fake_clock import FakeClock
from tests.support.large_reviews import large_review
from tests.support.log_capture import capture_logs
from tests.support.server_process import sample
from webhook.cluster.backend import Backend, Cache, from_snapshot
from webhook.placement.settings import Action
from webhook.serving.app import Health
from webhook.serving.review.admission_review import REVIEW_LIMIT
from webhook.serving.review.reviewer import Reviewer
from webhook.serving.telemetry import logs
from webhook.serving.telemetry.logs import LogLimit
from webhook.serving.telemetry.metrics import Metrics

SECRET = "not-a-real-passphrase"
AVOIDING = paths.REVIEWS / "share-manager-avoiding-a-node.json"
LABELS = dict.fromkeys(["kubevirt.io/schedulable", "machine-type.node.kubevirt.io/q35"], "true") | {
    "kubernetes.io/arch": "amd64"
}
CLUSTER = (*storage(), node(labels=LABELS))


class Failing:
    """A catalog whose every method raises LookupError; the message contains the arguments and `message`."""

    def __init__(self, message):
        self._message = message

    def __getattr__(self, name):
        def fail(*arguments):
            raise LookupError(f"{name} {arguments} {self._message}")

        return fail


def client_for(store=None, *, synced=lambda: True, metrics=None, clock=None, **options):
    cluster = catalog(*CLUSTER) if store is None else store
    backend = from_snapshot(cluster, settings(**options))
    with_sync_state = replace(backend, synced=synced)
    return client_of(with_sync_state, metrics, clock, **options)


def client_of(backend, metrics=None, clock=None, **options):
    clock = clock or FakeClock()
    reviewer = Reviewer(backend, settings(**options), metrics or Metrics(), clock)
    return ReviewClient(review_port(reviewer), clock)


def review(pod=None, **rest):
    return {
        "kind": "AdmissionReview",
        "apiVersion": "admission.k8s.io/v1",
        "request": request(virt_launcher() if pod is None else pod, **rest),
    }


def post(client, body, query="timeout=10s"):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return client.post(f"/mutate?{query}", data)


def allowed_response(response):
    """The `response` of the returned AdmissionReview; it is always allowed."""
    assert (response.status_code, response.content_type) == (200, "application/json")
    assert response.json["kind"] == "AdmissionReview"
    assert response.json["response"]["allowed"] is True
    return response.json["response"]


def reason(response):
    return allowed_response(response)["auditAnnotations"]["reason"]


def count(metrics, series):
    return sample(metrics.exposition().decode(), series)


def decided(outcome, reason, *, subject="vm", mode="required", action="inject"):
    """The series that counts such decisions."""
    labels = {"action": action, "mode": mode, "outcome": outcome, "reason": reason, "subject": subject}
    return "decisions_total{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}"


# Reviews


def test_only_a_decision_on_an_opted_in_vm_that_is_no_dry_run_gets_an_event():
    events = []
    backend = replace(from_snapshot(catalog(*CLUSTER), settings()), record=lambda *event: events.append(event))
    client = client_of(backend)
    of_vm = {"annotations": {"kubevirt.io/domain": "vm1"}, "labels": {"kubevirt.io/created-by": "uid-1"}}
    opted_out, opted_in = virt_launcher(opt_in=None, **of_vm), virt_launcher(**of_vm)
    malformed = virt_launcher(annotations={"kubevirt.io/domain": ["vm1"]})
    for sent in (review(opted_in, dryRun=True), review(opted_out), review({}), review(malformed), review(opted_in)):
        post(client, sent)
    assert [(*vmi, vmi.is_valid(), decision.reason) for vmi, decision in events] == [
        ("default", "", "", False, "CoScheduled"),
        ("default", "vm1", "uid-1", True, "CoScheduled"),
    ]


def test_a_dry_run_shows_what_an_observer_decides():
    client = client_for(action=Action.OBSERVE)
    expected = "kubevirt-scheduler: pod unchanged: CoScheduled: pinned to node-a, which serves claim disk1"
    for opt_in in ("true", None):
        assert allowed_response(post(client, review(virt_launcher(opt_in=opt_in), dryRun=True)))["warnings"] == [
            expected
        ]
    assert not {"warnings", "patch"} & set(allowed_response(post(client, review())))
    assert "warnings" not in allowed_response(post(client_for(), review(dryRun=True)))


def test_a_dry_run_of_another_account_says_that_the_webhook_was_called():
    tenant = {"userInfo": {"username": "alice"}}
    response = allowed_response(post(client_for(), review(dryRun=True, **tenant)))
    (warning,) = response["warnings"]
    assert "NotFromKubeVirt" in warning
    assert "patch" not in response
    assert "warnings" not in allowed_response(post(client_for(), review(**tenant)))


@pytest.mark.parametrize("opt_in", ["true", None])
def test_an_observer_makes_no_vm_wait(opt_in):
    for store, synced, expected in ((None, False, "CacheNotSynced"), (catalog(*STARTING), True, "NoShareManager")):
        client = client_for(store, synced=lambda synced=synced: synced, action=Action.OBSERVE)
        assert reason(post(client, review(virt_launcher(opt_in=opt_in)))) == expected


# The log and the metrics


def test_a_decision_is_logged_as_one_line():
    pod = virt_launcher(annotations={"kubevirt.io/domain": "vm1"})
    with capture_logs() as lines:
        post(client_for(), review(pod, dryRun=True))
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
            "opted_in_by": "annotation",
            "ms": 0.0,
            "dry_run": True,
        }
    ]


@pytest.mark.parametrize("character", ["n", "\0", "é"])
def test_long_names_write_at_most_1_kb_into_the_log(character):
    long = character * 10_000
    pod = virt_launcher(long, claims=[long], annotations={"kubevirt.io/domain": long})
    with capture_logs() as lines:
        post(client_for(), review(pod, uid=long))
    assert len(json.dumps(lines)) < 1024


# A catalog that has not synced


@pytest.mark.parametrize(("query", "retries"), [("timeout=2s", 0), ("timeout=3s", 1), ("", 1)])
def test_a_request_waits_once_for_the_sync_and_is_then_allowed_unchanged(query, retries):
    clock, metrics = FakeClock(), Metrics()
    client = client_for(synced=lambda: False, clock=clock, metrics=metrics)
    waited = 0
    while (response := post(client, review(), query)).status_code == 503:
        waited += 1
        sentence = "the caches are not synced yet"
        assert response.json == {"error": sentence, "uid": "00000000-0000-0000-0000-000000000001"}
        assert response.headers["Retry-After"] == "1"
        clock.now += 1.001  # the API server waits for 1 s (Retry-After), plus the network
    assert reason(response) == "CacheNotSynced"
    assert "patch" not in allowed_response(response)
    assert count(metrics, decided("unchanged", "CacheNotSynced")) == 1
    assert waited == retries


# The API server's deadline


@pytest.mark.parametrize(("elapsed", "expected"), [(2.4, "CoScheduled"), (2.5, "DeadlineExceeded")])
def test_a_request_without_enough_time_since_its_first_byte_is_allowed_without_a_decision(elapsed, expected):
    clock, metrics = FakeClock(), Metrics()
    cluster = catalog(*CLUSTER) if expected == "CoScheduled" else Failing("not called")
    reviewer = Reviewer(from_snapshot(cluster, settings()), settings(), metrics, clock)
    client = ReviewClient(review_port(reviewer), lambda: clock.now - elapsed)
    response = post(client, review(), "timeout=3s")
    assert reason(response) == expected
    if expected == "DeadlineExceeded":
        assert "patch" not in allowed_response(response)
        assert count(metrics, decided("unchanged", expected)) == 1


# Unexpected errors


def raise_error():
    raise OSError(SECRET)


@pytest.mark.parametrize(
    ("options", "error"), [({"store": Failing("")}, LookupError), ({"synced": raise_error}, OSError)]
)
def test_an_exception_inside_or_outside_the_engine_allows_the_pod_and_is_logged(options, error):
    metrics = Metrics()
    with capture_logs() as lines:
        response = post(client_for(metrics=metrics, **options), review())
    assert reason(response) == "InternalError"
    assert "patch" not in allowed_response(response)
    assert count(metrics, decided("unchanged", "InternalError")) == 1
    [line] = lines
    assert (line["log_level"], line["reason"], type(line["exc_info"])) == ("error", "InternalError", error)


def test_an_exception_before_the_uid_is_known_returns_500_in_json():
    with capture_logs() as lines:
        response = client_for().post("/mutate", None)
    assert (response.status_code, response.json) == (500, {"error": "internal error"})
    assert type(lines[0]["exc_info"]) is TypeError


# Passphrases


@pytest.fixture
def captured_log():
    """The stream that receives the whole log, as standard error would."""
    stream = io.StringIO()
    logs.configure(settings(log_level="debug"), stream, LogLimit())
    yield stream
    logs.configure(settings(), io.StringIO(), LogLimit())


WHOLE, PASSPHRASE = AVOIDING.read_bytes(), SECRET.encode()
BODIES = {
    "complete body": WHOLE,
    "truncated body": WHOLE[:-1],
    "body without its start": WHOLE[WHOLE.index(PASSPHRASE) :],
    "wrong apiVersion": WHOLE.replace(b"admission.k8s.io/v1", b"v9"),
    "unterminated string": WHOLE.replace(b'"%s"' % PASSPHRASE, b'"%s' % PASSPHRASE),
    "not UTF-8": WHOLE.replace(PASSPHRASE, PASSPHRASE + b"\xff"),
    "wrong field type": WHOLE.replace(b'"env":[', b'"env":"%s","e":[' % PASSPHRASE),
}
OUTCOMES = {
    "decided": {},
    "exception in the engine": {"store": Failing(SECRET)},
    "exception outside the engine": {"synced": lambda: int(SECRET)},
    "not synced": {"synced": lambda: False},
}


@pytest.mark.parametrize("options", OUTCOMES.values(), ids=OUTCOMES)
@pytest.mark.parametrize("sent", BODIES.values(), ids=BODIES)
def test_a_passphrase_never_reaches_response_log_or_metrics(captured_log, options, sent):
    metrics = Metrics()
    assert PASSPHRASE in sent
    response = post(client_for(metrics=metrics, **options), sent)
    assert captured_log.getvalue()
    for output in (response.text, str(response.headers), captured_log.getvalue(), metrics.exposition().decode()):
        assert SECRET not in output
        assert "PASSPHRASE" not in output


# The plain port


def probes_client(ready=True, metrics=None, stuck=0.0, problems_of=dict, caches=()):
    not_ready = "" if ready else "shutting down"
    health = Health(metrics or Metrics(), lambda: list(caches), problems_of, lambda: not_ready, lambda: stuck)
    return ReviewClient(probe_port(health))


def test_readiness_reports_why_the_replica_is_unready():
    response = probes_client(ready=False).get("/readyz")
    assert (response.status_code, response.json) == (503, {"error": "not ready: shutting down"})
    response = probes_client(ready=False).get("/healthz")
    assert (response.status_code, response.json) == (200, {"status": "ok"})
    # A stuck TLS port fails both, so reviews reach other replicas long before the kubelet restarts the container.
    for path, prefix in (("/healthz", ""), ("/readyz", "not ready: ")):
        response = probes_client(stuck=12.3).get(path)
        sentence = f"{prefix}the TLS port has made no progress for 12 s"
        assert (response.status_code, response.json) == (503, {"error": sentence})


def test_readiness_names_each_cache_that_is_not_listed_and_only_the_verbose_page_names_other_problems():
    caches = [
        Cache("pods", True, 1, 3.0, ""),
        Cache("nodes", False, 0, None, ""),
        Cache("vms", True, 0, 3.0, "403", False),
    ]
    response = probes_client(caches=caches).get("/readyz")
    assert (response.status_code, response.json["status"]) == (503, "waiting")
    assert response.json["problems"] == {"nodes": "not listed yet", "vms": "403"}
    client = probes_client(problems_of=lambda: {"serving certificate": "is not served"})
    brief, verbose = client.get("/readyz"), client.get("/readyz?verbose")
    assert (brief.status_code, brief.json) == (200, {"status": "ok", "problems": {}})
    expected = {"status": "ok", "problems": {"serving certificate": "is not served"}, "caches": []}
    assert (verbose.status_code, verbose.json) == (200, expected)


def test_an_exception_on_the_plain_port_returns_json_without_its_message():
    class Broken(Metrics):
        def exposition(self):
            raise OSError(SECRET)

    response = probes_client(metrics=Broken()).get("/metrics")
    assert (response.status_code, response.content_type) == (500, "application/json")
    assert SECRET not in response.text


def test_the_plain_port_responds_to_head_like_to_get_and_to_no_other_method():
    client = probes_client()
    head, got = client.open("/healthz", "HEAD"), client.get("/healthz")
    assert (head.data, head.headers) == (got.data, got.headers)  # the connection omits the body, not its length
    response = client.open("/healthz", "OPTIONS")
    assert (response.status_code, response.headers["Allow"]) == (405, "GET, HEAD")
    assert [client.get(path).json for path in ("//healthz", "/healthz//")] == [{"error": "no such path"}] * 2


STARTING = [claim(), volume(), share_manager(state="starting"), node()]
WAITING = [*STARTING, virt_launcher("vm2", node="node-a", labels={"kubevirt.io/created-by": "vmi-2"})]


@pytest.mark.parametrize(
    ("cluster", "claims", "final"),
    [
        (STARTING, ["disk1"], "NoShareManager"),
        (WAITING, ["disk1"], "ShareManagerStarting"),
        ([*STARTING, *storage("disk2")], ["disk1", "disk2"], "CoScheduled"),
    ],
    ids=["alone", "beside another VM", "another claim has a node"],
)
def test_a_vm_waits_once_for_the_share_manager_of_its_own_disk_to_be_bound(cluster, claims, final):
    clock, sent = FakeClock(), review(virt_launcher(claims=claims))
    client = client_for(catalog(*cluster), clock=clock)
    first = post(client, sent)
    assert (first.status_code, first.headers["Retry-After"]) == (503, "1")
    assert "its node is not known yet" in first.json["error"]
    clock.now += 1.01
    assert reason(post(client, sent)) == final


def test_a_review_with_a_claim_that_the_caches_lack_is_retried_at_once_and_then_decided():
    snapshot = from_snapshot(catalog(node()), settings())
    client = client_of(replace(snapshot, decide=lambda asked: replace(snapshot.decide(asked), unseen=True)))
    first = post(client, review())
    assert (first.status_code, first.headers["Retry-After"]) == (503, "0")
    assert first.json["error"] == "the caches lack a claim of this pod, or its volume"
    assert reason(post(client, review())) == "NoShareManager"


@pytest.mark.parametrize(("later", "final"), [([], "NoConsumer"), ([virt_launcher(node="node-a")], "CoScheduled")])
def test_a_share_manager_waits_once_for_the_watch_to_show_its_vm(later, final):
    stored, clock = [claim(), volume(), node()], FakeClock()
    tries = iter([from_snapshot(catalog(*stored, *pods), settings()) for pods in ([], later)])
    backend = from_snapshot(catalog(), settings())
    client = client_of(replace(backend, decide=lambda asked: next(tries).decide(asked)), clock=clock)
    sent = review(share_manager_pod(), namespace="longhorn-system")
    first = post(client, sent)
    assert (first.status_code, first.headers["Retry-After"]) == (503, "1")
    assert first.json["error"] == "the caches know no bound pod that mounts the share-manager's volume"
    clock.now += 1.01
    assert reason(post(client, sent)) == final


@pytest.mark.parametrize(
    ("begun", "decided", "status"),
    [
        ("12:00:00", 0.4, 503),
        ("11:59:59", 0.02, 503),  # the second has changed between both
        ("11:59:59", 0.4, 200),
        ("11:59:58", 0.02, 200),
    ],
)
def test_another_replica_knows_from_the_pod_that_the_call_has_waited(begun, decided, status):
    """A pod has the time of its creation in whole seconds. So a new one may seem to be a second old."""
    now = datetime(2026, 8, 1, 12, tzinfo=UTC).timestamp() + decided
    reviewer = Reviewer(from_snapshot(catalog(*STARTING), settings()), settings(), Metrics(), FakeClock())
    client = ReviewClient(review_port(replace(reviewer, wall_clock=lambda: now)), reviewer.clock)
    pod, time = virt_launcher(), f"2026-08-01T{begun}Z"
    pod["metadata"]["managedFields"] = [{"manager": "virt-controller", "time": time, "fieldsV1": {"f:spec": {}}}]
    assert post(client, review(pod), "timeout=3s").status_code == status


@pytest.mark.parametrize(("shape", "size"), [("nested lists", REVIEW_LIMIT // 2), ("preferred", 3 * 2**20)])
def test_only_the_uid_of_an_oversized_review_is_read(shape, size):
    """Half a megabyte of nested lists took 0.2 s, in which no other review was answered."""
    asked = []
    backend = Backend(decide=lambda *question: asked.append(question))
    body, uid = large_review(shape, size)
    answered = allowed_response(post(client_of(backend), body))
    assert (answered["uid"], answered["auditAnnotations"]["reason"]) == (uid, "Unjudged")
    assert asked == []
