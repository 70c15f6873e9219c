"""The controller: passes over a fake Secret and configuration, with races, crashes and failed requests."""

import ssl
import threading
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import permutations

import pytest

from certs import ApiError
from certs import secret as bundles
from certs.authority import issue, read, signed_by, split
from certs.cluster import CertificateObjects
from certs.controller import (
    CONFLICT_RETRY,
    MOUNT_DELAY,
    PASS_INTERVAL,
    PROPAGATION_DELAY,
    CertificateController,
    force,
)
from certs.files import Folder, InMemory
from certs.rotation import Step, apply_step, drop_old
from certs.secret import ANNOTATION, Cause
from certs.serving import ServingCertificate, load_context
from tests.certs.test_authority import handshake
from tests.support.authority import issue_ca, issue_leaf
from tests.support.fake_certificate_cluster import (
    CONFIGURATION,
    CONFIGURATION_PATH,
    NAME,
    NAMES,
    NAMESPACE,
    SECRET_PATH,
    FakeCertificateCluster,
    secret,
)
from tests.support.fake_clock import START, CertificateClock
from tests.support.log_capture import capture_logs

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
start_renewal = partial(apply_step, Step.START)
DAY, MINUTE, SECOND = timedelta(days=1), timedelta(minutes=1), timedelta(seconds=1)


@pytest.fixture
def api():
    return FakeCertificateCluster()


@pytest.fixture
def clock():
    return CertificateClock()


@pytest.fixture
def new_controller(api, clock):
    """A function that creates replicas; with a folder, their certificate is provided."""

    def make(folder=None, *, secret=(NAMESPACE, NAME), configuration=CONFIGURATION, names=NAMES):
        served = Folder(folder) if folder else InMemory()
        return CertificateController(
            api, secret=secret, configuration=configuration, names=names, served=served, now=clock
        )

    return make


def test_replicas_whose_clocks_differ_by_weeks_share_certificates_that_are_valid_for_both(api):
    """Each replaced the other's: ten certificates in 30 s, of which API servers accepted one in ten."""
    replicas = []
    for ahead in (0 * DAY, 21 * DAY):
        clock = CertificateClock(START + ahead)
        options = {"secret": (NAMESPACE, NAME), "configuration": CONFIGURATION, "names": NAMES, "served": InMemory()}
        replicas.append((CertificateController(api, **options, now=clock), clock))
    for first, second in permutations(replicas):
        api.put(SECRET_PATH, secret())
        issued = set()
        for _ in range(100):
            for controller, clock in first, second:
                controller.run_pass()
                clock.advance(3 * SECOND)
                issued.add(content(controller))
                assert all(read(content(controller)).is_valid(clock()) for _, clock in replicas)
        assert len(issued) <= 2, "they replace each other's certificates"


@pytest.fixture
def settled(new_controller):
    """A replica after its first pass."""
    controller = new_controller()
    controller.run_pass()
    return controller


def content(controller):
    """The certificate that the replica serves; empty before the first pass."""
    served = controller._served
    return served.pair().certificate if served.state() else b""


def is_trusted_by_all(controller, api):
    return all(
        any(signed_by(content(controller), ca) for ca in split(published)) if published else False
        for published in api.ca_bundles()
    )


def is_healthy(controller, api, clock):
    """Whether the served pair is usable, valid and trusted, and the controller has no problem."""
    load_context(controller._served.pair(), "the test")
    return read(content(controller)).is_valid(clock()) and is_trusted_by_all(controller, api) and not controller.problem


def run_passes(controller, count=3):
    return [controller.run_pass() for _ in range(count)]


# One replica


def test_the_first_pass_fills_the_secret_publishes_the_certificate_and_serves_it(api, clock, new_controller):
    controller, stop = new_controller(), threading.Event()
    stop.set()  # then `run` ends after the current pass
    controller.run(stop)
    assert api.writes == ["secrets", "mutatingwebhookconfigurations"]
    assert api.secret["metadata"]["annotations"][ANNOTATION] == "self"
    assert api.secret["metadata"]["labels"] == {"app.kubernetes.io/managed-by": "Helm"}
    assert api.ca_bundles() == [api.data()["ca.crt"]] * 2
    assert is_healthy(controller, api, clock)
    assert read(content(controller)).names == NAMES
    assert ServingCertificate(controller._served).expiry_times() == {"leaf": clock() + 30 * DAY}
    assert controller.steps == {Step.START: 1}
    assert not controller.failures
    assert controller._served.ca_bundle() == api.data()["ca.crt"]


def test_a_starting_replica_is_untrusted_until_the_api_servers_have_seen_its_ca(api, new_controller):
    first, second = new_controller(), new_controller()
    assert first.untrusted == "the caBundle is not read yet"
    assert first.run_pass() == PROPAGATION_DELAY
    assert first.untrusted == "API servers may not have seen the new caBundle yet"
    for controller in first, second:  # the first replica has published the CA of the second one
        assert PASS_INTERVAL * 0.8 <= controller.run_pass() <= PASS_INTERVAL * 1.2
        assert controller.untrusted == ""
    api.publish(b"")
    assert first.run_pass() > PROPAGATION_DELAY
    assert first.untrusted == ""  # unready replicas could not repair it faster


def test_a_replica_that_can_not_read_the_ca_bundle_is_not_reported_as_untrusted(api, new_controller):
    controller = new_controller()
    for code, untrusted in (409, True), (403, False):
        api.fail_before = {len(api.calls): ApiError(code, "no")}
        controller.run_pass()
        assert bool(controller.untrusted) is untrusted
    assert controller.failures[Cause.FORBIDDEN] == 1


def test_the_next_pass_without_a_conflict_repairs_an_emptied_ca_bundle(api, clock, settled):
    unchanged = api.ca_bundles()
    del api.configuration["webhooks"][1]["clientConfig"]["caBundle"]
    api.configuration["webhooks"][0]["timeoutSeconds"] = 7
    api.fail_before = {len(api.calls) + 2: ApiError(409, "no")}
    assert settled.run_pass() <= CONFLICT_RETRY
    assert (settled.repairs, settled.problem) == (0, "")
    for _ in range(2):
        settled.run_pass()
        assert api.ca_bundles() == unchanged
        assert api.configuration["webhooks"][0]["timeoutSeconds"] == 7
        assert settled.repairs == 1
    assert is_healthy(settled, api, clock)


# Rotation


def test_the_life_of_three_certificates_takes_each_step_when_it_is_due(api, clock, new_controller):
    controller = new_controller()
    for duration in (timedelta(), 21 * DAY, 5 * MINUTE, 10 * DAY, 11 * DAY, 5 * MINUTE, 10 * DAY):
        clock.advance(duration)
        run_passes(controller)
        assert is_healthy(controller, api, clock)
    assert controller.steps == {"start": 3, "renew": 2, "drop": 2}
    found = bundles.read(api.secret)
    assert (found.next, found.retiring) == (None, ())
    assert api.ca_bundles() == [found.serving.certificate] * 2


def test_the_secret_of_an_earlier_version_is_renewed_without_its_ca_and_its_certificate_stays_trusted(
    api, clock, new_controller
):
    ca = issue_ca(clock())
    leaf = issue_leaf(ca, NAMES, clock())
    api.put(SECRET_PATH, bundles.written(bundles.Bundle(leaf, ca=ca), api.secret))
    api.publish(ca.certificate)
    replicas = [new_controller() for _ in range(2)]
    for replica in replicas * 2:
        replica.run_pass()
    assert {content(replica) for replica in replicas} == {leaf.certificate}
    clock.advance(5 * MINUTE)
    for replica in replicas:
        replica.run_pass()
        assert is_healthy(replica, api, clock)
        assert content(replica) not in (leaf.certificate, ca.certificate)
    assert ca.certificate in split(api.ca_bundles()[0])
    clock.advance(30 * DAY - 5 * MINUTE)
    run_passes(replicas[0])
    assert ca.certificate not in split(api.ca_bundles()[0])
    assert ca.key not in api.data().values()


def test_handshakes_succeed_during_a_renewal_and_fail_with_the_dropped_certificate(api, settled, clock):
    clock.time = datetime.now(UTC)  # the handshake checks certificates against the real time
    certificate = ServingCertificate(settled._served)
    objects = CertificateObjects(api, (NAMESPACE, NAME), CONFIGURATION)
    published, before = [api.ca_bundles()[0]], certificate.context()
    for change, wait in ((start_renewal, 5 * MINUTE), (drop_old, MINUTE)):
        force(objects, change, clock, lambda _: None)
        for advance in (timedelta(), timedelta(), wait, timedelta(), timedelta()):
            clock.advance(advance)
            published.append(api.ca_bundles()[0])
            assert handshake(certificate.context(), published[-1], NAMES[0]) == "TLSv1.3"
            settled.run_pass()
    assert certificate.context() is not before
    assert [len(split(one)) for one in dict.fromkeys(published)] == [1, 2, 3, 1]
    with pytest.raises(ssl.SSLCertVerificationError, match=r"self-signed|signature failure"):
        handshake(certificate.context(), published[0], NAMES[0])


def test_an_unreadable_configuration_leaves_the_wait_but_the_next_certificate_is_not_served(api, clock, settled):
    force(CertificateObjects(api, (NAMESPACE, NAME), CONFIGURATION), start_renewal, clock, lambda _: None)
    settled.run_pass()
    renewing = bundles.read(api.secret)
    clock.advance(5 * MINUTE)
    api.fail_before = {len(api.calls): ApiError(0, "no")}
    settled.run_pass()
    assert bundles.read(api.secret) == renewing
    settled.run_pass()
    assert bundles.read(api.secret).serving == renewing.next


# Damaged Secrets and failed requests


def make_secret_foreign(api):
    found = bundles.written(bundles.Bundle(issue(NAMES, CertificateClock()())), api.secret)
    found["metadata"]["annotations"] = {"cert-manager.io/certificate-name": "x"}
    api.put(SECRET_PATH, found)


def test_a_foreign_secret_is_not_written_and_logs_one_warning(api, new_controller):
    make_secret_foreign(api)
    controller = new_controller()
    with capture_logs() as lines:
        run_passes(controller)
    assert api.writes == []
    assert controller.failures == {Cause.FOREIGN: 3}
    assert "lacks the annotation" in controller.problem
    assert len(lines) == 1
    assert content(controller) == b""


def test_a_damaged_secret_is_replaced_and_logs_one_warning(api, clock, settled):
    api.secret["data"]["tls.key"] = "eA=="
    with capture_logs() as lines:
        run_passes(settled)
    warnings = [line["reason"] for line in lines if line["log_level"] == "warning"]
    assert warnings == [
        f"Secret {NAMESPACE}/{NAME} is damaged: contains no unencrypted PEM private key",
    ]
    assert settled.failures == {Cause.DAMAGED: 1}
    assert is_healthy(settled, api, clock)


def test_without_the_secret_or_the_configuration_the_certificate_stays_until_it_expires(api, clock, settled):
    before, secret = content(settled), api.objects.pop(SECRET_PATH)
    settled.run_pass()
    assert settled.problem == f"Secret {NAMESPACE}/{NAME} not found; helm upgrade creates it"
    assert content(settled) == before
    api.put(SECRET_PATH, secret)
    for wait, is_unchanged in ((25 * DAY, True), (DAY, True), (4 * DAY, False)):
        clock.advance(wait)
        api.fail_before = {len(api.calls): ApiError(403, "no")}
        settled.run_pass()
        assert (content(settled) == before) is is_unchanged
    assert settled.failures == {Cause.MISSING: 1, Cause.FORBIDDEN: 3}


@pytest.mark.parametrize("code", [0, 403])
@pytest.mark.parametrize(
    "call", range(4), ids=["read configuration", "read Secret", "write Secret", "write configuration"]
)
def test_a_failed_request_is_counted_logged_once_and_the_renewal_completes(api, clock, settled, code, call):
    clock.advance(20 * DAY)
    api.fail_before = {len(api.calls) + call: ApiError(code, "no")}
    with capture_logs() as lines:
        settled.run_pass()
    assert settled.failures.total() == 1
    assert settled.problem
    assert len([line for line in lines if line["log_level"] == "warning"]) == 1
    run_passes(settled, 3)
    clock.advance(5 * MINUTE)
    run_passes(settled, 3)
    assert is_healthy(settled, api, clock)
    assert (settled.steps[Step.START], len(split(api.ca_bundles()[0]))) == (2, 2)
    assert content(settled) == bundles.read(api.secret).serving.certificate
    assert bundles.read(api.secret).next is None


def test_an_unpublished_certificate_is_not_served_while_the_old_one_is_valid(api, clock, settled):
    before = content(settled)
    api.secret["data"]["ca.key"] = "eA=="
    first = len(api.calls)
    api.fail_before = {first + 3: ApiError(0, "cut")}
    settled.run_pass()
    assert content(settled) == before
    assert api.data()["tls.crt"] != before
    settled.run_pass()  # publishes it; the next pass sees that it is published
    assert content(settled) == before
    assert is_healthy(settled, api, clock)
    settled.run_pass()
    assert content(settled) == api.data()["tls.crt"]
    assert is_healthy(settled, api, clock)


@pytest.mark.parametrize("before", [None, bundles.Bundle(issue(NAMES, LONG_AGO))], ids=["none", "expired"])
def test_a_missing_or_expired_certificate_is_replaced_even_if_the_new_one_is_unpublished(api, new_controller, before):
    controller = new_controller()
    controller._served.bundle = before
    del api.objects[CONFIGURATION_PATH]
    controller.run_pass()
    assert content(controller) == api.data()["tls.crt"]
    assert controller.failures == {Cause.MISSING: 1}


def test_an_unreachable_api_server_is_logged_once_and_tried_again_every_3_seconds(api, new_controller):
    controller = new_controller()
    api.fail_before = {call: ApiError(0, f"error {call}") for call in range(2 * 9)}
    with capture_logs() as lines:
        waits = run_passes(controller, 9)
    assert len(lines) == 1
    assert "error 17" in controller.problem
    assert all(PASS_INTERVAL / 2 <= wait <= PASS_INTERVAL for wait in waits)
    controller.run_pass()
    assert not controller.problem


def test_an_unexpected_exception_is_logged_with_its_traceback_and_the_next_pass_succeeds(api, clock, new_controller):
    controller = new_controller()
    api.fail_before = {0: ZeroDivisionError("secret words")}
    with capture_logs() as lines:
        controller.run_pass()
    assert controller.problem == "unexpected error (ZeroDivisionError)"
    assert isinstance(lines[0]["exc_info"], ZeroDivisionError)
    controller.run_pass()
    assert is_healthy(controller, api, clock)


# Damaged Secrets with several replicas

DAMAGE = {
    "emptied Secret": lambda data: data.clear(),
    "invalid tls.key": lambda data: data.update({"tls.key": "eA=="}),
}
ORDERS = list(permutations(range(3)))


def record_trust(api, controllers):
    """Record at each request whether the published CAs trust each controller's leaf. Returns the list to be filled."""
    seen = []
    api.on_request = lambda _method, _path: seen.append(
        [is_trusted_by_all(controller, api) for controller in controllers]
    )
    return seen


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_replacing_a_damaged_secret_leaves_all_replicas_trusted_at_every_request(
    api, clock, new_controller, damage, order
):
    controllers = [new_controller() for _ in range(3)]
    for controller in controllers:
        controller.run_pass()
    (old,) = set(api.ca_bundles())
    damage(api.secret["data"])
    seen = record_trust(api, controllers)
    for number in order * 2:
        controllers[number].run_pass()
    assert seen
    assert all(map(all, seen))
    assert all(is_healthy(controller, api, clock) for controller in controllers)
    assert {content(controller) for controller in controllers} == {api.data()["tls.crt"]}
    assert api.data()["tls.crt"] != old
    for wait, trusted in ((10 * MINUTE - SECOND, 2), (SECOND, 1)):
        clock.advance(wait)
        controllers[0].run_pass()
        assert len(split(api.ca_bundles()[0])) == trusted
    assert old not in api.ca_bundles()[0]


NOW = CertificateClock()()
FOREIGN_CA = issue_ca(NOW)
PUBLISHED = {
    "a CA of another source twice": (FOREIGN_CA.certificate * 2, 1),
    "garbage": (b"garbage", 0),
    "an expired CA": (issue_ca(NOW - 2 * DAY, lifetime=DAY).certificate, 0),
    "a leaf": (issue_leaf(FOREIGN_CA, NAMES, NOW).certificate, 0),
    "more CAs than the limit": (b"".join(issue_ca(NOW).certificate for _ in range(8 + 1)), 8),
}


@pytest.mark.parametrize(("published", "retained"), PUBLISHED.values(), ids=PUBLISHED)
def test_filling_an_empty_secret_leaves_published_cas_trusted_during_a_rollout(
    api, clock, new_controller, published, retained
):
    api.publish(published)
    controller = new_controller()
    controller.run_pass()
    assert is_healthy(controller, api, clock)
    before = split(api.ca_bundles()[0])
    assert len(before) == 1 + retained
    clock.advance(10 * MINUTE)
    controller.run_pass()
    assert api.ca_bundles() == [bundles.read(api.secret).serving.certificate] * 2


def test_replicas_that_follow_another_source_keep_its_ca_of_five_years_and_issue_one_certificate(
    api, clock, new_controller
):
    """They called the Secret damaged, and replaced each other's certificate every three seconds."""
    other = issue_ca(clock(), 5 * 365 * DAY).certificate
    api.publish(other)
    replicas = [new_controller() for _ in range(2)]
    for _ in range(10):
        for replica in replicas:
            replica.run_pass()
        clock.advance(3 * SECOND)
    assert [(replica.steps.total(), replica.failures.total()) for replica in replicas] == [(1, 0), (0, 0)]
    assert other in split(api.ca_bundles()[0])


# A provided Secret, mounted


@pytest.fixture
def provided(tmp_path, clock, new_controller):
    """A replica, its folder with a mounted, provided Secret, and a function that replaces the certificates."""
    folder = tmp_path / "provided"
    folder.mkdir()

    def write_pair(ca, *others):
        leaf = issue_leaf(ca, NAMES, clock())
        contents = {"tls.crt": leaf.certificate, "tls.key": leaf.key}
        contents["ca.crt"] = b"".join(one.certificate for one in (ca, *others))
        for name, text in contents.items():
            folder.joinpath(name).write_bytes(text)

    write_pair(issue_ca(clock()))
    return new_controller(folder, secret=None, names=()), folder, write_pair


def test_a_provided_ca_is_published_without_reading_a_secret(api, clock, provided):
    controller, folder, _ = provided
    assert controller.run_pass() == PROPAGATION_DELAY
    assert controller.untrusted
    run_passes(controller)
    assert not controller.untrusted
    assert api.ca_bundles() == [folder.joinpath("ca.crt").read_bytes()] * 2
    assert {path for _, path in api.calls} == {CONFIGURATION_PATH}
    assert len(api.writes) == 1
    assert is_healthy(controller, api, clock)


def test_a_changed_provided_ca_replaces_the_old_one_after_the_mount_delay(api, clock, provided):
    controller, folder, write_pair = provided
    controller.run_pass()
    old = api.ca_bundles()[0]
    write_pair(issue_ca(clock()), *[])  # the published CA does not trust the new leaf: publish both CAs without delay
    controller.run_pass()
    assert api.ca_bundles()[0] == folder.joinpath("ca.crt").read_bytes() + old
    for _ in range(2):
        controller.run_pass()
        clock.advance(MOUNT_DELAY)
    assert api.ca_bundles()[0] == folder.joinpath("ca.crt").read_bytes() != old
    before = api.ca_bundles()[0]
    folder.joinpath("ca.crt").write_bytes(before + issue_ca(clock()).certificate)
    controller.run_pass()
    assert api.ca_bundles()[0] == before
    clock.advance(MOUNT_DELAY)
    controller.run_pass()
    assert api.ca_bundles()[0] == folder.joinpath("ca.crt").read_bytes() != before


def test_a_provided_certificate_without_its_key_is_not_published(api, clock, provided):
    """The server still uses the previous pair."""
    controller, folder, write_pair = provided
    controller.run_pass()
    before, key = api.ca_bundles(), folder.joinpath("tls.key").read_bytes()
    write_pair(issue_ca(clock()))
    after = folder.joinpath("tls.key").read_bytes()
    for text in (key, b"garbage"):
        folder.joinpath("tls.key").write_bytes(text)
        controller.run_pass()
        assert api.ca_bundles() == before
    folder.joinpath("tls.key").write_bytes(after)
    controller.run_pass()
    assert api.ca_bundles() == [folder.joinpath("ca.crt").read_bytes() + before[0]] * 2


def test_replicas_of_the_old_and_the_new_source_stay_trusted_and_do_not_overwrite_each_other(
    api, new_controller, provided
):
    old, own = provided[0], new_controller()
    old.run_pass()
    seen = record_trust(api, [old])
    for controller in (own, old, own, old):
        controller.run_pass()
    assert all(map(all, seen))
    assert is_trusted_by_all(own, api)
    assert (old.repairs, own.repairs) == (1, 0)


def test_no_key_and_a_limited_number_of_old_cas_are_published_with_a_provided_ca(api, clock, provided):
    controller, folder, _ = provided
    certificates, key = (folder.joinpath(name).read_bytes() for name in ("ca.crt", "tls.key"))
    folder.joinpath("ca.crt").write_bytes(b"subject=/CN=ours\n" + certificates + key)
    api.publish(b"".join(issue_ca(clock()).certificate for _ in range(8 + 1)))
    controller.run_pass()
    (published,) = set(api.ca_bundles())
    assert published.startswith(certificates)
    assert len(split(published)) == published.count(b"BEGIN") == 1 + 8


@pytest.mark.parametrize(("text", "cause"), [(None, Cause.MISSING), (b"garbage", Cause.DAMAGED)])
def test_an_unusable_provided_ca_is_reported(api, provided, text, cause):
    controller, folder, _ = provided
    folder.joinpath("ca.crt").unlink()
    if text:
        folder.joinpath("ca.crt").write_bytes(text)
    controller.run_pass()
    assert api.writes == []
    assert controller.failures == {cause: 1}
    assert controller.problem.startswith(f"{folder / 'ca.crt'}: ")
