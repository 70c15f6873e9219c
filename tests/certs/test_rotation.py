"""The next step with its due time and reason, and what each step changes in a bundle."""

from dataclasses import replace
from datetime import timedelta

import pytest

from certs.authority import BadCertificate, issue_ca, issue_leaf, read, signed_by
from certs.rotation import MAX_RETIRING, NEVER, READ_BY_ALL, PlannedStep, Policy, Step, apply_step, next_step
from certs.secret import Bundle, Cause, InvalidBundle, RetiringCA
from tests.support.fake_certificate_cluster import NAMES
from tests.support.fake_clock import START

DAY, MINUTE, TICK = timedelta(days=1), timedelta(minutes=1), timedelta(seconds=1)
HOUR = timedelta(hours=1)

CA, OTHER, OLD = (issue_ca(START, NAMES) for _ in range(3))


SETTLED = Bundle(CA, issue_leaf(CA, NAMES, START))
WITH_NEXT_CA = replace(SETTLED, next_ca=OTHER)
PUBLISHED = replace(WITH_NEXT_CA, published=START)
WITH_RETIRING_CA = replace(SETTLED, retiring=(RetiringCA(OLD.certificate, START + DAY),))
# A CA with a lifetime of 11 days: a third is left after seven days, and its leaf expires with it.
SHORT_CA = issue_ca(START, NAMES, 11 * DAY)
LEAF_ENDS_WITH_CA = Bundle(SHORT_CA, issue_leaf(SHORT_CA, NAMES, START))

POLICY = Policy(NAMES)
RENEWAL_TIME = START + 20 * DAY
CA_RENEWAL_TIME = START + 365 * DAY * 2 / 3
SIGN_TIME = START + 5 * MINUTE


def published(bundle):
    return (bundle.ca_bundle(),) * 2


def step(bundle, now=START, policy=POLICY, published_cas="equal"):
    return next_step(bundle, published(bundle) if published_cas == "equal" else published_cas, now, policy)


def with_leaf_issued_at(now, ca=CA):
    """SETTLED with a leaf that was issued at another time."""
    return replace(SETTLED, leaf=issue_leaf(ca, NAMES, now))


ALL_EMPTY = (b"", b"")
ONE_EMPTY = (PUBLISHED.ca_bundle(), b"")
ONE_MORE_NAME = Policy((*NAMES, "other.kubevirt-scheduler.svc"))
NAME_OUTSIDE_CONSTRAINTS = Policy((*NAMES, "example.com"))
NAMES_OF_ANOTHER_NAMESPACE = Policy(("webhook.restored.svc",))
PUBLISHED_IN_FUTURE = replace(WITH_NEXT_CA, published=START + HOUR + TICK)
FUTURE_CA = issue_ca(START + 400 * DAY, NAMES)

TABLE = {
    # The lifetime of a bundle.
    "new bundle: renew is next": (SETTLED, {}, Step.RENEW, RENEWAL_TIME),
    "a third of the leaf's lifetime is left": (SETTLED, {"now": RENEWAL_TIME}, Step.RENEW, RENEWAL_TIME),
    "the leaf expired while the machine was suspended": (
        SETTLED,
        {"now": START + 60 * DAY},
        Step.RENEW,
        START + 60 * DAY,
    ),
    "a third of the CA's lifetime is left": (
        with_leaf_issued_at(CA_RENEWAL_TIME),
        {"now": CA_RENEWAL_TIME},
        Step.INTRODUCE,
        CA_RENEWAL_TIME,
    ),
    "leaf and CA are due: the leaf, which was due first": (
        with_leaf_issued_at(CA_RENEWAL_TIME - 21 * DAY),
        {"now": CA_RENEWAL_TIME},
        Step.RENEW,
        CA_RENEWAL_TIME - DAY,
    ),
    "the CA has expired": (SETTLED, {"now": START + 365 * DAY}, Step.START, START + 365 * DAY),
    "leaf expires with its CA: introduce is next": (
        LEAF_ENDS_WITH_CA,
        {"now": START},
        Step.INTRODUCE,
        START + 11 * DAY * 2 / 3,
    ),
    "leaf expires with its CA, configuration unreadable": (
        replace(LEAF_ENDS_WITH_CA, next_ca=OTHER),
        {"now": START + 10 * DAY, "published_cas": None},
        Step.PUBLISH,
        START + 10 * DAY,
    ),
    # The rotation.
    "next CA is not published": (WITH_NEXT_CA, {"published_cas": ALL_EMPTY}, Step.PUBLISH, START),
    "next CA is published in one of two webhooks": (
        WITH_NEXT_CA,
        {"published_cas": (WITH_NEXT_CA.ca_bundle(), SETTLED.ca_bundle())},
        Step.PUBLISH,
        START,
    ),
    "next CA, configuration unreadable": (WITH_NEXT_CA, {"published_cas": None}, Step.PUBLISH, START),
    "next CA is published": (WITH_NEXT_CA, {}, Step.PUBLISHED, START),
    "next CA, no webhooks to publish in": (WITH_NEXT_CA, {"published_cas": ()}, Step.PUBLISHED, START),
    "spread not over": (PUBLISHED, {"now": SIGN_TIME - TICK}, Step.SIGN, SIGN_TIME),
    "spread is over": (PUBLISHED, {"now": SIGN_TIME}, Step.SIGN, SIGN_TIME),
    "spread is over, configuration unreadable": (
        PUBLISHED,
        {"now": SIGN_TIME, "published_cas": None},
        Step.PUBLISH,
        SIGN_TIME,
    ),
    "longer spread": (PUBLISHED, {"policy": Policy(NAMES, spread=HOUR)}, Step.SIGN, START + HOUR),
    "all caBundles emptied during the spread": (PUBLISHED, {"published_cas": ALL_EMPTY}, Step.WITHDRAWN, START),
    "one caBundle emptied during the spread": (PUBLISHED, {"published_cas": ONE_EMPTY}, Step.WITHDRAWN, START),
    "caBundles emptied when renew is due": (
        PUBLISHED,
        {"now": RENEWAL_TIME, "published_cas": ALL_EMPTY},
        Step.WITHDRAWN,
        RENEWAL_TIME,
    ),
    "published over an hour in the future": (PUBLISHED_IN_FUTURE, {}, Step.WITHDRAWN, START),
    "leaf is due before the next CA is published": (
        WITH_NEXT_CA,
        {"now": RENEWAL_TIME, "published_cas": ALL_EMPTY},
        Step.RENEW,
        RENEWAL_TIME,
    ),
    "next CA has expired": (
        replace(WITH_NEXT_CA, next_ca=issue_ca(START - 400 * DAY, NAMES)),
        {},
        Step.INTRODUCE,
        START,
    ),
    "next CA is not yet valid": (replace(WITH_NEXT_CA, next_ca=FUTURE_CA), {}, Step.INTRODUCE, START),
    "retiring CA is still needed": (WITH_RETIRING_CA, {"now": START + DAY - TICK}, Step.DROP, START + DAY),
    "retiring CA is no longer needed": (WITH_RETIRING_CA, {"now": START + DAY}, Step.DROP, START + DAY),
    # Unexpected states.
    "caBundles emptied outside a rotation": (SETTLED, {"published_cas": ALL_EMPTY}, Step.RENEW, RENEWAL_TIME),
    "CA is not yet valid": (
        Bundle(FUTURE_CA, issue_leaf(FUTURE_CA, NAMES, START + 400 * DAY)),
        {},
        Step.START,
        START,
    ),
    "leaf is not yet valid": (with_leaf_issued_at(START + 2 * HOUR), {}, Step.RENEW, START),
    "leaf issued an hour in the future": (with_leaf_issued_at(START + HOUR), {}, Step.RENEW, RENEWAL_TIME + HOUR),
    "leaf has expired": (with_leaf_issued_at(START), {"now": START + 30 * DAY}, Step.RENEW, START + 30 * DAY),
    "leaf is signed by another CA": (with_leaf_issued_at(START, OTHER), {}, Step.RENEW, START),
    # Names.
    "leaf lacks a name": (SETTLED, {"policy": ONE_MORE_NAME}, Step.RENEW, START),
    "same names in another order and case": (
        SETTLED,
        {"policy": Policy((NAMES[1].upper(), NAMES[0]))},
        Step.RENEW,
        RENEWAL_TIME,
    ),
    "leaf has an extra name": (SETTLED, {"policy": Policy(NAMES[:1])}, Step.RENEW, RENEWAL_TIME),
    "policy without names": (SETTLED, {"policy": Policy()}, Step.RENEW, RENEWAL_TIME),
    "CA may not sign for a name": (SETTLED, {"policy": NAME_OUTSIDE_CONSTRAINTS}, Step.INTRODUCE, START),
    "CA may not sign for a name, next CA exists": (
        WITH_NEXT_CA,
        {"policy": NAME_OUTSIDE_CONSTRAINTS},
        Step.PUBLISHED,
        START,
    ),
    "CA may sign for none of the names (restored in another namespace)": (
        SETTLED,
        {"policy": NAMES_OF_ANOTHER_NAMESPACE},
        Step.START,
        START,
    ),
}


@pytest.mark.parametrize(("bundle", "changes", "expected", "due"), TABLE.values(), ids=TABLE)
def test_next_step_returns_the_step_and_its_due_time(bundle, changes, expected, due):
    found = step(bundle, **changes)
    assert (found.step, found.due) == (expected, due)
    assert found.why
    assert found.is_due(due)
    assert not found.is_due(due - TICK)


def test_a_leaf_that_expires_with_its_ca_is_not_renewed():
    bundle = replace(LEAF_ENDS_WITH_CA, next_ca=OTHER, published=START + 10 * DAY)
    slow_policy = Policy(NAMES, spread=5 * DAY)
    found = step(bundle, START + 10 * DAY, slow_policy)
    assert found == PlannedStep(Step.NOTHING, "the certificate expires with its CA", START + 11 * DAY)
    assert apply_step(found.step, bundle, START + 10 * DAY, slow_policy) is bundle


def test_a_leaf_with_a_lifetime_of_a_minute_is_renewed_after_40_seconds():
    short = Policy(NAMES, leaf_lifetime=MINUTE, ca_lifetime=10 * MINUTE)
    bundle = apply_step(Step.START, InvalidBundle(Cause.MISSING, "data", "x"), START, short)
    assert step(bundle, policy=short).due == START + 40 * TICK


def test_a_foreign_secret_never_has_a_due_step():
    assert step(InvalidBundle(Cause.FOREIGN, "metadata", "x"), published_cas=()) == PlannedStep(
        Step.NOTHING, "the webhook does not own the Secret", NEVER
    )


@pytest.mark.parametrize("cause", [Cause.MISSING, Cause.DAMAGED])
def test_an_empty_or_damaged_secret_is_filled_now(cause):
    assert step(InvalidBundle(cause, "data", "it is empty"), published_cas=None) == PlannedStep(
        Step.START, "it is empty", START
    )


def test_a_policy_normalizes_and_deduplicates_its_names():
    assert Policy(("A.ns.svc", "a.ns.svc", "0:0::1")).names == ("a.ns.svc", "::1")
    with pytest.raises(BadCertificate, match="neither a DNS name nor an IP address"):
        Policy(("bücher.example",))


# Steps


def leaf_names(bundle):
    return read(bundle.leaf.certificate).names


def leaf_is_signed(bundle):
    return signed_by(bundle.leaf.certificate, bundle.authority.certificate)


def test_start_from_an_empty_secret_issues_a_ca_and_a_leaf():
    result = apply_step(Step.START, InvalidBundle(Cause.MISSING, "data", "x"), START, POLICY)
    assert leaf_is_signed(result)
    assert (leaf_names(result), result.next_ca, result.retiring) == (NAMES, None, ())
    with pytest.raises(BadCertificate, match="needs a name"):
        apply_step(Step.START, InvalidBundle(Cause.MISSING, "data", "x"), START, Policy())


def test_start_from_a_bundle_retires_the_old_ca_until_its_leaf_expires():
    result = apply_step(Step.START, WITH_RETIRING_CA, START, POLICY)
    assert leaf_is_signed(result)
    assert result.authority != CA
    assert result.retiring == (*WITH_RETIRING_CA.retiring, RetiringCA(CA.certificate, START + 30 * DAY))
    assert apply_step(Step.START, WITH_RETIRING_CA, START + 365 * DAY, POLICY).retiring == ()


def test_after_many_starts_only_the_latest_old_cas_stay_trusted():
    result = [SETTLED]
    for _ in range(2 * MAX_RETIRING):
        result.append(apply_step(Step.START, result[-1], START, POLICY))
    last = [one.authority.certificate for one in result[-1 - MAX_RETIRING : -1]]
    assert [one.certificate for one in result[-1].retiring] == last


def test_start_in_another_namespace_issues_only_for_that_namespace():
    result = apply_step(Step.START, SETTLED, START, NAMES_OF_ANOTHER_NAMESPACE)
    assert leaf_names(result) == NAMES_OF_ANOTHER_NAMESPACE.names
    assert read(result.authority.certificate).permitted == ("restored.svc",)
    assert leaf_names(apply_step(Step.START, SETTLED, START, Policy())) == NAMES


def test_renew_changes_only_the_leaf():
    result = apply_step(Step.RENEW, ROTATING, RENEWAL_TIME, POLICY)
    assert leaf_is_signed(result)
    assert read(result.leaf.certificate).not_after == RENEWAL_TIME + 30 * DAY
    assert replace(result, leaf=ROTATING.leaf) == ROTATING


ROTATING = replace(PUBLISHED, retiring=WITH_RETIRING_CA.retiring)


def test_replicas_with_different_names_accept_a_leaf_with_all_names_until_the_next_renewal():
    one, other = Policy(("a.kubevirt-scheduler.svc",)), Policy(("b.kubevirt-scheduler.svc",))
    result = apply_step(
        Step.RENEW, apply_step(Step.START, InvalidBundle(Cause.MISSING, "", ""), START, one), START, other
    )
    assert set(leaf_names(result)) == {*one.names, *other.names}
    for policy in (one, other):
        assert step(result, policy=policy).due > START
    assert leaf_names(apply_step(Step.RENEW, result, START, other)) == other.names


def test_renew_omits_names_that_the_ca_may_not_sign_for():
    assert leaf_names(apply_step(Step.RENEW, SETTLED, START, NAME_OUTSIDE_CONSTRAINTS)) == NAMES


def test_a_rotation_trusts_one_ca_then_two_then_one():
    introduced = apply_step(Step.INTRODUCE, SETTLED, START, POLICY)
    assert replace(introduced, next_ca=None) == SETTLED
    published = apply_step(Step.PUBLISHED, introduced, START + MINUTE, POLICY)
    assert published == replace(introduced, published=START + MINUTE)
    assert apply_step(Step.WITHDRAWN, published, START, POLICY) == introduced
    signed = apply_step(Step.SIGN, published, SIGN_TIME, POLICY)
    assert leaf_is_signed(signed)
    assert signed.authority == introduced.next_ca
    assert (signed.next_ca, signed.published) == (None, None)
    assert signed.retiring == (RetiringCA(CA.certificate, read(SETTLED.leaf.certificate).not_after),)
    assert signed.ca_bundle() == published.ca_bundle()
    assert apply_step(Step.DROP, signed, START + 30 * DAY - TICK, POLICY) == signed
    assert apply_step(Step.DROP, signed, START + 30 * DAY, POLICY) == replace(signed, retiring=())


def test_introduce_replaces_a_published_next_ca_by_an_unpublished_one():
    result = apply_step(Step.INTRODUCE, PUBLISHED, START, POLICY)
    assert result.next_ca not in (None, OTHER)
    assert result.published is None


@pytest.mark.parametrize("found", [ROTATING, SETTLED], ids=["during a rotation", "after a rotation"])
def test_replace_introduces_another_next_ca_with_drop_old_early(found):
    result = apply_step(Step.REPLACE, found, START, POLICY)
    assert result.next_ca not in (None, OTHER)
    assert (result.published, result.drop_old_early) == (None, True)
    assert OTHER.certificate not in result.ca_bundle()
    assert (result.authority, result.leaf, result.retiring) == (found.authority, found.leaf, found.retiring)


def test_introduce_preserves_drop_old_early():
    assert apply_step(Step.INTRODUCE, replace(ROTATING, drop_old_early=True), START, POLICY).drop_old_early
    assert not apply_step(Step.INTRODUCE, ROTATING, START, POLICY).drop_old_early


def test_start_from_an_invalid_secret_retires_the_served_cas():
    served_cas = (RetiringCA(OLD.certificate, START + READ_BY_ALL),)
    for cause in (Cause.MISSING, Cause.DAMAGED):
        result = apply_step(Step.START, InvalidBundle(cause, "data", "x"), START, POLICY, served_cas)
        assert leaf_is_signed(result)
        assert result.retiring == served_cas
    assert apply_step(Step.START, SETTLED, START, POLICY, served_cas).retiring == (retired_ca(SETTLED),)


def retired_ca(bundle):
    return RetiringCA(bundle.authority.certificate, read(bundle.leaf.certificate).not_after)


def test_drop_old_early_drops_all_old_cas_when_all_replicas_have_read_the_secret():
    forced = apply_step(Step.DROP_EARLY, ROTATING, START, POLICY)
    assert forced == replace(ROTATING, drop_old_early=True)
    signed = apply_step(Step.SIGN, forced, START, POLICY)
    assert [one.until for one in signed.retiring] == [START + READ_BY_ALL] * 2
    assert not signed.drop_old_early


@pytest.mark.parametrize("what", [Step.SIGN, Step.PUBLISH, Step.NOTHING])
def test_steps_without_effect_return_the_same_bundle(what):
    assert apply_step(what, SETTLED, START, POLICY) is SETTLED
