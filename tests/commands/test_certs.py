"""The commands `certs status` and `renew`, over HTTP and the real client. Long waits use a fake clock."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from msgspec.structs import replace

from certs import ApiError
from certs import secret as bundles
from certs.authority import Issued, issue, split
from certs.cluster import TIMEOUT, CertificateObjects
from certs.controller import MAX_TRIES, CertificateController, force
from certs.files import Folder, InMemory
from certs.rotation import Step, apply_step, drop_old
from certs.secret import CertificateError
from certs.status import read_status
from tests.support.authority import issue_ca, issue_leaf
from tests.support.client_certificates import issue_client
from tests.support.command_line import run_cli
from tests.support.fake_api_server import ApiServer
from tests.support.fake_api_server import status as response_status
from tests.support.fake_certificate_cluster import (
    CONFIGURATION,
    CONFIGURATION_PATH,
    NAME,
    NAMES,
    NAMESPACE,
    SECRET_PATH,
    FakeCertificateCluster,
)
from tests.support.fake_clock import START, CertificateClock
from tests.support.paths import CHART
from webhook.commands.options import DRY_RUN

RULES = (CHART / "templates" / "_alerts-certificates.tpl").read_text()
DAY = timedelta(days=1)
start = partial(apply_step, Step.START)


class CertificateServer(ApiServer):
    """Serves the fake cluster over HTTP."""

    def __init__(self, cluster):
        super().__init__()
        self.cluster = cluster

    def respond(self, request, connection):
        try:
            if request.verb == "list":
                raise ApiError(404, "no chart is installed")  # noqa: TRY301 (as if the cluster raised it)
            with self._lock:
                if request.verb == "get":
                    found = self.cluster.get(request.path, 5)
                else:
                    found = self.cluster.send(request.verb.upper(), request.path, request.body, 5)
        except ApiError as error:
            connection.answer(error.code, response_status(error.code, str(error)))
        else:
            connection.answer(*((200, found) if found else (404, response_status(404, "not found"))))


@pytest.fixture
def api():
    return FakeCertificateCluster()


@pytest.fixture
def objects(api):
    return CertificateObjects(api, (NAMESPACE, NAME), CONFIGURATION)


@pytest.fixture
def kubeconfig(api, tmp_path) -> Iterator[str]:
    with CertificateServer(api) as server:
        yield server.kubeconfig(tmp_path)


@pytest.fixture
def new_replica(api):
    """A function that creates a replica and runs its first pass, by default at the real time like the commands."""

    def make(now=lambda: datetime.now(UTC)):
        controller = CertificateController(
            api, secret=(NAMESPACE, NAME), configuration=CONFIGURATION, names=NAMES, served=InMemory(), now=now
        )
        controller.run_pass()
        return controller

    return make


@pytest.fixture
def invoke(kubeconfig):
    def run(*arguments):
        result = run_cli("certs", *arguments, "--kubeconfig", kubeconfig, env={"COLUMNS": "140"})
        assert result.exit_code in (0, 1) or len(result.stderr.splitlines()) == 1
        return result

    return run


def put_foreign_secret(api, **data):
    """Replace the Secret by a foreign one."""
    found = bundles.written(bundles.Bundle(data["leaf"], ca=data["ca"]), api.secret)
    found["metadata"]["annotations"] = {}
    for field in ("ca.key", "state.json"):
        del found["data"][field]
    api.put(SECRET_PATH, found)


# Status


def test_status_shows_the_certificates_the_next_step_and_the_trust_of_the_webhooks_but_no_key(api, invoke, new_replica):
    new_replica()
    shown = invoke("status").stdout
    for words in (f"Secret {NAMESPACE}/{NAME}", "CN=kubevirt-scheduler", *NAMES, "30.0"):
        assert words in shown
    assert "Next: start, a third of the certificate's lifetime is left: " in shown
    assert "Problem" not in shown
    empty_one_ca_bundle(api)
    printed = invoke("status", "-o", "json").stdout
    found = json.loads(printed)
    [serving] = found["certificates"]
    assert (serving["what"], serving["names"], serving["daysLeft"]) == ("serving certificate", list(NAMES), 30.0)
    assert (found["problem"], found["next"]["step"]) == ("", "start")
    assert found["webhooks"] == [
        {"name": "vms.kubevirt-scheduler", "trusted": True},
        {"name": "share-managers.kubevirt-scheduler", "trusted": False},
    ]
    for secret in ("PRIVATE", api.secret["data"]["tls.key"]):
        assert secret not in shown + printed


def test_status_shows_the_certificates_of_a_renewal_and_the_ca_of_an_earlier_version(api, objects):
    now = datetime.now(UTC)
    ca, old = issue_ca(now), bundles.Retiring(issue(NAMES, now).certificate.decode(), now + DAY)
    bundle = bundles.Bundle(issue_leaf(ca, NAMES, now), issue(NAMES, now), retiring=(old,), ca=ca)
    api.put(SECRET_PATH, bundles.written(bundle, api.secret))
    api.publish(bundle.ca_bundle())
    found = read_status(objects, now)
    assert [what for what, _ in found.certificates] == [
        "serving certificate", "CA", "next certificate", "old certificate"
    ]  # fmt: skip
    assert (set(found.webhooks.values()), found.difference, found.problem) == ({True}, "", "")


def empty_one_ca_bundle(api):
    api.configuration["webhooks"][1]["clientConfig"]["caBundle"] = ""


def put_expired_certificate(api, self_managed):
    """Replace the Secret by one whose certificate lives 30 days and was issued 40 days ago."""
    pair = issue(NAMES, datetime.now(UTC) - 40 * DAY)
    api.publish(pair.certificate)
    if self_managed:
        api.put(SECRET_PATH, bundles.written(bundles.Bundle(pair), api.secret))
    else:
        put_foreign_secret(api, ca=pair, leaf=pair)


def put_foreign_leaf(api, names=NAMES, signer=None, key=None, **data):
    """Publish a new CA, and put a leaf into a foreign Secret: of this signer, with this key, or other data instead."""
    now = datetime.now(UTC)
    ca = issue_ca(now)
    leaf = issue_leaf(signer or ca, names, now)
    put_foreign_secret(api, ca=ca, leaf=Issued(leaf.certificate, key or leaf.key))
    api.publish(ca.certificate)
    api.secret.update(data)


OTHER_CA = issue_ca(datetime.now(UTC))
# How the installation is changed, the exit status, and words of the problem.
PROBLEMS = {
    "no problem": (lambda _: None, 0, ""),
    "no webhooks": (lambda api: api.configuration.update(webhooks=[]), 0, ""),
    "one webhook does not trust the certificate": (empty_one_ca_bundle, 1, ""),
    "damaged Secret": (lambda api: api.secret["data"].update({"tls.key": "eA=="}), 1, ""),
    "empty Secret": (lambda api: api.secret.update(data={}), 1, "is empty; the first replica fills it"),
    "missing configuration": (lambda api: api.objects.pop(CONFIGURATION_PATH), 1, ""),
    "expired certificate": (lambda api: put_expired_certificate(api, self_managed=True), 1, ""),
    "missing Secret": (lambda api: api.objects.pop(SECRET_PATH), 2, ""),
    "expired certificate in a foreign Secret": (
        lambda api: put_expired_certificate(api, self_managed=False), 1, "tls.crt: expired or not valid yet"
    ),
    "certificate of another CA": (lambda api: put_foreign_leaf(api, signer=OTHER_CA), 1, ""),
    "key of another certificate": (
        lambda api: put_foreign_leaf(api, key=OTHER_CA.key), 1, "tls.key: does not match tls.crt"
    ),
    "missing certificate": (
        lambda api: put_foreign_leaf(api, data={"x": "eA=="}), 1, "tls.crt or tls.key: contains no PEM certificate"
    ),
    "certificate for other names": (
        lambda api: put_foreign_leaf(api, ["webhook.svc", "*.svc"]), 1, f"tls.crt: lacks {NAMES[0]}, the name"
    ),
    "wildcard name": (lambda api: put_foreign_leaf(api, [f"*.{NAMES[0].partition('.')[2]}"]), 0, ""),
}  # fmt: skip


@pytest.mark.parametrize(("change", "code", "words"), PROBLEMS.values(), ids=PROBLEMS)
def test_status_reports_the_problem_and_exits_with_its_code(  # noqa: PLR0917 (columns of the table)
    api, invoke, new_replica, change, code, words
):
    new_replica()
    change(api)
    for output in ("table", "json"):
        result = invoke("status", "-o", output)
        assert (result.exit_code, bool(result.stdout)) == (code, code < 2)
    problem = json.loads(result.stdout or "{}").get("problem", "")
    assert words in problem
    assert code or not problem


@pytest.mark.parametrize(
    ("self_managed", "stored", "published", "differs"),
    [(True, "a", "ab", True), (False, "a", "ab", False), (False, "ab", "a", True), (False, "ab", "ba", False)],
    ids=["one CA too many", "an injector keeps an old CA", "a CA is not published", "another order"],
)
def test_status_names_the_webhooks_whose_ca_bundle_differs_from_the_secret(  # noqa: PLR0917 (columns of the table)
    api, invoke, self_managed, stored, published, differs
):
    now = datetime.now(UTC)
    cas = {name: issue_ca(now) for name in "ab"}
    pem = {name: ca.certificate for name, ca in cas.items()}
    leaf = issue_leaf(cas["a"], NAMES, now)
    if self_managed:
        api.put(SECRET_PATH, bundles.written(bundles.Bundle(leaf, ca=cas["a"]), api.secret))
    else:
        put_foreign_secret(api, ca=Issued(b"".join(map(pem.get, stored)), cas["a"].key), leaf=leaf)
    api.publish(b"".join(map(pem.get, published)))
    result = invoke("status")
    webhooks = "vms.kubevirt-scheduler, share-managers.kubevirt-scheduler"
    problem = f"Problem: the caBundle of {webhooks} differs from ca.crt in the Secret; "
    assert (result.exit_code, problem in result.stdout) == (int(differs), differs)
    assert bool(json.loads(invoke("status", "-o", "json").stdout)["difference"]) is differs


def test_status_shows_a_foreign_secret_without_a_next_step(api, invoke):
    now = datetime.now(UTC)
    ca = issue_ca(now)
    commented = Issued(b"subject=/CN=ours\n" + ca.certificate, ca.key)
    put_foreign_secret(api, ca=commented, leaf=issue_leaf(ca, ["a.example", *NAMES], now))
    api.publish(ca.certificate)
    shown = invoke("status").stdout
    assert "a.example" in shown
    assert "Next" not in shown
    assert "Problem" not in shown


def test_a_certificate_is_trusted_through_its_intermediate_cas(api, objects, tmp_path):
    now = datetime.now(UTC)
    root = issue_ca(now)
    intermediate_ca = issue_client(root, "between", is_ca=True)
    leaf, others = issue_leaf(intermediate_ca, NAMES, now), (issue_ca(now).certificate, intermediate_ca.certificate)
    chain = b"".join((leaf.certificate, *others))
    put_foreign_secret(api, ca=root, leaf=Issued(chain, leaf.key))
    api.publish(root.certificate)
    found = read_status(objects, now)
    assert set(found.webhooks.values()) == {True}
    assert [what for what, _ in found.certificates] == ["serving certificate", *["intermediate CA"] * 2, "CA"]
    for served, trusted in ((chain, True), (leaf.certificate, False), (leaf.certificate + others[0], False)):
        tmp_path.joinpath("tls.crt").write_bytes(served)
        assert bool(Folder(tmp_path).trust_anchor_in(root.certificate)) is trusted


OVERDUE = {
    "not due": (20 * DAY - timedelta(seconds=1), "", True),
    "due, but not overdue": (20 * DAY + timedelta(minutes=4), "", True),
    "overdue": (
        20 * DAY + timedelta(minutes=6),
        "step start is overdue (a third of the certificate's lifetime is left);",
        True,
    ),
    "expired certificate": (30 * DAY, "step start is overdue (the certificate has expired);", False),
    "not yet valid": (-61 * DAY, "step start is overdue (the certificate is not valid yet", False),
}


@pytest.mark.parametrize(("later", "problem", "trusted"), OVERDUE.values(), ids=OVERDUE)
def test_status_reports_an_overdue_step(objects, new_replica, later, problem, trusted):
    new_replica(CertificateClock())
    found = read_status(objects, START + later)
    assert problem in found.problem
    assert bool(found.problem) is bool(problem)
    assert set(found.webhooks.values()) == {trusted}


# One-line errors


def test_each_command_reports_a_missing_secret_in_one_line(api, invoke):
    del api.objects[SECRET_PATH]
    for command in ("status", "renew"):
        result = invoke(command)
        assert result.exit_code == 2
        assert result.stderr == f"Error: Secret {NAMESPACE}/{NAME} not found; helm upgrade creates it\n"


def test_renew_does_not_write_a_foreign_secret(api, invoke):
    put_foreign_leaf(api)
    result = invoke("renew", "--yes")
    assert result.exit_code == 2
    assert "the webhook does not overwrite it" in result.stderr
    api.secret["data"] = {}
    assert "is empty; the first replica fills it" in invoke("renew", "--yes").stderr
    assert api.writes == []


# Renew


def test_a_forced_step_is_retried_after_a_conflict(api, objects, new_replica):
    new_replica(CertificateClock())
    api.fail_before = {len(api.calls) + 2: ApiError(409, "no")}
    waits = []
    before = bundles.read(api.secret)
    started = force(objects, start, CertificateClock(), waits.append).bundle
    assert started == bundles.read(api.secret) != before
    assert started == replace(before, next=started.next)
    assert len(waits) == 1
    pauses = iter(range(100))
    api.on_request = lambda method, _: api.put(SECRET_PATH, api.secret) if method == "PUT" else None
    with pytest.raises(CertificateError, match=f"^another client has changed Secret .*, {MAX_TRIES} times in a row; "):
        force(objects, start, CertificateClock(), lambda _: next(pauses))


def stored_pairs(api):
    """The certificates whose keys are in the Secret."""
    found = bundles.read(api.secret)
    return {one.certificate for one in (found.serving, found.next) if one}


def planned_steps(result):
    return [line.split("  ")[1].partition(":")[0] for line in result.stdout.splitlines()]


def test_renew_prints_each_step_and_only_with_yes_takes_the_first_one(api, invoke, new_replica):
    new_replica()
    before, writes = stored_pairs(api), len(api.writes)
    planned = invoke("renew")
    assert planned_steps(planned) == ["start", "renew", "drop"]
    assert (planned.stderr, len(api.writes)) == (f"{DRY_RUN}\n", writes)
    for _ in range(2):  # the second call finds the renewal that the first one began
        begun = invoke("renew", "--yes")
        assert planned_steps(begun)[-2:] == ["renew", "drop"]
        assert begun.stderr == ""
        renewing = stored_pairs(api)
        assert before < renewing
        assert api.ca_bundles() == [api.data()["ca.crt"]] * 2
    assert stored_pairs(api) == renewing
    assert len(api.writes) == writes + 2


def clock_wait(clock):
    return lambda seconds: clock.advance(timedelta(seconds=seconds))


def test_renew_with_drop_old_replaces_every_pair_whose_key_was_in_the_secret_within_a_minute(
    api, objects, invoke, new_replica
):
    clock = CertificateClock()
    replica = new_replica(clock)
    force(objects, start, clock, lambda _: None)
    replica.run_pass()
    clock.advance(timedelta(minutes=5))
    compromised = stored_pairs(api)
    assert len(compromised) == 2
    assert planned_steps(invoke("renew", "--drop-old")) == ["start", "drop"]
    write = len(api.calls) + 2

    def serve_before_the_command_writes(*_):
        if len(api.calls) == write:
            api.on_request = lambda *_: None  # not again for the requests of this pass
            replica.run_pass()

    api.on_request = serve_before_the_command_writes
    force(objects, drop_old, clock, clock_wait(clock))
    assert (replica.steps[Step.RENEW], replica.failures.total()) == (1, 0)
    for wait in (0, 0, 60):
        clock.advance(timedelta(seconds=wait))
        replica.run_pass()
    assert not compromised & {*split(api.ca_bundles()[0]), *stored_pairs(api)}
    assert replica._served.pair().certificate == api.ca_bundles()[0]


def test_renew_needs_a_configuration_and_warns_if_the_next_certificate_is_not_published_there(api, invoke, new_replica):
    new_replica()
    writes, configuration = len(api.writes), api.objects.pop(CONFIGURATION_PATH)
    refused = invoke("renew", "--yes")
    assert (refused.exit_code, len(api.writes)) == (2, writes)
    assert "MutatingWebhookConfiguration kubevirt-scheduler not found" in refused.stderr
    api.put(CONFIGURATION_PATH, configuration)
    api.fail_before = {len(api.calls) + 5: ApiError(500, "etcd is down")}
    warned = invoke("renew", "--yes")
    assert (warned.exit_code, api.fail_before) == (0, {})
    assert warned.stderr.startswith("Warning: MutatingWebhookConfiguration kubevirt-scheduler: the request to the API")


def test_a_replica_that_publishes_the_next_certificate_before_the_command_is_no_problem(api, invoke, new_replica):
    replica, before = new_replica(), api.ca_bundles()
    api.fail_before = {len(api.calls) + 5: ApiError(409, "no")}
    renewed = invoke("renew", "--yes")
    assert (renewed.exit_code, renewed.stderr, api.fail_before, api.ca_bundles()) == (0, "", {}, before)
    replica.run_pass()
    assert stored_pairs(api) <= {*split(api.ca_bundles()[0])} > {*split(before[0])}


# The pages docs/guides/certificates.md and docs/development/certificates.md


@pytest.mark.parametrize("seconds", [0, TIMEOUT], ids=["connection refused", "no response"])
def test_the_alert_ignores_a_restart_of_the_api_server_but_not_15_minutes_of_failures(api, new_replica, seconds):
    limit = re.findall(r'failures_total\{.*cause!=\\"conflict\\"\}\[15m\]\)\) > (\d+)', RULES)
    replica, spent, failures = new_replica(CertificateClock()), [], []

    def cut(_method, _path):
        spent.append(seconds)
        api.fail_before[len(api.calls)] = ApiError(0, "cut")

    api.on_request = cut
    for moment in (30, 900, 1800):
        while sum(spent) < moment:
            spent.append(replica.run_pass())
        failures.append(replica.failures.total())
    assert failures[0] < int(*limit) < failures[2] - failures[1]
    [churning] = re.findall(r'steps_total\{.*step=~\\"([^"\\]+)\\"', RULES)
    assert set(churning.split("|")) <= set(Step)
