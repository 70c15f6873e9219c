"""The next step with its due time and reason, and what each step changes in a bundle."""

from datetime import timedelta
from functools import partial

import pytest
from msgspec.structs import replace

from certs.authority import issue_ca, issue_leaf, read, signed_by
from certs.rotation import Step, apply_step, drop_old, next_step, observe, plan
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
# A CA with a lifetime of 11 days: less than a third of a year is left, and its leaf expires with it.
SHORT_CA = issue_ca(START, 11 * DAY)
LEAF_ENDS_WITH_CA = Bundle(SHORT_CA, issue_leaf(SHORT_CA, NAMES, START))

RENEWAL_TIME = START + 20 * DAY
CA_RENEWAL_TIME = START + 365 * DAY * 2 / 3
LATER, SIGN_TIME = START + MINUTE, START + 5 * MINUTE


def with_leaf_issued_at(now, ca=CA):
    """SETTLED with a leaf that was issued at another time."""
    return replace(SETTLED, leaf=issue_leaf(ca, NAMES, now))


NAMES_OF_ANOTHER_NAMESPACE = ("webhook.restored.svc",)
NO_NAMES, ONE_NAME_LESS = (), NAMES[1:2]
ONE_NAME_MORE = (*NAMES, "other.kubevirt-scheduler.svc")
FUTURE_CA = issue_ca(START + 400 * DAY)
EXPIRED_NEXT_CA = replace(WITH_NEXT_CA, next_ca=issue_ca(START - 400 * DAY))
FUTURE = Bundle(FUTURE_CA, issue_leaf(FUTURE_CA, NAMES, START + 400 * DAY))
FUTURE_LEAF = with_leaf_issued_at(START + 61 * DAY)
LEAF_OF_ANOTHER_CA = with_leaf_issued_at(START, OTHER)
NEW_LEAF = with_leaf_issued_at(CA_RENEWAL_TIME)
LEAF_DUE_FIRST = with_leaf_issued_at(CA_RENEWAL_TIME - 21 * DAY)
CA_END, LEAF_END = START + 365 * DAY, START + 30 * DAY
SHORT_CA_RENEWAL_TIME = START + 11 * DAY - 365 * DAY / 3
HIDDEN_CA = replace(SETTLED, retiring=(RetiringCA(OLD.certificate.decode(), START + 91 * DAY),))

A_THIRD = "a third of the certificate's lifetime is left"
SPREAD_IS_OVER = "every API server has had time to read the next CA"
# The observed bundle, what differs from START and NAMES, the step, its due time, and words of its reason.
TABLE = {
    # The lifetime of a bundle.
    "new bundle: renew is next": (SETTLED, {}, "renew", RENEWAL_TIME, A_THIRD),
    "the leaf has expired": (SETTLED, {"now": LEAF_END}, "renew", LEAF_END, "the certificate has expired"),
    "new leaf, old CA": (NEW_LEAF, {"now": CA_RENEWAL_TIME}, "start", CA_RENEWAL_TIME, "third of the CA's lifetime"),
    "leaf and CA are due": (LEAF_DUE_FIRST, {"now": CA_RENEWAL_TIME}, "renew", CA_RENEWAL_TIME - DAY, A_THIRD),
    "the CA has expired": (SETTLED, {"now": CA_END}, "start", CA_END, "the CA has expired"),
    "leaf expires with its CA": (LEAF_ENDS_WITH_CA, {}, "start", SHORT_CA_RENEWAL_TIME, "of the CA's lifetime"),
    # The rotation.
    "next CA is not published": (WITH_NEXT_CA, {"now": LATER}, "renew", LATER + 5 * MINUTE, SPREAD_IS_OVER),
    "next CA is published": (PUBLISHED, {"now": LATER}, "renew", SIGN_TIME, SPREAD_IS_OVER),
    "next CA has expired": (EXPIRED_NEXT_CA, {"now": LEAF_END}, "start", LEAF_END, "the next CA has expired"),
    "leaf is due before": (WITH_NEXT_CA, {"now": RENEWAL_TIME}, "renew", RENEWAL_TIME, A_THIRD),
    "an old CA is hidden": (HIDDEN_CA, {}, "drop", START, "is trusted longer than any of its certificates can live"),
    "an old CA is left": (WITH_RETIRING_CA, {}, "drop", START + DAY, "certificate of the old CA has expired"),
    # Unexpected states.
    "CA is not yet valid": (FUTURE, {}, "start", START, "the CA is not valid yet: the clock was set back"),
    "leaf is not yet valid": (FUTURE_LEAF, {}, "renew", START, "the certificate is not valid yet"),
    "leaf is signed by another CA": (LEAF_OF_ANOTHER_CA, {}, "renew", START, "the CA did not sign the certificate"),
    # Names.
    "leaf lacks a name": (SETTLED, {"names": ONE_NAME_MORE}, "renew", START, f"lacks {ONE_NAME_MORE[-1]}"),
    "leaf has an extra name": (SETTLED, {"names": ONE_NAME_LESS}, "renew", RENEWAL_TIME, A_THIRD),
    "no names": (SETTLED, {"names": NO_NAMES}, "renew", RENEWAL_TIME, A_THIRD),
    "restored in another namespace": (SETTLED, {"names": NAMES_OF_ANOTHER_NAMESPACE}, "renew", START, "lacks"),
}


@pytest.mark.parametrize(("bundle", "changes", "expected", "due", "why"), TABLE.values(), ids=TABLE)
def test_next_step_returns_the_step_its_due_time_and_the_reason(bundle, changes, expected, due, why):
    found = next_step(bundle, **{"now": START, "names": NAMES} | changes)
    assert (found.step, found.due) == (expected, due)
    assert why in found.why


# The bundle, the caBundles that were read at LATER, and the time since which every webhook trusts the next CA.
OBSERVED = {
    "no next CA": (SETTLED, (SETTLED.ca_bundle(),), None),
    "every caBundle has it": (WITH_NEXT_CA, (WITH_NEXT_CA.ca_bundle(),) * 2, LATER),
    "no webhooks": (WITH_NEXT_CA, (), LATER),
    "observed before": (PUBLISHED, (PUBLISHED.ca_bundle(),) * 2, START),
    "one of two webhooks": (PUBLISHED, (WITH_NEXT_CA.ca_bundle(), SETTLED.ca_bundle()), None),
    "one caBundle emptied": (PUBLISHED, (PUBLISHED.ca_bundle(), b""), None),
    "configuration unreadable": (PUBLISHED, None, None),
    "an hour in the future": (replace(WITH_NEXT_CA, published=LATER + HOUR), (), LATER + HOUR),
    "over an hour in the future": (replace(WITH_NEXT_CA, published=LATER + HOUR + TICK), (), LATER),
}


@pytest.mark.parametrize(("bundle", "published", "since"), OBSERVED.values(), ids=OBSERVED)
def test_observe_records_since_when_every_webhook_trusts_the_next_ca(bundle, published, since):
    assert observe(bundle, published, LATER) == replace(bundle, published=since)


# Steps


def leaf_names(bundle):
    return read(bundle.leaf.certificate).names


def leaf_is_signed(bundle):
    return signed_by(bundle.leaf.certificate, bundle.authority.certificate)


def drop_old_at(now):
    return drop_old(ROTATING, now)


def start_over_at(now):
    """As when the CA is not valid yet, because the clock was set back."""
    return apply_step(Step.START, replace(FUTURE, retiring=ROTATING.retiring), now, NAMES)


# No leaf of a CA of the future is valid now, and nobody can tell when the last one expires.
@pytest.mark.parametrize(
    ("change", "retiring"),
    [(start_over_at, {OLD: START + DAY}), (drop_old_at, {OLD: START + MINUTE, CA: START + MINUTE})],
    ids=["start over", "drop old"],
)
def test_a_new_ca_signs_at_once_and_the_old_ca_retires_within_a_minute_or_never_signed(change, retiring):
    result = change(START)
    assert leaf_is_signed(result)
    assert result.authority not in (CA, OTHER, FUTURE_CA)
    assert (result.next_ca, result.published) == (None, None)
    assert result.retiring == tuple(RetiringCA(ca.certificate.decode(), until) for ca, until in retiring.items())
    assert leaf_names(result) == NAMES


def test_no_step_keeps_a_ca_that_somebody_has_hidden_among_the_retiring_ones():
    """A thief of the token could have certificates of his own trusted until 2099."""
    for bundle in HIDDEN_CA, apply_step(Step.START, HIDDEN_CA, START):
        assert OLD.certificate not in apply_step(Step.DROP, bundle, START).ca_bundle()


@pytest.mark.parametrize("what", [Step.START, Step.RENEW])
def test_with_an_expired_ca_each_issue_starts_over_and_trusts_no_expired_ca(what):
    result = apply_step(what, ROTATING, START + 365 * DAY)
    assert result.authority not in (CA, OTHER)
    assert leaf_is_signed(result)
    assert (result.next_ca, result.retiring) == (None, ())
    assert leaf_names(result) == NAMES


def test_after_many_starts_only_the_latest_old_cas_stay_trusted():
    result = [SETTLED]
    for _ in range(10):
        result.append(drop_old(result[-1], START))
    last = [one.authority.certificate.decode() for one in result[-1 - 8 : -1]]
    assert [one.certificate for one in result[-1].retiring] == last


def test_renew_changes_only_the_leaf():
    result = apply_step(Step.RENEW, ROTATING, LATER, NAMES)
    assert leaf_is_signed(result)
    assert read(result.leaf.certificate).not_after == LATER + 30 * DAY
    assert replace(result, leaf=ROTATING.leaf) == ROTATING
    assert leaf_names(result) == NAMES
    assert leaf_names(apply_step(Step.RENEW, SETTLED, START, NAMES_OF_ANOTHER_NAMESPACE)) == ("webhook.restored.svc",)


ROTATING = replace(PUBLISHED, retiring=WITH_RETIRING_CA.retiring)


def test_a_rotation_trusts_one_ca_then_two_then_one():
    started = apply_step(Step.START, PUBLISHED, START, NAMES)
    assert started.next_ca not in (None, OTHER)
    assert replace(started, next_ca=None) == SETTLED
    published = replace(started, published=START)
    for early in started, published:
        assert apply_step(Step.RENEW, early, SIGN_TIME - TICK).authority == CA
    signed = apply_step(Step.RENEW, published, SIGN_TIME)
    assert leaf_is_signed(signed)
    assert signed.authority == started.next_ca
    assert (signed.next_ca, signed.published) == (None, None)
    assert signed.retiring == (RetiringCA(CA.certificate.decode(), read(SETTLED.leaf.certificate).not_after),)
    assert signed.ca_bundle() == published.ca_bundle()
    assert apply_step(Step.DROP, signed, START + 30 * DAY - TICK, NAMES) == signed
    assert apply_step(Step.DROP, signed, START + 30 * DAY, NAMES) == replace(signed, retiring=())


def test_a_plan_has_each_step_until_one_ca_is_left():
    steps = [(each.step, each.due) for each in plan(SETTLED, partial(apply_step, Step.START), START)]
    renewal = SIGN_TIME + 20 * DAY
    assert steps == [(Step.START, START), (Step.RENEW, SIGN_TIME), (Step.RENEW, renewal), (Step.DROP, LEAF_END)]
    assert [each.step for each in plan(ROTATING, None, START)] == [Step.RENEW, Step.DROP, Step.RENEW, Step.DROP]
    assert list(plan(SETTLED, None, START)) == []
