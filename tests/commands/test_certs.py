"""`certs status`, `renew`, `rotate-ca`: through HTTP and the real client; the long waits by a clock that is turned."""

import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from certs import bundle as bundles
from certs.authority import Issued, issue_ca, issue_leaf, read, signed_by, split
from certs.by_hand import planned, renew, rotate
from certs.cluster import TIMEOUT, ApiError, Cause, CertificateError, CertificateObjects
from certs.folder import issuer
from certs.health import status
from certs.renewal import LEFT, Policy, Step
from certs.rotate import CertificateController
from tests.support.fake_certificate_cluster import (
    CONFIGURATION,
    CONFIGURATION_PATH,
    NAME,
    NAMES,
    NAMESPACE,
    SECRET_PATH,
    START,
    Clock,
    Crash,
    TwoObjects,
)
from tests.support.paths import CHART, DOCS
from webhook.cli import commands

PAGE = (DOCS / "certificates.md").read_text(encoding="utf-8")
RULES = (CHART / "templates" / "prometheusrule.yaml").read_text()
PROGRAM = Path(sys.executable).with_name("kubevirt-scheduler")
POLICY = Policy()
DAY = timedelta(days=1)


class Http(BaseHTTPRequestHandler):
    """The two objects over HTTP, with the API server's way to refuse."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        with self.server.lock:
            try:
                if self.command == "GET":
                    body = self.server.api.get(self.path, 5)
                else:
                    content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                    body = json.dumps(self.server.api.send(self.command, self.path, content, 5)).encode()
            except ApiError as error:
                return self.answer(error.code, self.status(error.code, str(error)))
        return self.answer(200, body) if body else self.answer(404, self.status(404, "not found"))

    do_PUT = do_GET  # noqa: N815 (the base class' way to name a method)

    def status(self, code, message):
        return json.dumps({"kind": "Status", "status": "Failure", "message": message, "code": code}).encode()

    def answer(self, code, body):
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Say nothing."""


@pytest.fixture
def api():
    return TwoObjects()


@pytest.fixture
def place(api):
    return CertificateObjects(api, (NAMESPACE, NAME), CONFIGURATION)


@pytest.fixture
def kubeconfig(api, tmp_path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Http)
    server.api, server.lock = api, threading.Lock()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    file = tmp_path / "kubeconfig"
    named = {
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
    }
    file.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", "current-context": "x"} | named))
    yield str(file)
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def keeper(api, tmp_path):
    """Makes a replica that has filled the Secret; by default at the real time, which the commands go by."""

    def make(now=lambda: datetime.now(UTC)):
        keeper = CertificateController(
            api, secret=(NAMESPACE, NAME), configuration=CONFIGURATION, policy=Policy(NAMES), folder=tmp_path, now=now
        )
        keeper.run_pass()
        return keeper

    return make


@pytest.fixture
def invoked(kubeconfig):
    def invoke(*arguments):
        result = CliRunner(env={"COLUMNS": "140"}).invoke(
            commands, ["certs", *arguments, "--kubeconfig", kubeconfig], catch_exceptions=False
        )
        assert result.exit_code in (0, 1) or len(result.stderr.splitlines()) == 1
        return result

    return invoke


def put(api, **data):
    """Somebody else's Secret."""
    found = bundles.written(bundles.Bundle(data["ca"], data["leaf"]), api.secret)
    found["metadata"]["annotations"] = {}
    for field in ("ca.key", "state.json"):
        del found["data"][field]
    api.put(SECRET_PATH, found)


# Status


def test_status_shows_the_certificates_what_comes_next_and_who_trusts_them(invoked, keeper):
    keeper()
    shown = invoked("status").stdout
    assert f"Secret {NAMESPACE}/{NAME}" in shown
    for words in ("CN=kubevirt-scheduler CA", *NAMES, "30.0", "365.0", "as in the Secret"):
        assert words in shown
    assert "Next: renew, a third of the certificate's life is left: " in shown
    assert "Problem" not in shown


def test_status_for_programs_says_the_same(api, invoked, keeper):
    keeper()
    api.configuration["webhooks"][1]["clientConfig"]["caBundle"] = ""
    found = json.loads(invoked("status", "-o", "json").stdout)
    leaf, ca = found["certificates"]
    assert (leaf["what"], leaf["names"], leaf["daysLeft"]) == ("serving certificate", list(NAMES), 30.0)
    assert (ca["what"], ca["daysLeft"], found["problem"]) == ("CA", 365.0, "")
    assert found["next"]["step"] == "renew"
    assert found["webhooks"] == [
        {"name": "vms.kubevirt-scheduler", "caBundle": "as in the Secret", "trusted": True},
        {"name": "share-managers.kubevirt-scheduler", "caBundle": "empty", "trusted": False},
    ]


def empty_one(api):
    api.configuration["webhooks"][1]["clientConfig"]["caBundle"] = ""


def expired(api, ours):
    """A certificate of 30 days, issued 40 days ago."""
    then = datetime.now(UTC) - 40 * DAY
    ca = issue_ca(then)
    leaf = issue_leaf(ca, NAMES, then)
    api.publish(ca.certificate)
    if ours:
        api.put(SECRET_PATH, bundles.written(bundles.Bundle(ca, leaf), api.secret))
    else:
        put(api, ca=ca, leaf=leaf)


STATUSES = {
    "all is well": (lambda _: None, 0),
    "nobody is to be called": (lambda api: api.configuration.update(webhooks=[]), 0),
    "one webhook does not trust it": (empty_one, 1),
    "a problem: damaged": (lambda api: api.secret["data"].update({"tls.key": "eA=="}), 1),
    "a problem: no configuration": (lambda api: api.objects.pop(CONFIGURATION_PATH), 1),
    "a problem: it has expired": (lambda api: expired(api, ours=True), 1),
    "a problem: somebody else's has expired": (lambda api: expired(api, ours=False), 1),
    "no Secret": (lambda api: api.objects.pop(SECRET_PATH), 2),
}


@pytest.mark.parametrize(("change", "code"), STATUSES.values(), ids=STATUSES)
def test_the_exit_status_says_whether_all_is_well(api, invoked, keeper, change, code):
    keeper()
    change(api)
    for output in ("table", "json"):
        result = invoked("status", "-o", output)
        assert result.exit_code == code
        assert bool(result.stdout) is (code < 2)


def test_the_exit_status_is_described():
    told = CliRunner().invoke(commands, ["certs", "status", "--help"]).stdout
    assert re.findall(r"^ +(\d)  \w", told, re.MULTILINE) == ["0", "1", "2"]
    assert "The exit status of `certs status` is 1 where" in PAGE


def test_status_shows_no_key(api, invoked, keeper):
    keeper()
    for output in ("table", "json"):
        shown = invoked("status", "-o", output).stdout
        assert "PRIVATE" not in shown
        assert api.secret["data"]["tls.key"] not in shown


def test_status_of_somebody_elses_secret(api, invoked):
    now = datetime.now(UTC)
    ca = issue_ca(now)
    put(api, ca=ca, leaf=issue_leaf(ca, ["[red]a.example[/]", *NAMES], now))
    api.publish(ca.certificate + issue_ca(now).certificate)
    shown = invoked("status").stdout
    assert "[red]a.example[/]" in shown
    assert "not as in the Secret" in shown
    assert "Next" not in shown
    assert "Problem" not in shown


def test_status_compares_certificates_and_not_what_else_a_file_holds(api, place):
    ca = issue_ca(START)
    put(api, ca=Issued(b"subject=/CN=ours\n" + ca.certificate, ca.key), leaf=issue_leaf(ca, NAMES, START))
    for published, same in ((ca.certificate, "as in the Secret"), (b"garbage", "not as in the Secret")):
        api.publish(published)
        assert {seen for seen, _ in status(place, START, POLICY).webhooks.values()} == {same}


def intermediate(root, now):
    """A CA under another, and the certificate of each."""
    key, parsed = load_pem_private_key(root.key, None), x509.load_pem_x509_certificate(root.certificate)
    own = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "between")])
    builder = x509.CertificateBuilder(parsed.subject, name, own.public_key(), 7, now - DAY, now + DAY)
    signed = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True).sign(key, SHA256())
    private = own.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Issued(signed.public_bytes(Encoding.PEM), private)


def test_a_certificate_is_trusted_by_way_of_those_that_follow_it(api, place, tmp_path):
    root = issue_ca(START)
    between = intermediate(root, START)
    leaf, others = issue_leaf(between, NAMES, START), (issue_ca(START).certificate, between.certificate)
    chain = b"".join((leaf.certificate, *others))
    put(api, ca=root, leaf=Issued(chain, leaf.key))
    api.publish(root.certificate)
    found = status(place, START, POLICY)
    assert {trusts for _, trusts in found.webhooks.values()} == {True}
    assert [what for what, _ in found.certificates] == ["serving certificate", *["intermediate CA"] * 2, "CA"]
    for served, trusted in ((chain, True), (leaf.certificate, False), (leaf.certificate + others[0], False)):
        tmp_path.joinpath("tls.crt").write_bytes(served)
        assert bool(issuer(tmp_path, root.certificate)) is trusted


def test_status_of_a_rotation(place, keeper):
    clock = Clock()
    keeper(clock)
    list(rotate(place, POLICY, clock, clock_turner(clock), drop_old=False))
    found = status(place, clock(), POLICY)
    assert [what for what, _ in found.certificates] == ["serving certificate", "CA", "leaving CA"]
    assert found.next.step is Step.RENEW


PROBLEMS = {
    "an empty Secret": (lambda _: None, "it is empty; the first replica fills it"),
    "a key of another": (
        lambda api: put(api, ca=issue_ca(START), leaf=issue_leaf_with_another_key()),
        "tls.key: is not the key of tls.crt",
    ),
    "no certificate": (lambda api: api.secret.update(data={"x": "eA=="}), "tls.crt or tls.key: holds no certificate"),
    "no configuration": (lambda api: api.objects.pop(CONFIGURATION_PATH), "there is no MutatingWebhookConfiguration"),
    "other names": (lambda api: named(api, "webhook.svc", "*.svc"), f"tls.crt: is not for {NAMES[0]}, by which"),
    "another's that has expired": (lambda api: expired(api, ours=False), "tls.crt: has expired, or is not valid yet"),
}


def named(api, *names):
    ca = issue_ca(START)
    put(api, ca=ca, leaf=issue_leaf(ca, names, START))


def issue_leaf_with_another_key():
    ca = issue_ca(START)
    return type(ca)(issue_leaf(ca, NAMES, START).certificate, ca.key)


def test_the_page_ends_with_the_problem(invoked):
    assert invoked("status").stdout.replace("\n", " ").endswith("it is empty; the first replica fills it ")


@pytest.mark.parametrize(("change", "problem"), PROBLEMS.values(), ids=PROBLEMS)
def test_status_tells_the_problem(api, place, change, problem):
    change(api)
    assert problem in status(place, START, POLICY).problem


def test_a_name_may_stand_for_many(api, place):
    named(api, f"*.{NAMES[0].partition('.')[2]}")
    assert status(place, START, POLICY).problem == ""


def test_one_problem_does_not_hide_the_other(api, place):
    del api.objects[CONFIGURATION_PATH]
    problem = status(place, START, POLICY).problem
    assert "there is no MutatingWebhookConfiguration" in problem
    assert "it is empty; the first replica fills it" in problem


NEGLECTED = {
    "it is not due": (20 * DAY - timedelta(seconds=1), "", True),
    "it has just been due": (20 * DAY + timedelta(minutes=4), "", True),
    "it is due": (20 * DAY + timedelta(minutes=6), "due: renew, a third of the certificate's life is left;", True),
    "it is over": (30 * DAY, "due: renew, the certificate has expired;", False),
    "its CA is over as well": (365 * DAY, "due: start, the CA has expired;", False),
    "it is not valid yet": (-DAY, "due: start, the CA is not valid yet", False),
}


@pytest.mark.parametrize(("later", "problem", "trusted"), NEGLECTED.values(), ids=NEGLECTED)
def test_status_tells_that_no_replica_does_what_is_due(place, keeper, later, problem, trusted):
    keeper(Clock())
    found = status(place, START + later, POLICY)
    assert problem in found.problem
    assert bool(found.problem) is bool(problem)
    assert {trusts for _, trusts in found.webhooks.values()} == {trusted}


def test_a_ca_that_signs_later_than_we_think_is_no_problem_for_a_day(place, keeper):
    clock = Clock()
    keeper(clock)
    steps = rotate(place, POLICY, clock, clock_turner(clock), drop_old=False)
    assert [next(steps).partition(":")[0] for _ in range(2)] == ["introduce", "published"]
    found = status(place, clock() + timedelta(hours=23), POLICY)
    assert (found.next.step, found.problem) == (Step.SIGN, "")
    found = status(place, clock() + timedelta(hours=25), POLICY)
    assert found.problem.startswith("no replica has done what is due: sign, ")


def test_by_a_ca_that_has_expired_nothing_is_trusted_and_by_its_successor_with_the_same_key_it_is(api, place):
    ca = issue_ca(START)
    put(api, ca=ca, leaf=issue_leaf(ca, NAMES, START))
    key, parsed = load_pem_private_key(ca.key, None), x509.load_pem_x509_certificate(ca.certificate)
    builder = x509.CertificateBuilder(parsed.subject, parsed.subject, key.public_key(), 7, START - DAY, START)
    short = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True).sign(key, SHA256())
    old = short.public_bytes(Encoding.PEM)
    for published, trusted in ((old, False), (old + ca.certificate, True)):
        api.publish(published)
        assert {trusts for _, trusts in status(place, START, POLICY).webhooks.values()} == {trusted}


def test_a_ca_bundle_that_is_garbage_is_trusted_by_nobody(api, place, keeper):
    keeper(Clock())
    api.publish(b"garbage")
    assert set(status(place, START, POLICY).webhooks.values()) == {("not as in the Secret", False)}


# Refusals, each one line


def test_what_is_refused_is_told_in_one_line(api, invoked):
    del api.objects[SECRET_PATH]
    for command in (["status"], ["renew"], ["rotate-ca"], ["rotate-ca", "--dry-run"]):
        result = invoked(*command)
        assert result.exit_code == 2
        assert result.stderr == f"Error: there is no Secret {NAMESPACE}/{NAME}; helm upgrade makes it\n"


def test_a_command_does_not_say_that_it_asks_again(api, invoked):
    api.between = lambda _method, _path: api.before.update({len(api.calls): ApiError(500, "no")})
    assert invoked("status").stderr.endswith(": the API server does not answer as it should: no\n")


@pytest.mark.parametrize("command", ["renew", "rotate-ca"])
def test_nothing_is_done_to_somebody_elses_secret(api, invoked, command):
    ca = issue_ca(START)
    put(api, ca=ca, leaf=issue_leaf(ca, NAMES, START))
    result = invoked(command)
    assert result.exit_code == 2
    assert "so it is left as it is" in result.stderr
    assert api.writes == []


def test_nothing_is_done_to_an_empty_secret(api, invoked):
    assert "it is empty; the first replica fills it" in invoked("renew").stderr
    assert api.writes == []


@pytest.mark.parametrize("secret", ["x", "/x", "x/", "a/b/c", ""])
def test_a_secret_is_named_with_its_namespace(kubeconfig, secret):
    result = CliRunner().invoke(commands, ["certs", "status", "--kubeconfig", kubeconfig, "--secret", secret])
    assert result.exit_code == 2
    assert "is not NAMESPACE/NAME" in result.stderr


def test_a_kubeconfig_that_is_not_there_is_told():
    result = CliRunner().invoke(commands, ["certs", "status", "--kubeconfig", "nowhere"])
    assert result.exit_code == 2
    assert result.stderr.endswith("; give --kubeconfig FILE\n")


def test_nothing_is_done_to_a_secret_that_is_emptied_at_that_moment(api, place, keeper):
    keeper(Clock())
    at = len(api.calls) + 2

    def empty(_method, _path):
        if len(api.calls) == at:
            api.secret["data"] = {}

    api.between = empty
    with pytest.raises(CertificateError, match="the first replica fills it"):
        renew(place, POLICY, Clock(), clock_turner(Clock()))


# Renew


def test_renew_issues_a_new_leaf_under_the_same_ca(api, invoked, keeper):
    replica = keeper()
    before, published = api.data()["tls.crt"], api.ca_bundles()
    assert invoked("renew").stdout.startswith(f"a new serving certificate is in Secret {NAMESPACE}/{NAME}; it ends on ")
    after = api.data()["tls.crt"]
    assert after != before
    assert read(after).names == NAMES
    assert api.ca_bundles() == published
    replica.run_pass()
    assert replica._folder.joinpath("tls.crt").read_bytes() == after


def test_renew_warns_where_the_configuration_can_not_be_read(api, invoked, keeper):
    keeper()
    del api.objects[CONFIGURATION_PATH]
    result = invoked("renew")
    assert result.exit_code == 0
    assert result.stderr.startswith("Warning: there is no MutatingWebhookConfiguration")


def test_renew_tries_again_when_a_replica_is_faster(api, place, keeper):
    keeper(Clock())
    api.before = {len(api.calls) + 3: ApiError(409, "no")}
    waits = []
    assert renew(place, POLICY, Clock(), waits.append).step.step is Step.RENEW
    assert len(waits) == 1


def test_renew_first_lets_a_wait_begin_anew(api, place, keeper):
    clock = Clock()
    keeper(clock)
    steps = rotate(place, POLICY, clock, clock_turner(clock), drop_old=False)
    assert [next(steps).partition(":")[0] for _ in range(2)] == ["introduce", "published"]
    api.publish(b"")
    assert renew(place, POLICY, clock, clock_turner(clock)).step.step is Step.RENEW
    assert bundles.read(api.secret).published is None


# Rotate


def clock_turner(clock):
    return lambda seconds: clock.turn(timedelta(seconds=seconds))


def test_a_rotation_tells_each_step_and_its_wait_and_ends_when_the_new_ca_signs(api, place, keeper):
    clock = Clock()
    keeper(clock)
    old = api.ca_bundles()[0]
    lines = list(rotate(place, POLICY, clock, clock_turner(clock), drop_old=False))
    assert [line.partition(":")[0] for line in lines] == [
        "introduce",
        "published",
        "waiting for sign until 2026-11-21 12",
        "sign",
        "trusted until 2026-12-21 12",
    ]
    assert clock() - START == timedelta(minutes=5)
    assert len(split(api.ca_bundles()[0])) == 2
    assert not signed_by(api.data()["tls.crt"], old)


def test_with_drop_old_it_ends_when_the_old_ca_is_trusted_no_more(api, place, keeper):
    clock = Clock()
    keeper(clock)
    old = api.ca_bundles()[0]
    lines = list(rotate(place, POLICY, clock, clock_turner(clock), drop_old=True))
    assert [line.partition(":")[0].split(" until")[0] for line in lines] == [
        "introduce",
        "hurry",
        "published",
        "waiting for sign",
        "sign",
        "waiting for drop",
        "drop",
    ]
    assert clock() - START == timedelta(minutes=6)
    assert len(split(api.ca_bundles()[0])) == 1
    assert api.ca_bundles()[0] != old


def begun(place, clock):
    """Has a rotation introduce its CA and be broken off."""
    steps = rotate(place, POLICY, clock, clock_turner(clock), drop_old=False)
    assert [next(steps).partition(":")[0] for _ in range(2)] == ["introduce", "published"]


def kept(api):
    """The certificates of the CAs whose keys are in the Secret."""
    found = bundles.read(api.secret)
    return {one.certificate for one in (found.authority, found.next_ca) if one}


@pytest.mark.parametrize("call", [None, *range(6)])
def test_with_drop_old_neither_ca_whose_key_was_in_the_secret_is_trusted_in_the_end(api, place, keeper, call):
    clock = Clock()
    replica = keeper(clock)
    begun(place, clock)
    clock.turn(POLICY.spread)
    stolen, at = kept(api), len(api.calls) + (call or 0)

    def sign(_method, _path):
        if len(api.calls) == at:
            api.between = lambda _method, _path: None
            replica.run_pass()

    if call is not None:
        api.between = sign
    began = clock()
    lines = list(rotate(place, POLICY, clock, clock_turner(clock), drop_old=True))
    assert len(stolen) == 2
    assert not stolen & {*split(api.ca_bundles()[0]), *kept(api)}
    assert clock() - began <= timedelta(minutes=6, seconds=10)
    assert lines[-1].startswith("drop: ")
    replica.run_pass()
    assert signed_by(replica._folder.joinpath("tls.crt").read_bytes(), api.ca_bundles()[0])


def test_without_drop_old_the_coming_ca_that_is_there_is_taken(api, place, keeper):
    clock = Clock()
    keeper(clock)
    begun(place, clock)
    both = kept(api)
    list(rotate(place, POLICY, clock, clock_turner(clock), drop_old=False))
    assert kept(api) < both


def test_a_hurried_rotation_that_was_broken_off_goes_on_with_the_ca_that_it_made(api, place, keeper):
    clock = Clock()
    keeper(clock)
    begun(place, clock)
    hurried = rotate(place, POLICY, clock, clock_turner(clock), drop_old=True)
    assert next(hurried).startswith("replace: ")
    next_ca = bundles.read(api.secret).next_ca
    told = [line.partition(":")[0] for line in rotate(place, POLICY, clock, clock_turner(clock), drop_old=True)]
    assert "replace" not in told
    assert "introduce" not in told
    assert bundles.read(api.secret).authority == next_ca


def test_a_dry_run_tells_that_a_coming_ca_is_replaced(place, keeper):
    clock = Clock()
    keeper(clock)
    begun(place, clock)
    plan = [step.step for step in planned(place, clock(), POLICY, drop_old=True)]
    assert plan == [Step.REPLACE, Step.PUBLISHED, Step.SIGN, Step.DROP]
    lines = rotate(place, POLICY, clock, clock_turner(clock), drop_old=True)
    assert [line.partition(":")[0] for line in lines if not line.startswith("waiting")] == plan


@pytest.mark.parametrize("drop_old", [False, True])
def test_a_dry_run_tells_what_a_rotation_then_does_and_writes_nothing(api, place, keeper, drop_old):
    keeper(Clock())
    writes = len(api.writes)
    plan = planned(place, START, POLICY, drop_old=drop_old)
    assert len(api.writes) == writes
    clock = Clock()
    lines = rotate(place, POLICY, clock, clock_turner(clock), drop_old=drop_old)
    told = [(line.partition(":")[0], clock()) for line in lines]
    done = [(step, time) for step, time in told if step in list(Step)]
    assert [(step.step, step.due) for step in plan][: len(done)] == done
    assert (plan[-1].step, plan[-1].due) == (Step.DROP, START + (timedelta(minutes=6) if drop_old else 30 * DAY))


@pytest.mark.parametrize("call", range(22))
def test_a_rotation_that_is_interrupted_is_finished_by_the_next_call(api, place, keeper, call):
    clock = Clock()
    keeper(clock)
    old = api.ca_bundles()[0]
    api.before = {len(api.calls) + call: Crash()}
    with suppress(Crash):
        list(rotate(place, POLICY, clock, clock_turner(clock), drop_old=True))
    found = bundles.read(api.secret)
    if found.authority.certificate == old:
        list(rotate(place, POLICY, clock, clock_turner(clock), drop_old=True))
    clock.turn(timedelta(minutes=1))
    replica = keeper(clock)  # or by a replica
    assert api.ca_bundles() == [api.data()["ca.crt"]] * 2
    assert len(split(api.ca_bundles()[0])) == 1
    assert api.ca_bundles()[0] != old
    assert replica.problem == ""


def test_a_rotation_that_a_replica_began_is_gone_on_with(api, place, keeper):
    clock = Clock()
    replica = keeper(clock)
    clock.turn(244 * DAY)
    replica.run_pass()
    replica.run_pass()
    next_ca = bundles.read(api.secret).next_ca
    list(rotate(place, POLICY, clock, clock_turner(clock), drop_old=False))
    assert bundles.read(api.secret).authority == next_ca


@pytest.mark.parametrize("call", range(4))
def test_with_drop_old_it_does_not_wait_for_weeks_where_a_replica_signs_at_that_moment(api, place, keeper, call):
    clock = Clock()
    replica = keeper(clock)
    old = api.ca_bundles()[0]
    steps = rotate(place, POLICY, clock, clock_turner(clock), drop_old=False)
    assert [next(steps).partition(":")[0] for _ in range(2)] == ["introduce", "published"]
    clock.turn(POLICY.spread)
    due, at = clock(), len(api.calls) + call

    def between(_method, _path):
        if len(api.calls) == at:
            api.between = lambda _method, _path: None
            replica.run_pass()

    def wait(seconds):
        clock.turn(timedelta(seconds=seconds))
        assert clock() - due <= 2 * POLICY.spread

    api.between = between
    list(rotate(place, POLICY, clock, wait, drop_old=True))
    assert old not in api.ca_bundles()[0]


@pytest.mark.parametrize("drop_old", [False, True])
def test_where_a_replica_is_faster_it_ends_and_tells_nothing_of_what_comes_weeks_later(place, keeper, drop_old):
    clock = Clock()
    replica = keeper(clock)

    def wait(seconds):
        clock.turn(timedelta(seconds=seconds))
        replica.run_pass()

    lines = list(rotate(place, POLICY, clock, wait, drop_old=drop_old))
    assert replica.steps[Step.DROP if drop_old else Step.SIGN] == 1
    assert [line for line in lines if "renew" in line] == []


def test_a_rotation_goes_on_after_lost_races_and_ends_at_what_is_forbidden(api, place, keeper):
    clock = Clock()
    keeper(clock)
    first = len(api.calls)
    api.before = {first + 3: ApiError(409, "no"), first + 7: ApiError(409, "no"), first + 12: ApiError(403, "no")}
    with pytest.raises(CertificateError) as caught:
        list(rotate(place, POLICY, clock, clock_turner(clock), drop_old=False))
    assert caught.value.cause is Cause.FORBIDDEN
    list(rotate(place, POLICY, clock, clock_turner(clock), drop_old=False))
    assert not bundles.read(api.secret).next_ca


@pytest.mark.parametrize("away", range(1, 12))
def test_a_rotation_outlives_a_restart_of_the_api_server(api, place, keeper, away):
    clock = Clock()
    keeper(clock)
    old = api.ca_bundles()[0]
    first = len(api.calls) + 1  # after the first look
    api.before = {call: ApiError(0, "cut") for call in range(first + away, first + away + 12)}
    list(rotate(place, POLICY, clock, clock_turner(clock), drop_old=True))
    assert not api.before
    assert old not in api.ca_bundles()[0]
    assert clock() - START < timedelta(minutes=8)


def test_a_rotation_does_not_wait_for_ever_for_an_api_server(api, place, keeper):
    clock = Clock()
    keeper(clock)
    api.between = lambda _method, _path: api.before.update(
        {len(api.calls): ApiError(0, "cut")} if api.writes[2:] else {}
    )
    with pytest.raises(CertificateError, match="does not answer"):
        list(rotate(place, POLICY, clock, clock_turner(clock), drop_old=True))
    assert timedelta(minutes=1) <= clock() - START < timedelta(minutes=2)


def test_a_rotation_needs_its_configuration(api, place, keeper):
    keeper(Clock())
    before = api.secret
    del api.objects[CONFIGURATION_PATH]
    with pytest.raises(CertificateError, match="there is no MutatingWebhookConfiguration"):
        list(rotate(place, POLICY, Clock(), clock_turner(Clock()), drop_old=False))
    assert api.secret == before


def test_the_command_rotates(api, invoked, keeper):
    replica = keeper()
    old = api.ca_bundles()[0]
    shown = invoked("rotate-ca", "--spread", "0").stdout
    assert [line.partition(":")[0].partition(" until")[0] for line in shown.splitlines()] == [
        "introduce",
        "published",
        "sign",
        "trusted",
    ]
    replica.run_pass()
    assert not signed_by(replica._folder.joinpath("tls.crt").read_bytes(), old)


def test_the_command_tells_what_it_would_do(api, invoked, keeper):
    keeper()
    writes = len(api.writes)
    shown = invoked("rotate-ca", "--dry-run").stdout.splitlines()
    assert [line.split("  ")[1].partition(":")[0] for line in shown] == [
        "introduce",
        "published",
        "sign",
        "renew",
        "drop",
    ]
    assert len(api.writes) == writes


def test_an_interruption_is_told_and_the_rotation_stands(api, kubeconfig, keeper):
    keeper()
    # What is started in the background of a shell is deaf to it, and so are its children, until told otherwise.
    command = ["env", "--default-signal=INT", PROGRAM, "certs", "rotate-ca", "--kubeconfig", kubeconfig]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        lines = iter(process.stdout.readline, "")
        assert any(line.startswith("waiting for sign until") for line in lines)
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == "interrupted; the replicas go on from here, and so does this command\n"
    assert process.returncode == 130
    assert bundles.read(api.secret).published


# The page


def words_in(heading):
    _, _, rest = PAGE.partition(f"\n| {heading} |")
    return [row.split("|")[1].strip(" `") for row in rest.partition("\n\n")[0].splitlines()[2:]]


def test_each_cause_and_each_step_is_described_and_none_else():
    assert set(words_in("cause")) == set(Cause)
    assert set(words_in("step")) == set(Step) - {Step.NOTHING, Step.PUBLISH}  # these two do nothing


def test_each_command_of_the_page_is_one():
    for words in re.findall(r"^\$ kubevirt-scheduler (certs [^#\n]*)", PAGE, re.MULTILINE):
        assert CliRunner().invoke(commands, [*words.split(), "--help"]).exit_code == 0


@pytest.mark.parametrize("seconds", [0, TIMEOUT], ids=["it refuses at once", "it says nothing"])
def test_the_alert_sleeps_through_a_restart_of_the_api_server_and_not_through_a_quarter_of_an_hour(
    api, keeper, seconds
):
    limits = [re.findall(r'failures_total\{.*cause!="conflict"\}\[15m\]\)\) > (\d+)', text) for text in (PAGE, RULES)]
    assert limits[0] == limits[1]
    replica, spent, failures = keeper(Clock()), [], []

    def cut(_method, _path):
        spent.append(seconds)
        api.before[len(api.calls)] = ApiError(0, "cut")

    api.between = cut
    for moment in (30, 900, 1800):
        while sum(spent) < moment:
            spent.append(replica.run_pass())
        failures.append(replica.failures.total())
    assert failures[0] < int(*limits[0]) < failures[2] - failures[1]
    churning = [re.findall(r'steps_total\{.*step=~"([^"]+)"', text)[0].replace("\\", "") for text in (PAGE, RULES)]
    assert churning[0] == churning[1]
    assert set(churning[0].split("|")) <= set(Step)


@pytest.mark.parametrize("days", [30, 365])
def test_the_page_tells_when_what_is_renewed(days):
    assert f"{days} days" in PAGE
    assert f"{round(days / LEFT)} days are left" in PAGE
