"""The keeper: passes over a real Secret's and configuration's behaviour, with races, crashes and refusals."""

import ssl
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import permutations

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from structlog.testing import capture_logs

from certs import bundle as bundles
from certs.authority import BadCertificate, Issued, issue_ca, issue_leaf, read, signed_by, split
from certs.bundle import ANNOTATION
from certs.by_hand import rotate as rotate_by_hand
from certs.cluster import ApiError, Cause, CertificateObjects
from certs.renewal import Policy, Step
from certs.rotate import AFTER_A_LOST_RACE, EVERY, LONGEST_WAIT, MOUNTED, CertificateController, run_pass
from certs.serving import ServingCertificate, load_context
from certs.steps import LEAVING_AT_MOST, READ_BY_ALL, REPLACED
from tests.support.fake_certificate_cluster import (
    CONFIGURATION,
    CONFIGURATION_PATH,
    NAME,
    NAMES,
    NAMESPACE,
    SECRET_PATH,
    Clock,
    Crash,
    TwoObjects,
)

POLICY = Policy(NAMES)
DAY, MINUTE, SECOND = timedelta(days=1), timedelta(minutes=1), timedelta(seconds=1)


@pytest.fixture
def api():
    return TwoObjects()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def new(api, clock, tmp_path):
    """Makes replicas, each with a folder of its own."""
    numbers = iter(range(100))

    def make(folder=None, *, secret=(NAMESPACE, NAME), configuration=CONFIGURATION, policy=POLICY):
        if folder is None:
            folder = tmp_path / f"replica-{next(numbers)}"
            folder.mkdir()
        return CertificateController(
            api, secret=secret, configuration=configuration, policy=policy, folder=folder, now=clock
        )

    return make


def folder_of(keeper):
    return keeper._folder


def content(keeper, name="tls.crt"):
    return (folder_of(keeper) / name).read_bytes()


def is_trusted(keeper, api):
    return all(
        any(signed_by(content(keeper), ca) for ca in split(published)) if published else False
        for published in api.ca_bundles()
    )


def serves(keeper, api, clock):
    """What must hold in the end: a pair that is whole, valid and trusted."""
    load_context(folder_of(keeper))
    return read(content(keeper)).is_valid(clock()) and is_trusted(keeper, api) and not keeper.problem


def passes(keeper, count=3):
    return [keeper.run_pass() for _ in range(count)]


# One replica


def test_the_first_pass_fills_the_secret_publishes_and_serves(api, clock, new):
    keeper = new()
    wait = keeper.run_pass()
    assert EVERY * 0.8 <= wait <= EVERY * 1.2
    assert api.writes == ["secrets", "mutatingwebhookconfigurations"]
    assert api.secret["metadata"]["annotations"][ANNOTATION] == "self"
    assert api.secret["metadata"]["labels"] == {"app.kubernetes.io/managed-by": "Helm"}
    assert api.ca_bundles() == [api.data()["ca.crt"]] * 2
    assert serves(keeper, api, clock)
    assert read(content(keeper)).names == NAMES
    assert ServingCertificate(folder_of(keeper)).ends() == {"leaf": clock() + 30 * DAY, "ca": clock() + 365 * DAY}
    assert keeper.steps == {Step.START: 1}
    assert not keeper.failures


def test_the_files_are_for_their_owner_alone_and_none_is_left_over(new):
    keeper = new()
    keeper.run_pass()
    assert {file.name: file.stat().st_mode & 0o777 for file in folder_of(keeper).iterdir()} == dict.fromkeys(
        ("tls.crt", "tls.key", "ca.crt"), 0o600
    )


def test_a_pass_with_nothing_to_do_writes_nothing(api, new):
    keeper = new()
    passes(keeper)
    assert len(api.writes) == 2
    before = {file: file.stat().st_mtime_ns for file in folder_of(keeper).iterdir()}
    keeper.run_pass()
    assert {file: file.stat().st_mtime_ns for file in folder_of(keeper).iterdir()} == before


def test_the_leaf_is_renewed_after_twenty_days_and_the_ca_bundle_left_alone(api, clock, new):
    keeper = new()
    keeper.run_pass()
    before, published = content(keeper), api.ca_bundles()
    clock.turn(20 * DAY)
    keeper.run_pass()
    assert content(keeper) != before
    assert api.ca_bundles() == published
    assert api.writes == ["secrets", "mutatingwebhookconfigurations", "secrets"]
    assert serves(keeper, api, clock)


@pytest.mark.parametrize("webhooks", [(0,), (1,), (0, 1)])
def test_a_ca_bundle_that_is_emptied_is_repaired_by_the_next_pass(api, new, webhooks):
    keeper = new()
    keeper.run_pass()
    kept = api.ca_bundles()
    for number in webhooks:
        del api.configuration["webhooks"][number]["clientConfig"]["caBundle"]
    api.configuration["webhooks"][0]["timeoutSeconds"] = 7
    keeper.run_pass()
    assert api.ca_bundles() == kept
    assert api.configuration["webhooks"][0]["timeoutSeconds"] == 7
    assert keeper.repairs == 1
    keeper.run_pass()
    assert keeper.repairs == 1


def test_where_no_configuration_is_named_nothing_is_published(api, new):
    keeper = new(configuration=None)
    passes(keeper)
    assert api.writes == ["secrets"]
    load_context(folder_of(keeper))


def test_a_ca_bundle_that_somebody_else_writes_at_the_same_time_is_left_to_the_next_pass(api, clock, new):
    keeper = new()
    keeper.run_pass()
    api.publish(b"")
    api.before = {len(api.calls) + 2: ApiError(409, "no")}
    assert keeper.run_pass() <= AFTER_A_LOST_RACE
    assert (keeper.repairs, keeper.problem) == (0, "")
    keeper.run_pass()
    assert keeper.repairs == 1
    assert serves(keeper, api, clock)


def test_it_runs_until_it_is_told_to_stop(new):
    keeper, stop = new(), threading.Event()
    stop.set()
    keeper.run(stop)
    assert keeper.steps == {Step.START: 1}


def test_a_secret_to_fill_needs_names(new):
    with pytest.raises(BadCertificate, match="needs a name"):
        new(policy=Policy())


# A whole rotation


def rotate(keeper, clock, api):
    """From the day on which it is due until one CA is left. Returns the CAs that were published, in order."""
    seen = [api.ca_bundles()[0]]
    clock.turn(244 * DAY)
    for turn in (*[timedelta()] * 3, 5 * MINUTE, *[10 * DAY] * 4, timedelta()):
        clock.turn(turn)
        passes(keeper, 2)
        assert serves(keeper, api, clock)
        if api.ca_bundles()[0] != seen[-1]:
            seen.append(api.ca_bundles()[0])
    return seen


def test_a_rotation_publishes_both_before_the_new_one_signs_and_drops_the_old_one_when_its_leaf_is_over(
    api, clock, new
):
    keeper = new()
    keeper.run_pass()
    first, both, last = rotate(keeper, clock, api)
    assert [len(split(ca_bundle)) for ca_bundle in (first, both, last)] == [1, 2, 1]
    assert set(split(both)) == {first, last}
    assert keeper.steps[Step.INTRODUCE] == keeper.steps[Step.SIGN] == keeper.steps[Step.DROP] == 1
    assert signed_by(content(keeper), last)


def due_for_rotation(keeper, clock):
    keeper.run_pass()
    clock.turn(244 * DAY)
    passes(keeper, 2)  # the leaf, and the coming CA


def next_ca(api):
    return bundles.read(api.secret).next_ca


def test_the_coming_ca_does_not_sign_before_it_has_spread(api, clock, new):
    keeper = new()
    due_for_rotation(keeper, clock)
    assert next_ca(api)
    keeper.run_pass()
    clock.turn(5 * MINUTE - timedelta(seconds=1))
    keeper.run_pass()
    assert keeper.steps[Step.SIGN] == 0
    clock.turn(timedelta(seconds=1))
    keeper.run_pass()
    assert keeper.steps[Step.SIGN] == 1


def test_a_ca_bundle_that_is_emptied_while_it_spreads_makes_the_wait_begin_anew(api, clock, new):
    keeper = new()
    due_for_rotation(keeper, clock)
    keeper.run_pass()
    clock.turn(4 * MINUTE)
    api.publish(b"")
    keeper.run_pass()
    assert len(split(api.ca_bundles()[0])) == 2
    clock.turn(4 * MINUTE)
    passes(keeper, 2)
    assert keeper.steps[Step.SIGN] == 0
    clock.turn(5 * MINUTE)
    keeper.run_pass()
    assert keeper.steps[Step.SIGN] == 1
    assert (keeper.steps[Step.WITHDRAWN], keeper.repairs) == (1, 1)


def handshake(certificate, ca_bundle):
    """A TLS handshake in memory under a `caBundle`, as strict as the newest clients are."""
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.verify_flags |= ssl.VERIFY_X509_STRICT
    trusting.load_verify_locations(cadata=ca_bundle.decode())
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting.wrap_bio(down, up, server_hostname=NAMES[0])
    server = certificate.context().wrap_bio(up, down, server_side=True)
    for side in (client, server) * 3:
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()
    return client.version()


def test_clients_shake_hands_all_through_a_rotation_and_no_more_with_the_ca_that_has_left(api, new, clock):
    clock.time = datetime.now(UTC)  # what the handshake goes by
    keeper = new()
    keeper.run_pass()
    serving = ServingCertificate(folder_of(keeper))
    published, before = [api.ca_bundles()[0]], serving.context()
    for _ in rotate_by_hand(
        CertificateObjects(api, (NAMESPACE, NAME), CONFIGURATION),
        POLICY,
        clock,
        lambda wait: clock.turn(wait * SECOND),
        drop_old=True,
    ):
        published.append(api.ca_bundles()[0])
        for _ in range(2):  # before the replica has read the step, and after
            assert handshake(serving, published[-1]) == "TLSv1.3"
            keeper.run_pass()
    assert serving.context() is not before
    assert len(set(published)) == 3
    with pytest.raises(ssl.SSLCertVerificationError, match=r"unable to get local issuer|signature failure"):
        handshake(serving, published[0])


# Damage and refusals


def foreign(api):
    ca = issue_ca(Clock()())
    leaf = issue_leaf(ca, NAMES, Clock()())
    found = bundles.written(bundles.Bundle(ca, leaf), api.secret)
    found["metadata"]["annotations"] = {"cert-manager.io/certificate-name": "x"}
    api.put(SECRET_PATH, found)


def test_a_foreign_secret_is_never_written(api, new):
    foreign(api)
    keeper = new()
    with capture_logs() as lines:
        passes(keeper)
    assert api.writes == []
    assert keeper.failures == {Cause.FOREIGN: 3}
    assert "without our annotation" in keeper.problem
    assert len(lines) == 1
    assert not list(folder_of(keeper).iterdir())


def test_a_damaged_secret_of_ours_is_filled_anew_and_told_once(api, clock, new):
    keeper = new()
    keeper.run_pass()
    api.secret["data"]["tls.key"] = "eA=="
    with capture_logs() as lines:
        passes(keeper)
    told = [line["reason"] for line in lines if line["log_level"] == "warning"]
    assert told == [
        f"Secret {NAMESPACE}/{NAME}: tls.key: holds no private key in PEM, free of a passphrase",
    ]
    assert keeper.failures == {Cause.DAMAGED: 1}
    assert serves(keeper, api, clock)


def test_a_ca_with_another_kind_of_key_is_replaced_when_it_is_to_sign(api, clock, new):
    keeper = new()
    keeper.run_pass()
    key = rsa.generate_private_key(65537, 2048)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "x")])
    ca = x509.CertificateBuilder(name, name, key.public_key(), 7, clock() - DAY, clock() + 100 * DAY, extensions=[])
    ca = ca.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True).sign(key, SHA256())
    pair = Issued(ca.public_bytes(Encoding.PEM), key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    found = bundles.read(api.secret)
    api.put(SECRET_PATH, bundles.written(bundles.Bundle(pair, found.leaf), api.secret))
    passes(keeper)
    assert serves(keeper, api, clock)
    assert keeper.steps == {Step.START: 2}


def test_an_expired_ca_is_replaced_at_once(api, clock, new):
    keeper = new()
    keeper.run_pass()
    clock.turn(400 * DAY)
    passes(keeper)
    assert serves(keeper, api, clock)
    assert len(split(api.ca_bundles()[0])) == 1


def test_a_missing_secret_is_told_and_the_old_certificate_served_on(api, new):
    keeper = new()
    keeper.run_pass()
    before = content(keeper)
    del api.objects[SECRET_PATH]
    keeper.run_pass()
    assert keeper.problem == f"there is no Secret {NAMESPACE}/{NAME}; helm upgrade makes it"
    assert content(keeper) == before


@pytest.mark.parametrize("code", [0, 403, 422, 500])
@pytest.mark.parametrize("call", range(4), ids=["read the one", "read the other", "write the one", "write the other"])
def test_a_refusal_is_counted_told_once_and_got_over(api, clock, new, code, call):
    keeper = new()
    keeper.run_pass()
    clock.turn(244 * DAY)
    keeper.run_pass()
    api.before = {len(api.calls) + call: ApiError(code, "no")}
    with capture_logs() as lines:
        keeper.run_pass()
    assert keeper.failures.total() == 1
    assert keeper.problem
    assert len([line for line in lines if line["log_level"] == "warning"]) == 1
    passes(keeper, 3)
    clock.turn(5 * MINUTE)
    passes(keeper, 3)
    assert serves(keeper, api, clock)
    assert keeper.steps[Step.SIGN] == 1


def test_a_configuration_that_may_not_be_read_keeps_no_leaf_from_being_renewed(api, clock, new):
    keeper = new()
    keeper.run_pass()
    before = content(keeper)
    clock.turn(25 * DAY)
    api.before = {len(api.calls): ApiError(403, "no")}
    keeper.run_pass()
    assert content(keeper) != before
    assert keeper.failures == {Cause.FORBIDDEN: 1}


def test_a_new_ca_that_is_not_published_is_not_served_while_the_old_one_is_good(api, clock, new):
    keeper = new()
    keeper.run_pass()
    before = content(keeper)
    api.secret["data"]["ca.key"] = "eA=="
    first = len(api.calls)
    api.before = {first + 3: ApiError(0, "cut")}
    keeper.run_pass()
    assert content(keeper) == before
    assert api.data()["tls.crt"] != before
    keeper.run_pass()  # now it is published, and seen to be in the next
    assert content(keeper) == before
    assert serves(keeper, api, clock)
    keeper.run_pass()
    assert content(keeper) == api.data()["tls.crt"]
    assert serves(keeper, api, clock)


def test_a_replica_without_a_certificate_serves_one_that_is_not_published(api, new):
    keeper = new()
    del api.objects[CONFIGURATION_PATH]
    keeper.run_pass()
    assert content(keeper) == api.data()["tls.crt"]
    assert keeper.failures == {Cause.MISSING: 1}


@pytest.mark.parametrize("served", [b"", b"garbage"])
def test_a_certificate_that_can_not_be_served_is_replaced_in_any_case(api, new, served):
    keeper = new()
    folder_of(keeper).joinpath("tls.crt").write_bytes(served)
    del api.objects[CONFIGURATION_PATH]
    keeper.run_pass()
    assert content(keeper) == api.data()["tls.crt"]


def test_the_waits_after_errors_grow_to_half_a_minute_and_are_forgotten_after_a_success(api, new):
    keeper = new()
    api.before = {call: ApiError(0, "cut") for call in range(2 * 9)}
    waits = passes(keeper, 9)
    assert 0.5 <= waits[0] <= 1
    assert LONGEST_WAIT / 2 <= max(waits) <= LONGEST_WAIT
    assert all(wait <= LONGEST_WAIT for wait in waits)
    keeper.run_pass()
    assert not keeper.problem
    api.before = {len(api.calls) + 1: ApiError(0, "cut")}
    assert keeper.run_pass() <= 1


def test_a_secret_that_is_away_is_looked_for_as_often_as_ever(api, new):
    del api.objects[SECRET_PATH]
    assert max(passes(new(), 9)) <= EVERY


def test_a_connection_that_fails_in_many_ways_is_told_once(api, new):
    keeper = new()
    with capture_logs() as lines:
        for number in range(5):
            api.before = {len(api.calls) + 1: ApiError(0, f"error {number}")}
            keeper.run_pass()
    assert len(lines) == 1
    assert "error 4" in keeper.problem


def test_a_surprise_is_told_with_its_places_and_the_next_pass_comes(api, clock, new):
    keeper = new()
    api.before = {0: ZeroDivisionError("secret words")}
    with capture_logs() as lines:
        keeper.run_pass()
    assert keeper.problem == "a surprise inside (ZeroDivisionError)"
    assert isinstance(lines[0]["exc_info"], ZeroDivisionError)
    keeper.run_pass()
    assert serves(keeper, api, clock)


def test_a_folder_that_can_not_be_written_is_told(new, tmp_path):
    keeper = new(tmp_path / "nowhere")
    keeper.run_pass()
    assert keeper.failures == {Cause.FOLDER: 1}
    assert keeper.problem.startswith(f"{tmp_path / 'nowhere'}/tls.crt: No such file or directory; ")


# Damage while several serve

DAMAGES = {
    "emptied": lambda data: data.clear(),
    "a key that is none": lambda data: data.update({"tls.key": "eA=="}),
    "the CA's key is gone": lambda data: data.pop("ca.key"),
    "a state that is none": lambda data: data.update({"state.json": "eA=="}),
}
ORDERS = list(permutations(range(3)))


def watched(api, keepers):
    """Has the API server look at each call whether all of them are trusted by what is published just then."""
    seen = []
    api.between = lambda _method, _path: seen.append([is_trusted(keeper, api) for keeper in keepers])
    return seen


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_fresh_start_leaves_no_replica_untrusted_for_a_moment(api, clock, new, damage, order):
    keepers = [new() for _ in range(3)]
    for keeper in keepers:
        keeper.run_pass()
    (old,) = set(api.ca_bundles())
    damage(api.secret["data"])
    seen = watched(api, keepers)
    for number in order * 2:
        keepers[number].run_pass()
    assert seen
    assert all(map(all, seen))
    assert all(serves(keeper, api, clock) for keeper in keepers)
    assert {content(keeper) for keeper in keepers} == {api.data()["tls.crt"]}
    assert not signed_by(api.data()["tls.crt"], old)
    until, second = REPLACED if damage is DAMAGES["emptied"] else READ_BY_ALL, timedelta(seconds=1)
    for wait, trusted in ((until - second, 2), (second, 1)):
        clock.turn(wait)
        keepers[0].run_pass()
        assert len(split(api.ca_bundles()[0])) == trusted
    assert old not in api.ca_bundles()[0]


def test_one_that_has_just_been_started_fills_an_empty_secret_and_leaves_no_other_untrusted(api, new):
    keepers = [new() for _ in range(2)]
    for keeper in keepers:
        keeper.run_pass()
    api.secret["data"].clear()
    seen = watched(api, keepers)
    for keeper in (new(), *keepers):
        keeper.run_pass()
    assert seen
    assert all(map(all, seen))


NOW = Clock()()
SOMEBODY_S = issue_ca(NOW)
PUBLISHED = {
    "another source's": (SOMEBODY_S.certificate, 1),
    "that twice": (SOMEBODY_S.certificate * 2, 1),
    "nothing": (b"", 0),
    "garbage": (b"garbage", 0),
    "one that is over": (issue_ca(NOW - 2 * DAY, life=DAY).certificate, 0),
    "one that is no CA": (issue_leaf(SOMEBODY_S, NAMES, NOW).certificate, 0),
    "a crowd": (b"".join(issue_ca(NOW).certificate for _ in range(LEAVING_AT_MOST + 1)), LEAVING_AT_MOST),
}


@pytest.mark.parametrize(("published", "kept"), PUBLISHED.values(), ids=PUBLISHED)
def test_where_an_empty_secret_is_filled_who_is_called_already_is_trusted_for_a_while(api, clock, new, published, kept):
    api.publish(published)
    keeper = new()
    keeper.run_pass()
    assert serves(keeper, api, clock)
    before = split(api.ca_bundles()[0])
    assert len(before) == 1 + kept
    clock.turn(REPLACED)
    keeper.run_pass()
    assert api.ca_bundles() == [bundles.read(api.secret).authority.certificate] * 2


def test_clients_shake_hands_with_all_replicas_all_through_a_fresh_start_and_not_with_the_old_ca_after_it(
    api, clock, new
):
    clock.time = datetime.now(UTC)  # what the handshake goes by
    keepers = [new() for _ in range(2)]
    for keeper in keepers:
        keeper.run_pass()
    serving, (before,) = [ServingCertificate(folder_of(keeper)) for keeper in keepers], set(api.ca_bundles())
    api.secret["data"]["ca.key"] = "eA=="
    seen = [before]
    for keeper in keepers * 2:
        keeper.run_pass()
        # The API server that is slowest has not heard of what this pass has published.
        for ca_bundle in {seen[-1], api.ca_bundles()[0]}:
            assert [handshake(one, ca_bundle) for one in serving] == ["TLSv1.3"] * 2
        seen.append(api.ca_bundles()[0])
    for one in serving:
        with pytest.raises(ssl.SSLCertVerificationError, match=r"unable to get local issuer|signature failure"):
            handshake(one, before)


OVER = {
    "nothing is served yet": lambda folder, _: [file.unlink() for file in folder.iterdir()],
    "garbage is served": lambda folder, _: folder.joinpath("tls.crt").write_bytes(b"garbage"),
    "what is served is over": lambda _, clock: clock.turn(31 * DAY),
    "the clock went back before it": lambda _, clock: clock.turn(-DAY),
    "its CA is unknown": lambda folder, clock: folder.joinpath("ca.crt").write_bytes(issue_ca(clock()).certificate),
    "its CA is over": lambda folder, clock: ended(folder, clock(), issue_ca(clock() - 2 * DAY, life=DAY)),
    "its CA is none": lambda folder, clock: ended(folder, clock(), issue_leaf(issue_ca(clock()), NAMES, clock())),
}


def ended(folder, now, ca):
    """Puts a certificate there that is good, by a CA that is not."""
    key, parsed = ec.generate_private_key(ec.SECP256R1()), x509.load_pem_x509_certificate(ca.certificate)
    builder = x509.CertificateBuilder(parsed.subject, parsed.subject, key.public_key(), 7, now - DAY, now + DAY)
    leaf = builder.sign(load_pem_private_key(ca.key, None), SHA256())
    folder.joinpath("tls.crt").write_bytes(leaf.public_bytes(Encoding.PEM))
    folder.joinpath("ca.crt").write_bytes(ca.certificate)


@pytest.mark.parametrize("over", OVER.values(), ids=OVER)
def test_what_can_not_be_trusted_any_more_is_not_published_by_a_fresh_start(api, clock, new, over):
    keeper = new()
    keeper.run_pass()
    over(folder_of(keeper), clock)
    api.secret["data"]["ca.key"] = "eA=="
    keeper.run_pass()
    assert len(split(api.ca_bundles()[0])) == 1
    keeper.run_pass()
    assert serves(keeper, api, clock)
    assert keeper.steps == {Step.START: 2}


# Several replicas


@pytest.mark.parametrize("call", range(4))
def test_who_is_slower_loses_one_write_and_follows(api, clock, new, call):
    slow, fast = new(), new()
    first = len(api.calls)

    def overtake(_method, _path):
        if len(api.calls) == first + call:
            api.between = lambda _method, _path: None
            fast.run_pass()

    api.between = overtake
    wait = slow.run_pass()
    assert api.lost <= 1
    if api.lost:
        assert wait <= AFTER_A_LOST_RACE
        assert slow.failures == {Cause.CONFLICT: 1}
        assert not slow.problem
    for keeper in (slow, fast):
        keeper.run_pass()
    assert content(slow) == content(fast)
    assert serves(slow, api, clock)
    assert serves(fast, api, clock)
    assert api.lost <= 1


@pytest.mark.parametrize("call", range(3))
@pytest.mark.parametrize("emptied", [False, True])
def test_a_slow_replica_never_puts_an_older_bundle_over_a_newer_one(api, clock, new, call, emptied):
    slow = new()
    slow.run_pass()
    if emptied:
        api.publish(b"")
    first = len(api.calls)

    def rotate_in_between(_method, _path):
        if len(api.calls) == first + call:
            api.between = lambda _method, _path: None
            run_pass(CertificateObjects(api, (NAMESPACE, NAME), CONFIGURATION), POLICY, clock, Step.INTRODUCE)

    api.between = rotate_in_between
    slow.run_pass()
    rotate_in_between("", "")  # where the pass had fewer calls
    assert api.ca_bundles() == [api.data()["ca.crt"]] * 2
    assert len(split(api.ca_bundles()[0])) == 2


def test_replicas_that_share_a_secret_write_nothing_once_they_agree(api, new):
    keepers = [new() for _ in range(3)]
    for _ in range(2):
        for keeper in keepers:
            keeper.run_pass()
    assert api.writes == ["secrets", "mutatingwebhookconfigurations"]
    assert len({content(keeper) for keeper in keepers}) == 1


def test_replicas_with_other_names_agree_while_the_ones_replace_the_others(new):
    old, fresh = new(), new(policy=Policy((*NAMES, "added.kubevirt-scheduler.svc")))
    for _ in range(4):
        old.run_pass()
        fresh.run_pass()
    assert fresh.steps == {Step.RENEW: 1}
    assert content(old) == content(fresh)


# Stopped anywhere


# From the empty Secret through two renewals and a rotation until one CA is left: these many calls.
LIFE = (timedelta(), 21 * DAY, 223 * DAY, 5 * MINUTE, 31 * DAY)
CALLS = 41


def live(keeper, api, clock, again):
    """Goes through a life, and comes again after each crash. Returns how often it crashed."""
    crashes = 0
    for turn in LIFE:
        clock.turn(turn)
        for _ in range(3):
            try:
                keeper.run_pass()
            except Crash:
                crashes += 1
                keeper = again(keeper)
                keeper.run_pass()
        assert serves(keeper, api, clock)
    return crashes


def test_a_life_takes_as_many_calls_as_the_table_has_rows(api, clock, new):
    keeper = new()
    live(keeper, api, clock, again=None)
    assert len(api.calls) == CALLS
    assert keeper.steps == {
        Step.START: 1,
        Step.RENEW: 3,
        Step.INTRODUCE: 1,
        Step.PUBLISHED: 1,
        Step.SIGN: 1,
        Step.DROP: 1,
    }


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("call", range(CALLS))
def test_a_replica_that_is_stopped_at_any_call_goes_on_when_it_comes_again(api, clock, new, call, when):
    setattr(api, when, {call: Crash()})
    keeper = new()
    assert live(keeper, api, clock, again=lambda keeper: new(folder_of(keeper))) == 1
    found = bundles.read(api.secret)
    assert (found.next_ca, found.retiring) == (None, ())
    assert api.ca_bundles() == [found.authority.certificate] * 2
    assert read(found.authority.certificate).not_before > Clock()() + 200 * DAY


@pytest.mark.parametrize("name", ["tls.crt", "tls.key", "ca.crt"])
def test_a_replica_that_is_stopped_between_its_files_mends_them(api, clock, new, name):
    keeper = new()
    keeper.run_pass()
    folder_of(keeper).joinpath(name).write_bytes(b"half a fi")
    keeper = new(folder_of(keeper))
    keeper.run_pass()
    assert serves(keeper, api, clock)
    assert content(keeper, "ca.crt") == api.data()["ca.crt"]


# Somebody else's Secret, mounted


@pytest.fixture
def provided(tmp_path, clock):
    """A folder as a Secret of somebody else is mounted, and what may be put into it."""
    folder = tmp_path / "provided"
    folder.mkdir()

    def put(ca, *others):
        leaf = issue_leaf(ca, NAMES, clock())
        contents = {"tls.crt": leaf.certificate, "tls.key": leaf.key}
        contents["ca.crt"] = b"".join(one.certificate for one in (ca, *others))
        for name, text in contents.items():
            folder.joinpath(name).write_bytes(text)

    put(issue_ca(clock()))
    return folder, put


def test_a_provided_ca_is_published_and_no_secret_is_asked_for(api, clock, new, provided):
    folder, _ = provided
    keeper = new(folder, secret=None, policy=Policy())
    passes(keeper)
    assert api.ca_bundles() == [folder.joinpath("ca.crt").read_bytes()] * 2
    assert {path for _, path in api.calls} == {CONFIGURATION_PATH}
    assert len(api.writes) == 1
    assert serves(keeper, api, clock)


def test_a_provided_ca_that_changes_is_published_when_all_folders_have_it(api, clock, new, provided):
    folder, put = provided
    keeper = new(folder, secret=None, policy=Policy())
    keeper.run_pass()
    old = api.ca_bundles()[0]
    put(issue_ca(clock()), *[])  # not trusted at all: at once, and the old one beside it
    keeper.run_pass()
    assert api.ca_bundles()[0] == folder.joinpath("ca.crt").read_bytes() + old
    for _ in range(2):
        keeper.run_pass()
        clock.turn(MOUNTED)
    assert api.ca_bundles()[0] == folder.joinpath("ca.crt").read_bytes() != old
    before = api.ca_bundles()[0]
    folder.joinpath("ca.crt").write_bytes(before + issue_ca(clock()).certificate)
    keeper.run_pass()
    assert api.ca_bundles()[0] == before
    clock.turn(MOUNTED)
    keeper.run_pass()
    assert api.ca_bundles()[0] == folder.joinpath("ca.crt").read_bytes() != before


def test_a_provided_ca_that_came_without_its_key_replaces_no_other(api, clock, new, provided):
    """The pair from before is still served."""
    folder, put = provided
    keeper = new(folder, secret=None, policy=Policy())
    keeper.run_pass()
    before, key = api.ca_bundles(), folder.joinpath("tls.key").read_bytes()
    put(issue_ca(clock()))
    after = folder.joinpath("tls.key").read_bytes()
    for text in (key, b"garbage"):
        folder.joinpath("tls.key").write_bytes(text)
        keeper.run_pass()
        assert api.ca_bundles() == before
    folder.joinpath("tls.key").write_bytes(after)
    keeper.run_pass()
    assert api.ca_bundles() == [content(keeper, "ca.crt") + before[0]] * 2


def test_from_a_provided_ca_to_one_of_its_own_old_replicas_and_new_ones_are_trusted_and_leave_each_other_alone(
    api, new, provided
):
    old, own = new(provided[0], secret=None, policy=Policy()), new()
    old.run_pass()
    seen = watched(api, [old])
    for keeper in (own, old, own, old):
        keeper.run_pass()
    assert all(map(all, seen))
    assert is_trusted(own, api)
    assert (old.repairs, own.repairs) == (1, 0)


def test_a_provided_ca_that_is_emptied_outside_is_repaired_at_once(api, new, provided):
    keeper = new(provided[0], secret=None, policy=Policy())
    keeper.run_pass()
    api.publish(b"")
    keeper.run_pass()
    assert api.ca_bundles() == [content(keeper, "ca.crt")] * 2


def test_beside_a_provided_ca_no_crowd_is_published(api, clock, new, provided):
    api.publish(b"".join(issue_ca(clock()).certificate for _ in range(LEAVING_AT_MOST + 1)))
    new(provided[0], secret=None, policy=Policy()).run_pass()
    assert len(split(api.ca_bundles()[0])) == 1 + LEAVING_AT_MOST


def test_of_a_provided_ca_crt_only_the_certificates_are_published(api, new, provided):
    folder, _ = provided
    certificates, key = (folder.joinpath(name).read_bytes() for name in ("ca.crt", "tls.key"))
    folder.joinpath("ca.crt").write_bytes(b"subject=/CN=ours\n" + certificates + key)
    new(folder, secret=None, policy=Policy()).run_pass()
    assert api.ca_bundles() == [certificates] * 2


@pytest.mark.parametrize(("text", "cause"), [(None, Cause.MISSING), (b"garbage", Cause.DAMAGED)])
def test_a_provided_ca_that_can_not_be_used_is_told(api, new, provided, text, cause):
    folder, _ = provided
    folder.joinpath("ca.crt").unlink()
    if text:
        folder.joinpath("ca.crt").write_bytes(text)
    keeper = new(folder, secret=None, policy=Policy())
    keeper.run_pass()
    assert api.writes == []
    assert keeper.failures == {cause: 1}
    assert keeper.problem.startswith(f"{folder / 'ca.crt'}: ")


def test_where_cert_manager_publishes_nobody_is_asked(api, new, provided):
    keeper = new(provided[0], secret=None, configuration=None, policy=Policy())
    keeper.run_pass()
    assert api.calls == []
