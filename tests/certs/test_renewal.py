"""What is due, when and why: each row a bundle, what is published, and a moment."""

from dataclasses import replace
from datetime import timedelta

import pytest

from certs.authority import BadCertificate, issue_ca, issue_leaf, read, signed_by
from certs.bundle import Bundle, InvalidBundle, RetiringCA
from certs.cluster import Cause
from certs.names import BadName
from certs.renewal import NEVER, PlannedStep, Policy, Step, next_step
from certs.steps import LEAVING_AT_MOST, READ_BY_ALL, apply_step
from tests.support.fake_certificate_cluster import NAMES, START

DAY, MINUTE, TICK = timedelta(days=1), timedelta(minutes=1), timedelta(seconds=1)
HOUR = timedelta(hours=1)

CA, OTHER, OLD = (issue_ca(START, NAMES) for _ in range(3))
FREE = issue_ca(START)
PLAIN = Bundle(CA, issue_leaf(CA, NAMES, START))
COMING = replace(PLAIN, next_ca=OTHER)
SPREADING = replace(COMING, published=START)
LEAVING = replace(PLAIN, retiring=(RetiringCA(OLD.certificate, START + DAY),))
# A CA of eleven days: it has a third left after seven, and its leaf ends with it.
SHORT = issue_ca(START, NAMES, 11 * DAY)
CLAMPED = Bundle(SHORT, issue_leaf(SHORT, NAMES, START))

POLICY = Policy(NAMES)
RENEWAL = START + 20 * DAY
CA_RENEWAL = START + 365 * DAY * 2 / 3
SIGNING = START + 5 * MINUTE


def published(bundle):
    return (bundle.ca_bundle(),) * 2


def step(bundle, now=START, policy=POLICY, seen="equal"):
    return next_step(bundle, published(bundle) if seen == "equal" else seen, now, policy)


def fresh(now, ca=CA):
    """The bundle with a leaf of another moment."""
    return replace(PLAIN, leaf=issue_leaf(ca, NAMES, now))


EMPTIED = (b"", b"")
ONE_EMPTIED = (SPREADING.ca_bundle(), b"")
WANTED_MORE = Policy((*NAMES, "other.kubevirt-scheduler.svc"))
WANTED_ELSEWHERE = Policy((*NAMES, "example.com"))
WANTED_NOWHERE = Policy(("webhook.restored.svc",))
PUBLISHED_LATER = replace(COMING, published=START + HOUR + TICK)
LATE_CA = issue_ca(START + 400 * DAY, NAMES)

TABLE = {
    # A year in the life of a bundle.
    "a new one: the leaf is next": (PLAIN, {}, Step.RENEW, RENEWAL),
    "a moment before a third is left": (PLAIN, {"now": RENEWAL - TICK}, Step.RENEW, RENEWAL),
    "a third is left": (PLAIN, {"now": RENEWAL}, Step.RENEW, RENEWAL),
    "a suspended machine wakes up": (PLAIN, {"now": START + 60 * DAY}, Step.RENEW, START + 60 * DAY),
    "a third of the CA is left": (fresh(CA_RENEWAL), {"now": CA_RENEWAL}, Step.INTRODUCE, CA_RENEWAL),
    "the leaf before the CA, if it was due before": (
        fresh(CA_RENEWAL - 21 * DAY),
        {"now": CA_RENEWAL},
        Step.RENEW,
        CA_RENEWAL - DAY,
    ),
    "the CA has expired": (PLAIN, {"now": START + 365 * DAY}, Step.START, START + 365 * DAY),
    "the leaf ends with its CA: the CA is next": (
        CLAMPED,
        {"now": START},
        Step.INTRODUCE,
        START + 11 * DAY * 2 / 3,
    ),
    "the leaf ends with its CA, and nothing can be done": (
        replace(CLAMPED, next_ca=OTHER),
        {"now": START + 10 * DAY, "seen": None},
        Step.PUBLISH,
        START + 10 * DAY,
    ),
    # The rotation.
    "the coming CA is not published": (COMING, {"seen": EMPTIED}, Step.PUBLISH, START),
    "the coming CA is published in one of two": (
        COMING,
        {"seen": (COMING.ca_bundle(), PLAIN.ca_bundle())},
        Step.PUBLISH,
        START,
    ),
    "what is published can't be read": (COMING, {"seen": None}, Step.PUBLISH, START),
    "the coming CA is published": (COMING, {}, Step.PUBLISHED, START),
    "no configuration: the coming CA need not be published": (COMING, {"seen": ()}, Step.PUBLISHED, START),
    "it spreads": (SPREADING, {"now": SIGNING - TICK}, Step.SIGN, SIGNING),
    "it has spread": (SPREADING, {"now": SIGNING}, Step.SIGN, SIGNING),
    "it has spread, and what is published can't be read": (
        SPREADING,
        {"now": SIGNING, "seen": None},
        Step.PUBLISH,
        SIGNING,
    ),
    "a longer spread": (SPREADING, {"policy": Policy(NAMES, spread=HOUR)}, Step.SIGN, START + HOUR),
    "all caBundles are emptied while it spreads": (SPREADING, {"seen": EMPTIED}, Step.WITHDRAWN, START),
    "one caBundle is emptied while it spreads": (SPREADING, {"seen": ONE_EMPTIED}, Step.WITHDRAWN, START),
    "emptied just when it would sign": (SPREADING, {"now": SIGNING, "seen": EMPTIED}, Step.WITHDRAWN, SIGNING),
    "emptied when a leaf is due as well": (SPREADING, {"now": RENEWAL, "seen": EMPTIED}, Step.WITHDRAWN, RENEWAL),
    "the clock goes back while it spreads": (PUBLISHED_LATER, {}, Step.WITHDRAWN, START),
    "the clock of who noted it is less than an hour ahead": (
        replace(COMING, published=START + HOUR),
        {},
        Step.SIGN,
        SIGNING + HOUR,
    ),
    "the leaf is due while it is published": (COMING, {"now": RENEWAL, "seen": EMPTIED}, Step.RENEW, RENEWAL),
    "the coming CA has expired": (
        replace(COMING, next_ca=issue_ca(START - 400 * DAY, NAMES)),
        {},
        Step.INTRODUCE,
        START,
    ),
    "the coming CA is of the future": (replace(COMING, next_ca=LATE_CA), {}, Step.INTRODUCE, START),
    "the old CA is still needed": (LEAVING, {"now": START + DAY - TICK}, Step.DROP, START + DAY),
    "the old CA is needed no more": (LEAVING, {"now": START + DAY}, Step.DROP, START + DAY),
    # What ought not to happen.
    "emptied from outside while nothing rotates": (PLAIN, {"seen": EMPTIED}, Step.RENEW, RENEWAL),
    "a CA of the future: the clock went back": (
        Bundle(LATE_CA, issue_leaf(LATE_CA, NAMES, START + 400 * DAY)),
        {},
        Step.START,
        START,
    ),
    "a leaf of the future: the clock went back": (fresh(START + 2 * HOUR), {}, Step.RENEW, START),
    "a leaf of less than an hour in the future": (fresh(START + HOUR), {}, Step.RENEW, RENEWAL + HOUR),
    "a leaf that expired": (fresh(START), {"now": START + 30 * DAY}, Step.RENEW, START + 30 * DAY),
    "a leaf of another CA": (fresh(START, OTHER), {}, Step.RENEW, START),
    # Names.
    "a name is missing": (PLAIN, {"policy": WANTED_MORE}, Step.RENEW, START),
    "the names in another order and case": (
        PLAIN,
        {"policy": Policy((NAMES[1].upper(), NAMES[0]))},
        Step.RENEW,
        RENEWAL,
    ),
    "a name too many": (PLAIN, {"policy": Policy(NAMES[:1])}, Step.RENEW, RENEWAL),
    "no name is wanted": (PLAIN, {"policy": Policy()}, Step.RENEW, RENEWAL),
    "a name that the CA may not sign for": (PLAIN, {"policy": WANTED_ELSEWHERE}, Step.INTRODUCE, START),
    "the same, and the coming CA waits": (COMING, {"policy": WANTED_ELSEWHERE}, Step.PUBLISHED, START),
    "a CA that may sign for any name": (
        Bundle(FREE, issue_leaf(FREE, NAMES, START)),
        {"policy": WANTED_ELSEWHERE},
        Step.RENEW,
        START,
    ),
    "no wanted name is the CA's: restored elsewhere": (PLAIN, {"policy": WANTED_NOWHERE}, Step.START, START),
}


@pytest.mark.parametrize(("bundle", "seen", "expected", "due"), TABLE.values(), ids=TABLE)
def test_the_next_step_and_its_time(bundle, seen, expected, due):
    found = step(bundle, **seen)
    assert (found.step, found.due) == (expected, due)
    assert found.why
    assert found.is_due(due)
    assert not found.is_due(due - TICK)


def test_a_leaf_that_ends_with_its_ca_is_not_renewed_for_nothing():
    bundle = replace(CLAMPED, next_ca=OTHER, published=START + 10 * DAY)
    slow = Policy(NAMES, spread=5 * DAY)
    found = step(bundle, START + 10 * DAY, slow)
    assert found == PlannedStep(Step.NOTHING, "the certificate ends with its CA", START + 11 * DAY)
    assert apply_step(found.step, bundle, START + 10 * DAY, slow) is bundle


def test_a_life_of_a_minute_is_renewed_after_forty_seconds():
    short = Policy(NAMES, leaf_life=MINUTE, ca_life=10 * MINUTE)
    bundle = apply_step(Step.START, InvalidBundle(Cause.MISSING, "data", "x"), START, short)
    assert step(bundle, policy=short).due == START + 40 * TICK


def test_a_foreign_secret_asks_for_nothing_ever():
    assert step(InvalidBundle(Cause.FOREIGN, "metadata", "x"), seen=()) == PlannedStep(
        Step.NOTHING, "the Secret is not ours", NEVER
    )


@pytest.mark.parametrize("cause", [Cause.MISSING, Cause.DAMAGED])
def test_an_empty_and_a_damaged_secret_are_filled(cause):
    assert step(InvalidBundle(cause, "data", "it is empty"), seen=None) == PlannedStep(Step.START, "it is empty", START)


WHY = {
    "expired": (PLAIN, {"now": START + 31 * DAY}, "the certificate has expired"),
    "of the future": (fresh(START + DAY), {}, "the certificate is not valid yet: the clock went back"),
    "a name": (PLAIN, {"policy": WANTED_MORE}, "the certificate lacks other.kubevirt-scheduler.svc"),
    "unreadable": (COMING, {"seen": None}, "what is published can't be read"),
}


@pytest.mark.parametrize(("bundle", "seen", "why"), WHY.values(), ids=WHY)
def test_the_reason_is_told(bundle, seen, why):
    assert step(bundle, **seen).why == why


def test_a_policy_holds_each_name_once_and_as_a_certificate_does():
    assert Policy(("A.ns.svc", "a.ns.svc", "0:0::1")).names == ("a.ns.svc", "::1")
    with pytest.raises(BadName, match="neither a DNS name nor an IP address"):
        Policy(("bücher.example",))


# What a step makes of a bundle


def names_of(bundle):
    return read(bundle.leaf.certificate).names


def is_whole(bundle):
    return signed_by(bundle.leaf.certificate, bundle.authority.certificate)


def test_a_start_from_nothing_makes_a_ca_and_a_leaf():
    made = apply_step(Step.START, InvalidBundle(Cause.MISSING, "data", "x"), START, POLICY)
    assert is_whole(made)
    assert (names_of(made), made.next_ca, made.retiring) == (NAMES, None, ())
    with pytest.raises(BadCertificate, match="needs a name"):
        apply_step(Step.START, InvalidBundle(Cause.MISSING, "data", "x"), START, Policy())


def test_a_start_from_a_bundle_trusts_what_is_still_served():
    made = apply_step(Step.START, LEAVING, START, POLICY)
    assert is_whole(made)
    assert made.authority != CA
    assert made.retiring == (*LEAVING.retiring, RetiringCA(CA.certificate, START + 30 * DAY))
    assert apply_step(Step.START, LEAVING, START + 365 * DAY, POLICY).retiring == ()


def test_of_many_starts_the_last_ones_are_still_trusted():
    made = [PLAIN]
    for _ in range(2 * LEAVING_AT_MOST):
        made.append(apply_step(Step.START, made[-1], START, POLICY))
    last = [one.authority.certificate for one in made[-1 - LEAVING_AT_MOST : -1]]
    assert [one.certificate for one in made[-1].retiring] == last


def test_a_start_elsewhere_signs_for_the_new_place_alone():
    made = apply_step(Step.START, PLAIN, START, WANTED_NOWHERE)
    assert names_of(made) == WANTED_NOWHERE.names
    assert read(made.authority.certificate).permitted == ("restored.svc",)
    assert names_of(apply_step(Step.START, PLAIN, START, Policy())) == NAMES


def test_a_renewal_changes_the_leaf_alone():
    made = apply_step(Step.RENEW, FULL, RENEWAL, POLICY)
    assert is_whole(made)
    assert read(made.leaf.certificate).not_after == RENEWAL + 30 * DAY
    assert replace(made, leaf=FULL.leaf) == FULL


FULL = replace(SPREADING, retiring=LEAVING.retiring)


def test_replicas_that_want_different_names_agree_on_all_of_them_until_the_next_renewal():
    one, other = Policy(("a.kubevirt-scheduler.svc",)), Policy(("b.kubevirt-scheduler.svc",))
    made = apply_step(
        Step.RENEW, apply_step(Step.START, InvalidBundle(Cause.MISSING, "", ""), START, one), START, other
    )
    assert set(names_of(made)) == {*one.names, *other.names}
    for policy in (one, other):
        assert step(made, policy=policy).due > START
    assert names_of(apply_step(Step.RENEW, made, START, other)) == other.names


def test_a_renewal_leaves_out_what_the_ca_may_not_sign_for():
    assert names_of(apply_step(Step.RENEW, PLAIN, START, WANTED_ELSEWHERE)) == NAMES


def test_a_rotation_goes_from_one_ca_to_two_and_back_to_one():
    introduced = apply_step(Step.INTRODUCE, PLAIN, START, POLICY)
    assert replace(introduced, next_ca=None) == PLAIN
    published = apply_step(Step.PUBLISHED, introduced, START + MINUTE, POLICY)
    assert published == replace(introduced, published=START + MINUTE)
    assert apply_step(Step.WITHDRAWN, published, START, POLICY) == introduced
    signed = apply_step(Step.SIGN, published, SIGNING, POLICY)
    assert is_whole(signed)
    assert signed.authority == introduced.next_ca
    assert (signed.next_ca, signed.published) == (None, None)
    assert signed.retiring == (RetiringCA(CA.certificate, read(PLAIN.leaf.certificate).not_after),)
    assert signed.ca_bundle() == published.ca_bundle()
    assert apply_step(Step.DROP, signed, START + 30 * DAY - TICK, POLICY) == signed
    assert apply_step(Step.DROP, signed, START + 30 * DAY, POLICY) == replace(signed, retiring=())


def test_a_new_coming_ca_begins_from_the_beginning():
    made = apply_step(Step.INTRODUCE, SPREADING, START, POLICY)
    assert made.next_ca not in (None, OTHER)
    assert made.published is None


@pytest.mark.parametrize("found", [FULL, PLAIN], ids=["under way", "over just now"])
def test_a_coming_ca_that_is_replaced_gives_way_to_one_that_comes_in_a_hurry(found):
    made = apply_step(Step.REPLACE, found, START, POLICY)
    assert made.next_ca not in (None, OTHER)
    assert (made.published, made.hurry) == (None, True)
    assert OTHER.certificate not in made.ca_bundle()
    assert (made.authority, made.leaf, made.retiring) == (found.authority, found.leaf, found.retiring)


def test_a_hurry_outlives_a_coming_ca_that_expires():
    assert apply_step(Step.INTRODUCE, replace(FULL, hurry=True), START, POLICY).hurry
    assert not apply_step(Step.INTRODUCE, FULL, START, POLICY).hurry


def test_a_start_from_damage_trusts_what_it_is_told_is_served():
    served = (RetiringCA(OLD.certificate, START + READ_BY_ALL),)
    for cause in (Cause.MISSING, Cause.DAMAGED):
        made = apply_step(Step.START, InvalidBundle(cause, "data", "x"), START, POLICY, served)
        assert is_whole(made)
        assert made.retiring == served
    assert apply_step(Step.START, PLAIN, START, POLICY, served).retiring == (_leaving_of(PLAIN),)


def _leaving_of(bundle):
    return RetiringCA(bundle.authority.certificate, read(bundle.leaf.certificate).not_after)


def test_in_a_hurry_all_old_cas_go_when_the_replicas_have_had_the_time_to_read():
    hurried = apply_step(Step.HURRY, FULL, START, POLICY)
    assert hurried == replace(FULL, hurry=True)
    signed = apply_step(Step.SIGN, hurried, START, POLICY)
    assert [one.until for one in signed.retiring] == [START + READ_BY_ALL] * 2
    assert not signed.hurry


@pytest.mark.parametrize("what", [Step.SIGN, Step.PUBLISH, Step.NOTHING])
def test_what_there_is_nothing_to_do_for_changes_nothing(what):
    assert apply_step(what, PLAIN, START, POLICY) is PLAIN
