"""The next step with its due time and reason, and what each step changes in a bundle."""

from dataclasses import replace
from datetime import timedelta

import pytest

from certs.authority import issue_ca, issue_leaf, read, signed_by
from certs.rotation import MAX_RETIRING, READ_BY_ALL, Step, apply_step, next_step
from certs.secret import Bundle, RetiringCA
from tests.support.fake_certificate_cluster import NAMES
from tests.support.fake_clock import START

DAY, MINUTE, TICK = timedelta(days=1), timedelta(minutes=1), timedelta(seconds=1)
HOUR = timedelta(hours=1)

CA, OTHER, OLD = (issue_ca(START) for _ in range(3))


SETTLED = Bundle(CA, issue_leaf(CA, NAMES, START))
WITH_NEXT_CA = replace(SETTLED, next_ca=OTHER)
PUBLISHED = replace(WITH_NEXT_CA, published=START)
WITH_RETIRING_CA = replace(SETTLED, retiring=(RetiringCA(OLD.certificate.decode(), START + DAY),))
# A CA with a lifetime of 11 days: a third is left after seven days, and its leaf expires with it.
SHORT_CA = issue_ca(START, 11 * DAY)
LEAF_ENDS_WITH_CA = Bundle(SHORT_CA, issue_leaf(SHORT_CA, NAMES, START))

RENEWAL_TIME = START + 20 * DAY
CA_RENEWAL_TIME = START + 365 * DAY * 2 / 3
SIGN_TIME = START + 5 * MINUTE


def published(bundle):
    return (bundle.ca_bundle(),) * 2


def step(bundle, now=START, names=NAMES, published_cas="equal"):
    return next_step(bundle, published(bundle) if published_cas == "equal" else published_cas, now, names)


def with_leaf_issued_at(now, ca=CA):
    """SETTLED with a leaf that was issued at another time."""
    return replace(SETTLED, leaf=issue_leaf(ca, NAMES, now))


ALL_EMPTY = (b"", b"")
ONE_EMPTY = (PUBLISHED.ca_bundle(), b"")
ONE_OF_TWO = (WITH_NEXT_CA.ca_bundle(), SETTLED.ca_bundle())
NAMES_OF_ANOTHER_NAMESPACE = ("webhook.restored.svc",)
NO_NAMES, ONE_NAME_LESS = (), NAMES[1:2]
ONE_NAME_MORE = (*NAMES, "other.kubevirt-scheduler.svc")
PUBLISHED_IN_FUTURE = replace(WITH_NEXT_CA, published=START + HOUR + TICK)
FUTURE_CA = issue_ca(START + 400 * DAY)
EXPIRED_NEXT_CA = replace(WITH_NEXT_CA, next_ca=issue_ca(START - 400 * DAY))
FUTURE = Bundle(FUTURE_CA, issue_leaf(FUTURE_CA, NAMES, START + 400 * DAY))
FUTURE_LEAF = with_leaf_issued_at(START + 2 * HOUR)
LEAF_OF_ANOTHER_CA = with_leaf_issued_at(START, OTHER)
NEW_LEAF = with_leaf_issued_at(CA_RENEWAL_TIME)
LEAF_DUE_FIRST = with_leaf_issued_at(CA_RENEWAL_TIME - 21 * DAY)
CA_END, LEAF_END = START + 365 * DAY, START + 30 * DAY
SHORT_CA_RENEWAL_TIME = START + 11 * DAY * 2 / 3

# The bundle, what differs from START, NAMES and a published bundle, the step, and its due time.
TABLE = {
    # The lifetime of a bundle.
    "new bundle: renew is next": (SETTLED, {}, Step.RENEW, RENEWAL_TIME),
    "the leaf has expired": (SETTLED, {"now": LEAF_END}, Step.RENEW, LEAF_END),
    "a third of the CA's lifetime is left": (NEW_LEAF, {"now": CA_RENEWAL_TIME}, Step.INTRODUCE, CA_RENEWAL_TIME),
    "leaf and CA are due": (LEAF_DUE_FIRST, {"now": CA_RENEWAL_TIME}, Step.RENEW, CA_RENEWAL_TIME - DAY),
    "the CA has expired": (SETTLED, {"now": CA_END}, Step.START, CA_END),
    "leaf expires with its CA": (LEAF_ENDS_WITH_CA, {}, Step.INTRODUCE, SHORT_CA_RENEWAL_TIME),
    # The rotation.
    "next CA is published in one of two webhooks": (WITH_NEXT_CA, {"published_cas": ONE_OF_TWO}, Step.PUBLISH, START),
    "next CA, configuration unreadable": (WITH_NEXT_CA, {"published_cas": None}, Step.PUBLISH, START),
    "next CA is published": (WITH_NEXT_CA, {}, Step.PUBLISHED, START),
    "next CA, no webhooks to publish in": (WITH_NEXT_CA, {"published_cas": ()}, Step.PUBLISHED, START),
    "spread is over": (PUBLISHED, {"now": SIGN_TIME}, Step.SIGN, SIGN_TIME),
    "spread, configuration unreadable": (PUBLISHED, {"now": SIGN_TIME, "published_cas": None}, Step.PUBLISH, SIGN_TIME),
    "one caBundle emptied during the spread": (PUBLISHED, {"published_cas": ONE_EMPTY}, Step.WITHDRAWN, START),
    "emptied when renew is due": (
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
    "next CA has expired": (EXPIRED_NEXT_CA, {}, Step.INTRODUCE, START),
    "retiring CA is no longer needed": (WITH_RETIRING_CA, {"now": START + DAY}, Step.DROP, START + DAY),
    # Unexpected states.
    "caBundles emptied outside a rotation": (SETTLED, {"published_cas": ALL_EMPTY}, Step.RENEW, RENEWAL_TIME),
    "CA is not yet valid": (FUTURE, {}, Step.START, START),
    "leaf is not yet valid": (FUTURE_LEAF, {}, Step.RENEW, START),
    "leaf is signed by another CA": (LEAF_OF_ANOTHER_CA, {}, Step.RENEW, START),
    # Names.
    "leaf lacks a name": (SETTLED, {"names": ONE_NAME_MORE}, Step.RENEW, START),
    "leaf has an extra name": (SETTLED, {"names": ONE_NAME_LESS}, Step.RENEW, RENEWAL_TIME),
    "no names": (SETTLED, {"names": NO_NAMES}, Step.RENEW, RENEWAL_TIME),
    "restored in another namespace": (SETTLED, {"names": NAMES_OF_ANOTHER_NAMESPACE}, Step.RENEW, START),
}


@pytest.mark.parametrize(("bundle", "changes", "expected", "due"), TABLE.values(), ids=TABLE)
def test_next_step_returns_the_step_and_its_due_time(bundle, changes, expected, due):
    found = step(bundle, **changes)
    assert (found.step, found.due) == (expected, due)
    assert found.why


# Steps


def leaf_names(bundle):
    return read(bundle.leaf.certificate).names


def leaf_is_signed(bundle):
    return signed_by(bundle.leaf.certificate, bundle.authority.certificate)


@pytest.mark.parametrize(("what", "until"), [(Step.START, START + 30 * DAY), (Step.REPLACE, START + READ_BY_ALL)])
def test_start_issues_a_ca_and_a_leaf_and_the_old_ca_retires_with_its_leaf_or_early_if_replaced(what, until):
    result = apply_step(what, ROTATING, START, NAMES)
    assert leaf_is_signed(result)
    assert result.authority not in (CA, OTHER)
    assert (result.next_ca, result.published) == (None, None)
    assert result.retiring == (
        RetiringCA(OLD.certificate.decode(), min(START + DAY, until)),
        RetiringCA(CA.certificate.decode(), until),
    )
    assert apply_step(what, ROTATING, START + 365 * DAY, NAMES).retiring == ()
    assert leaf_names(apply_step(what, SETTLED, START, ())) == NAMES


def test_after_many_starts_only_the_latest_old_cas_stay_trusted():
    result = [SETTLED]
    for _ in range(2 * MAX_RETIRING):
        result.append(apply_step(Step.START, result[-1], START, NAMES))
    last = [one.authority.certificate.decode() for one in result[-1 - MAX_RETIRING : -1]]
    assert [one.certificate for one in result[-1].retiring] == last


def test_renew_changes_only_the_leaf():
    result = apply_step(Step.RENEW, ROTATING, RENEWAL_TIME, NAMES)
    assert leaf_is_signed(result)
    assert read(result.leaf.certificate).not_after == RENEWAL_TIME + 30 * DAY
    assert replace(result, leaf=ROTATING.leaf) == ROTATING
    assert leaf_names(result) == NAMES
    assert leaf_names(apply_step(Step.RENEW, SETTLED, START, NAMES_OF_ANOTHER_NAMESPACE)) == ("webhook.restored.svc",)


ROTATING = replace(PUBLISHED, retiring=WITH_RETIRING_CA.retiring)


def test_a_rotation_trusts_one_ca_then_two_then_one():
    introduced = apply_step(Step.INTRODUCE, PUBLISHED, START, NAMES)
    assert introduced.next_ca != OTHER
    assert replace(introduced, next_ca=None) == SETTLED
    published = apply_step(Step.PUBLISHED, introduced, START + MINUTE, NAMES)
    assert published == replace(introduced, published=START + MINUTE)
    assert apply_step(Step.WITHDRAWN, published, START, NAMES) == introduced
    signed = apply_step(Step.SIGN, published, SIGN_TIME, NAMES)
    assert leaf_is_signed(signed)
    assert signed.authority == introduced.next_ca
    assert (signed.next_ca, signed.published) == (None, None)
    assert signed.retiring == (RetiringCA(CA.certificate.decode(), read(SETTLED.leaf.certificate).not_after),)
    assert signed.ca_bundle() == published.ca_bundle()
    assert apply_step(Step.DROP, signed, START + 30 * DAY - TICK, NAMES) == signed
    assert apply_step(Step.DROP, signed, START + 30 * DAY, NAMES) == replace(signed, retiring=())


@pytest.mark.parametrize("what", [Step.SIGN, Step.PUBLISH])
def test_steps_without_effect_return_the_same_bundle(what):
    assert apply_step(what, SETTLED, START, NAMES) is SETTLED
